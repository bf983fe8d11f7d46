"""Field types for what is handed into a sandbox: paths, commands, variables, keyword arguments.

They normalise what TOML and Python spell differently (tuples, numbers as variables, ``"@none"``) and refuse what a
process cannot be given or JSON cannot carry.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from agentenv.config.faults import Fault, Path, refusal
from agentenv.config.words import got, got_text

VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
NONE_SPELLING = "@none"


# What Linux lets one variable be (MAX_ARG_STRLEN), with room for its name.
_LONGEST_VARIABLE = 100_000
# What is written and read back, here and inside, by code that calls itself for every level.
_MOST_LEVELS = 100
# Python writes no integer of more than 4300 digits, which this many bits always stay below.
_MOST_BITS = 14_000


def _text_fault(value: str) -> str:
    """Why a string cannot become an argument or a variable of a process, or an empty string."""
    if "\0" in value:
        return "expected text without NUL characters, which no process can be given"
    return "" if _is_utf8(value) else "expected text that UTF-8 can carry, got a lone surrogate"


def _is_utf8(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _check_text(value: object) -> object:
    if isinstance(value, str):
        if not value:
            raise refusal(Fault((), "expected a non-empty string, got an empty one"))
        if fault := _text_fault(value):
            raise refusal(Fault((), fault))
    return value


def _check_command(value: object) -> object:
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:
            words = []
        hint = f"write {json.dumps(words, ensure_ascii=False)}" if words else 'such as ["python", "train.py"]'
        raise refusal(Fault((), f"expected a non-empty list of strings, {got(value)}", hint))
    if isinstance(value, (list, tuple)):
        words_given = [(i, word) for i, word in enumerate(value) if isinstance(word, str)]
        if not value:
            raise refusal(Fault((), "expected a non-empty list of strings, got an empty list"))
        faults = [Fault((i,), fault) for i, word in words_given if (fault := _text_fault(word))]
        if value[0] == "":
            faults.append(Fault((0,), "expected the name of a program, got an empty string"))
        if faults:
            raise refusal(*faults)
    return value


def _check_variables(value: object) -> object:
    """Turn numbers and booleans into strings, leave out None, refuse what no process can be given."""
    if not isinstance(value, Mapping):
        return value
    variables: dict[str, str] = {}
    faults: list[Fault] = []
    for name, content in value.items():
        if not isinstance(name, str) or not re.fullmatch(VARIABLE_PATTERN[1:-1], name):
            wanted = "expected a name of letters, digits and '_' that does not start with a digit"
            faults.append(Fault((str(name),), f"{wanted}, {got_text(name)}"))
        elif isinstance(content, bool):
            variables[name] = "true" if content else "false"
        elif fault := _size_fault(content):
            faults.append(Fault((name,), fault))
        elif isinstance(content, (int, float)):
            variables[name] = str(content)
        elif isinstance(content, str):
            if fault := _text_fault(content):
                faults.append(Fault((name,), fault))
            elif len(content.encode("utf-8", "replace")) > _LONGEST_VARIABLE:
                wanted = f"expected at most {_LONGEST_VARIABLE} bytes, got {len(content)} characters"
                faults.append(Fault((name,), wanted, "put large data into a file of the project"))
            variables[name] = content
        elif content is not None:
            faults.append(Fault((name,), f"expected a string, a number, true or false, {got(content)}"))
    if faults:
        raise refusal(*faults)
    return variables


def _size_fault(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"expected an integer of at most {_MOST_BITS} bits, got one of {value.bit_length()}"
    return ""


def _json_faults(value: object, path: Path) -> Iterator[Fault]:
    if len(path) > _MOST_LEVELS:
        hint = "build what is nested so deeply inside, in a module:callable"
        yield Fault(path[:1], f"expected tables and lists nested at most {_MOST_LEVELS} levels deep, got more", hint)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not _is_utf8(key):
                yield Fault((*path, str(key)), f"expected a key that is plain text, {got(key)}")
            else:
                yield from _json_faults(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _json_faults(item, (*path, index))
    elif fault := _size_fault(value):
        yield Fault(path, fault)
    elif isinstance(value, float) and math.isnan(value):
        yield Fault(path, "expected a number, got nan", "nan equals nothing, so two configs could not be compared")
    elif isinstance(value, str) and not _is_utf8(value):
        yield Fault(path, "expected text that UTF-8 can carry, got a lone surrogate")
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        hint = "it travels into the sandbox as JSON; build the object inside, in a module:callable"
        yield Fault(path, f"expected a string, number, boolean, list or table, {got(value)}", hint)


def _plain_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_json(item) for item in value]
    return None if value == NONE_SPELLING else value


def _check_keywords(value: object) -> object:
    """Copy a table of keyword arguments as plain JSON; the string "@none" becomes None, which TOML cannot write."""
    if not isinstance(value, Mapping):
        return value
    faults = tuple(_json_faults(value, ()))
    if faults:
        raise refusal(*faults)
    return _plain_json(value)


_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*s")


def checkpoint_rule(setting: object) -> tuple[str, float] | None:
    """What ``checkpoint_every`` says: ("auto", 0), ("never", 0), ("steps", n), ("seconds", s); None if nothing."""
    if isinstance(setting, int) and not isinstance(setting, bool):
        return ("steps", setting) if setting > 0 else None
    if not isinstance(setting, str):
        return None
    if setting in ("auto", "never"):
        return setting, 0.0
    found = _SECONDS.fullmatch(setting)
    seconds = 0.0 if found is None else float(found.group(1))
    return ("seconds", seconds) if seconds > 0 else None


def _check_checkpoint_every(value: object) -> object:
    if checkpoint_rule(value) is None:
        hint = 'write "auto", "never", a number of steps such as 1000, or seconds such as "2.5s"'
        raise refusal(Fault((), f"expected how often the state is saved, {got(value)}", hint))
    return value


CheckpointEvery = Annotated[
    str | int,
    BeforeValidator(_check_checkpoint_every),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^(auto|never|\d+(\.\d+)?\s*s)$"}]}
    ),
]
FilePath = Annotated[str, BeforeValidator(_check_text), WithJsonSchema({"type": "string", "minLength": 1})]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(_check_command),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 1}),
]
Variables = Annotated[
    dict[str, str],
    BeforeValidator(_check_variables),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": VARIABLE_PATTERN},
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        }
    ),
]
Keywords = Annotated[dict[str, Any], BeforeValidator(_check_keywords), WithJsonSchema({"type": "object"})]
