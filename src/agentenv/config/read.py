"""From the name of a file to the tables it holds, or to the reason why not.

Every way a file can fail to be read or to be TOML becomes a Problem; what the tables say is not looked at here.
"""

from __future__ import annotations

import difflib
import pathlib
import re
import tomllib
from typing import Any

from agentenv.errors import ConfigError, Problem

_LARGEST_BYTES = 1 << 20

_UNQUOTED = "text needs quotes; true and false are lower case"
_SYNTAX_HINTS = {
    "Cannot overwrite a value": "this key stands in the table already",
    "Cannot declare": "this table stands in the file already",
    "Invalid value": _UNQUOTED,
    # What `log_level = info` gives: inf is a number, and then an "o" follows.
    "Expected newline": _UNQUOTED,
}


def read_text(name: str) -> str:
    """Read a file as UTF-8.

    Raises:
        ConfigError: It is missing, a directory, unreadable or not UTF-8.
    """
    path = pathlib.Path(name)
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise _refuse(name, "no such file", _neighbour(path)) from None
    except IsADirectoryError:
        raise _refuse(name, "expected a TOML file, got a directory", _neighbour(path / "config.toml")) from None
    except PermissionError:
        raise _refuse(name, "this user may not read it", "check its rights with ls -l") from None
    except (OSError, ValueError) as error:
        raise _refuse(name, f"it cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _LARGEST_BYTES:
        message = f"expected at most {_LARGEST_BYTES >> 20} MiB, got more"
        raise _refuse(name, message, "is it a configuration? use count for many environments")
    try:
        return data.decode("utf-8-sig")  # editors on Windows put a byte order mark there
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"expected UTF-8 text, got byte 0x{data[error.start]:02x}"
        raise _refuse(f"{name}:{line}", message, "save the file as UTF-8") from None


def parse(text: str, name: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ConfigError: It is not TOML; with the line.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _refuse(name, "not valid TOML: brackets nested too deeply") from None
    except ValueError as error:
        raise _syntax_error(str(error), text, name) from None


def _syntax_error(message: str, text: str, name: str) -> ConfigError:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    said = message[: place.start()] if place else message
    line = int(place[1]) if place and place[1] else text.rstrip("\n").count("\n") + 1
    column = f" at column {place[2]}" if place and place[2] else ""
    hint = next((hint for start, hint in _SYNTAX_HINTS.items() if said.startswith(start)), "")
    return _refuse(f"{name}:{line}", f"not valid TOML{column}: {said[:1].lower()}{said[1:]}", hint)


def _refuse(where: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem(where or '""', "file", message, hint)])


def _neighbour(path: pathlib.Path) -> str:
    """Name a TOML file near the one that is missing."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml")
        # Nearly every project has one, and it is never what was meant.
        nothing = "no .toml file" + (" but pyproject.toml" if "pyproject.toml" in names else "")
        names = [name for name in names if name != "pyproject.toml"]
    except (OSError, ValueError):
        return f"there is no directory {path.parent} either"
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {path.parent / near[0]}?"
    return f"{path.parent.absolute()} has {', '.join(names[:5]) if names else nothing}"
