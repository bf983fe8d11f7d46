"""A configuration written as TOML, because the standard library only reads it.

Knows the value types a checked configuration can hold and refuses any other; it keeps no comments and no layout.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from agentenv.config.values import NONE_SPELLING

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def emit(tables: Mapping[str, Any], *, comments: tuple[str, ...] = ()) -> str:
    """Write tables and arrays of tables, each below its header.

    Args:
        tables: By name: a mapping becomes ``[name]``, a list of mappings becomes ``[[name]]`` for each.
        comments: Lines for the top of the file.
    """
    blocks = ["\n".join("# " + _one_line(comment) for comment in comments)] if comments else []
    for name, content in tables.items():
        if isinstance(content, Mapping):
            blocks.append(_block(f"[{_key(name)}]", content))
        else:
            blocks.extend(_block(f"[[{_key(name)}]]", table) for table in content)
    return "\n\n".join(blocks) + "\n"


def _block(header: str, content: Mapping[str, Any]) -> str:
    return "\n".join([header, *(f"{_key(key)} = {emit_value(value)}" for key, value in content.items())])


def emit_value(value: object) -> str:
    """Write one value on one line.

    Raises:
        TypeError: For a type TOML or a configuration does not have.
    """
    if value is None:
        return _string(NONE_SPELLING)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # repr is the shortest text that reads back as the same double; TOML spells nan and inf as Python does.
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(key)} = {emit_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(emit_value(item) for item in value) + "]"
    raise TypeError(f"expected a value TOML can write, got {type(value).__qualname__}")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are a subset of TOML's; DEL is the one control character JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _one_line(text: str) -> str:
    # Names of files may hold anything, also a line break that would end the comment.
    return "".join(character if character.isprintable() else "?" for character in text)
