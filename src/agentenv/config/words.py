"""Plain words for values and for what a schema expects, so that no message reads like a library's.

Values are spelled as TOML spells them. Nothing here decides what is valid.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

_LONGEST_SHOWN = 60
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a float"),
    (str, "a string"),
    (Mapping, "a table"),
    ((list, tuple), "a list"),
    (datetime.datetime, "a date with a time"),
    (datetime.date, "a date"),
    (datetime.time, "a time of day"),
)
_PLURALS = {"string": "strings", "object": "tables", "integer": "integers", "number": "numbers"}


def kind(value: object) -> str:
    """The kind of a value with its article, such as ``a string``."""
    if value is None:
        return "nothing"
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def shown(value: object) -> str:
    """A value as TOML writes it, cut to a readable length; containers and foreign objects by kind only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # ASCII, because a terminal may be unable to print what a mistaken value contains.
        text = json.dumps(value, ensure_ascii=not value.isprintable())
        return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 4] + '..."'
    if isinstance(value, int) and value.bit_length() > 3 * _LONGEST_SHOWN:
        return "an integer of more than 50 digits"  # str() refuses integers beyond 4300 digits
    if isinstance(value, (int, float, datetime.date, datetime.time)):
        return str(value)
    if isinstance(value, (list, tuple, Mapping)) and not value:
        return f"an empty {kind(value)[2:]}"
    return kind(value)


def got_text(value: object) -> str:
    """``got "a b"``, where text was expected but of another form; with the kind where it is not text at all."""
    return got(value, with_kind=not isinstance(value, str))


_ABSURD = 1_000_000


def got(value: object, *, with_kind: bool = True) -> str:
    """``got "8" (a string)``: the second half of every message."""
    text = shown(value)
    if not with_kind or text.startswith(("a ", "an ")) or value is None:
        return f"got {text}"
    return f"got {text} ({kind(value)})"


def expected(schema: Mapping[str, Any], value: object = None) -> str:
    """What one JSON Schema node accepts, such as ``an integer >= 1``. References must be resolved already.

    An upper bound that only keeps absurd values out is not mentioned, except to a ``value`` above it.
    """
    if "enum" in schema:
        return "one of " + ", ".join(shown(choice) for choice in schema["enum"])
    match schema.get("type"):
        case "integer":
            return "an integer" + _bounds(schema, value)
        case "number":
            return "a number" + _bounds(schema, value)
        case "boolean":
            return "true or false"
        case "string":
            return "a string"
        case "array":
            filled = "a non-empty list of " if schema.get("minItems") else "a list of "
            items = schema.get("items", {})
            kinds = [_PLURALS.get(option.get("type", ""), "values") for option in items.get("anyOf", [items])]
            return filled + " or ".join(kinds)
        case "object":
            return "a table"
    return " or ".join(expected(option, value) for option in schema.get("anyOf", ())) or "a value"


def _bounds(schema: Mapping[str, Any], value: object) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if high is not None and high > _ABSURD:
        if isinstance(value, (int, float)) and value > high:
            return f" of at most {high:g}" if isinstance(high, float) else f" of at most {high}"
        high = None
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" >= {low}"
    above = schema.get("exclusiveMinimum")
    return "" if above is None else f" > {above:g}"
