"""Where a configuration came from, so that a mistake can be pointed at: a file's line, a dict, a keyword, ``--set``.

It only answers questions about places; it reads nothing and judges nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from agentenv.config.faults import Fault, Path
from agentenv.config.positions import positions
from agentenv.config.words import shown
from agentenv.errors import Problem

OVERRIDE = "--set"
KEYWORD = "keyword argument"
DICT = "dict"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Path) -> str:
    """A path as people write it: ``environments[2].env_vars."a b"``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if _BARE.fullmatch(step) else shown(step)
            text += f".{name}" if text else name
    return text


@dataclass
class Origin:
    """One source of configuration.

    Attributes:
        name: The file as the caller named it, ``dict`` or ``keyword argument``.
        text: The TOML text, or None where there is none.
        overridden: Paths that were set from the command line.
    """

    name: str
    text: str | None = None
    overridden: set[Path] = field(default_factory=set)

    def problems(self, faults: Iterable[Fault]) -> list[Problem]:
        """Every fault with its place, once, in the order of the file; those of ``--set`` last."""
        placed: dict[Problem, int] = {}
        for fault in faults:
            rank, where = self._place(fault.path)
            placed.setdefault(Problem(where, self._path_text(fault.path), fault.message, fault.hint), rank)
        return sorted(placed, key=placed.__getitem__)

    def line(self, path: Path) -> int | None:
        """The line of ``path`` or of the nearest table around it; None where there are no lines."""
        if self.text is None:
            return None
        return next(self._lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self._lines)

    def describe(self, path: Path) -> str:
        """A value named for another value's message: ``environments[0] (line 4)``."""
        line = None if self._is_overridden(path) else self.line(path)
        return dotted(path) if line is None else f"{dotted(path)} (line {line})"

    @cached_property
    def _lines(self) -> dict[Path, int]:
        return dict(positions(self.text or ""))

    def _is_overridden(self, path: Path) -> bool:
        return any(path[:n] in self.overridden for n in range(1, len(path) + 1))

    def _place(self, path: Path) -> tuple[int, str]:
        if self._is_overridden(path):
            return 1 << 62, OVERRIDE
        line = self.line(path)
        return (0, self.name) if line is None else (line, f"{self.name}:{line}")

    def _path_text(self, path: Path) -> str:
        if self.name == KEYWORD:
            path = path[{"environments": 2, "global": 1}.get(str(path[0]), 0) :] if path else path
        return dotted(path)
