"""What pydantic objects to, said in the words of this project.

The text of pydantic's messages is never used, only its paths and offending values; what was expected is read from the
schema, so a bound changed in the records changes in the message too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from agentenv.config.faults import CUSTOM_TYPE, Fault, Path
from agentenv.config.nearest import (
    DEFAULTS,
    DRIVE,
    ENVIRONMENT,
    GLOBAL,
    RUNTIMES,
    TOP,
    WRAPPER,
    suggest_key,
    suggest_value,
)
from agentenv.config.schema import node_at
from agentenv.config.words import expected, got, kind

_KIND_OF_TYPE = {"integer": "an integer", "string": "a string", "boolean": "a boolean", "array": "a list"}
_UNQUOTABLE = re.compile(r"true|false|[+-]?(0|[1-9][0-9_]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), "write true"),
    **dict.fromkeys(("false", "no", "off", "0"), "write false"),
}
_NO_ENVIRONMENTS = Fault(
    ("environments",),
    "expected at least one [[environments]] table, got none",
    'the smallest is [[environments]] followed by id = "agent_1"',
)


def explain(error: ValidationError) -> Iterator[Fault]:
    """Turn every error pydantic collected into a fault at its full path."""
    details = error.errors(include_url=False)
    unknown_at_top = [d["loc"][0] for d in details if d["type"] == "extra_forbidden" and len(d["loc"]) == 1]
    misspelled = any("[[environments]]" in suggest_key(str(key), TOP) for key in unknown_at_top)
    for detail in details:
        path: Path = tuple(detail["loc"])
        if path == ("environments",) and detail["type"] in ("missing", "too_short"):
            # Pydantic also counts tables with a mistake as missing. And a misspelled [[environment]] is reported as
            # such: that there is no other one follows from it.
            if not misspelled and (detail["type"] == "missing" or not detail["input"]):
                yield _NO_ENVIRONMENTS
        elif detail["type"] == CUSTOM_TYPE:
            for fault in detail["ctx"]["faults"]:
                yield Fault(path + fault.path, fault.message, fault.hint)
        elif detail["type"] == "extra_forbidden":
            yield Fault(path, "unknown key", suggest_key(str(path[-1]), table_at(path[:-1])))
        elif detail["type"] == "missing":
            schema = node_at(path)
            yield Fault(path, f"expected {expected(schema)}, got nothing", "this key is required")
        elif detail["type"] == "invalid_key":
            yield Fault((*path[:-1], str(path[-1])), f"expected a key that is a string, {got(path[-1])}")
        else:
            yield _mismatch(path, detail["input"])


def table_at(path: Path) -> str:
    """Which kind of table stands at ``path``, by the names of :mod:`agentenv.config.nearest`."""
    match path:
        case ():
            return TOP
        case ("global",):
            return GLOBAL
        case ("global", "defaults"):
            return DEFAULTS
        case (str() as name,) if f"[{name}]" in RUNTIMES:
            return f"[{name}]"
        case (str() as name, "drives", int()) if f"[{name}]" in RUNTIMES:
            return DRIVE
        case ("environments", int()):
            return ENVIRONMENT
    return WRAPPER


def _mismatch(path: Path, value: object) -> Fault:
    schema = node_at(path)
    if path == ("environments",) and isinstance(value, Mapping):
        message = "expected an array of tables, got one table"
        return Fault(path, message, "write [[environments]] with two brackets on each side")
    choices = schema.get("enum", ())
    # The kind is worth saying only where it is what is wrong: `got 8` for a bound, `got "8" (a string)` for a type.
    right_kind = kind(value) == _KIND_OF_TYPE.get(schema.get("type", "")) or _is_number(schema, value)
    message = f"expected {expected(schema, value)}, {got(value, with_kind=not right_kind)}"
    return Fault(path, message, suggest_value(value, choices) or _number_hint(schema, value))


def _is_number(schema: Mapping[str, Any], value: object) -> bool:
    return schema.get("type") == "number" and isinstance(value, (int, float)) and not isinstance(value, bool)


def _number_hint(schema: Mapping[str, Any], value: object) -> str:
    if (
        isinstance(value, str)
        and schema.get("type") in ("integer", "number", "boolean")
        and _UNQUOTABLE.fullmatch(value)
    ):
        return "write it without quotes"
    if isinstance(value, str) and schema.get("type") == "boolean":
        return _BOOLEANS.get(value.lower(), "")
    if isinstance(value, float) and value.is_integer() and schema.get("type") == "integer":
        return f"write {value:.0f}"
    return ""
