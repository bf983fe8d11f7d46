"""The line on which each value of a TOML text stands, which ``tomllib`` does not tell.

A scanner, not a parser: it expects text that ``tomllib`` has accepted and only follows its structure (tables, arrays of
tables, dotted keys, inline tables, nested arrays, strings over several lines). It never interprets a value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from agentenv.config.faults import Path

_KEY = re.compile(r'[ \t]*(?:"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|[A-Za-z0-9_-]+)[ \t]*')
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
# Up to five quotes may end a string over several lines: two of them belong to its content.
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|\'\'\'(?:[^\']|\'{1,2}(?!\'))*\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def positions(text: str) -> Mapping[Path, int]:
    """Map the path of every table, key and array item to its line.

    Args:
        text: TOML that ``tomllib.loads`` accepts.

    Returns:
        Line numbers from 1, by path; array items are ints: ``("environments", 2, "memory_mb")``.
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {(): 1}
        self._array_lengths: dict[Path, int] = {}
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._passed = 0

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip_blank()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> Path:
        line = self._line()
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        *parents, last = self._key()
        self._at += 2 if is_array else 1
        path: Path = ()
        for part in parents:
            path = self._newest((*path, part), line)
        path = (*path, last)
        if not is_array:
            # Written here, whatever a header of a sub-table further up implied.
            self._lines[path] = line
            return path
        self._lines.setdefault(path, line)
        index = self._array_lengths.get(path, 0)
        self._array_lengths[path] = index + 1
        self._lines[(*path, index)] = line
        return (*path, index)

    def _newest(self, path: Path, line: int) -> Path:
        """Follow a name in a header: through an array of tables it means the newest table."""
        self._lines.setdefault(path, line)
        length = self._array_lengths.get(path)
        return path if length is None else (*path, length - 1)

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self._lines.setdefault(path, line)
        self._at += 1  # the "="
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while match := _KEY.match(self._text, self._at):
            written = match.group().strip(" \t")
            # The only interpretation here: tomllib itself unescapes a quoted key.
            parts.append(tomllib.loads(f"k = {written}")["k"] if written[0] in "\"'" else written)
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                break
            self._at += 1
        if not parts:
            raise ValueError(f"no key at offset {self._at}: positions() needs TOML that tomllib accepts")
        return parts

    def _value(self, path: Path) -> None:
        while self._text.startswith((" ", "\t"), self._at):
            self._at += 1
        opening = self._text[self._at : self._at + 1]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            match = _STRING.match(self._text, self._at) or _SCALAR.match(self._text, self._at)
            self._at = match.end() if match else len(self._text)

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        while not self._closes("]"):
            self._lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while not self._closes("}"):
            self._pair(path)

    def _closes(self, bracket: str) -> bool:
        """Skip to the next item; True once the bracket was there instead (or the text ended)."""
        self._skip_blank()
        if self._text.startswith(",", self._at):
            self._at += 1
            self._skip_blank()
        if self._at >= len(self._text):
            return True
        if self._text.startswith(bracket, self._at):
            self._at += 1
            return True
        return False

    def _skip_blank(self) -> None:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _line(self) -> int:
        # Positions only ever grow, so counting resumes where it stopped.
        while self._passed < len(self._newlines) and self._newlines[self._passed] < self._at:
            self._passed += 1
        return self._passed + 1
