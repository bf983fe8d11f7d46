"""The JSON Schema of a configuration file, for editors and for the reference page.

Derived from the records, with what TOML cannot write (null) and what nobody reads (generated titles) taken out.
The loader checks more than a schema can say: unique ids, the syntax of module:callable.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from agentenv.config.faults import Path
from agentenv.config.model import ConfigTable

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of a configuration file.

    Returns:
        A fresh dict; its top-level properties are ``global``, ``environments`` and the names of runtimes.
    """
    return copy.deepcopy(_schema())


@cache
def _schema() -> dict[str, Any]:
    raw = ConfigTable.model_json_schema(by_alias=True)
    cleaned: dict[str, Any] = _clean(raw)
    return {
        "$schema": _DRAFT,
        "title": "agentenv configuration",
        **{key: value for key, value in cleaned.items() if key != "title"},
    }


def _clean(node: Any) -> Any:
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    wrapped = node.get("allOf")
    if isinstance(wrapped, list) and len(wrapped) == 1:
        # How pydantic before 2.9 writes a reference that has a description beside it.
        node = {**wrapped[0], **{key: value for key, value in node.items() if key != "allOf"}}
    options = node.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        outer = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**rest[0], **outer} if len(rest) == 1 else {"anyOf": rest, **outer}
    cleaned = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            # The names in here are keys of the file, not of the schema: "title" or "default" could be one.
            cleaned[key] = {name: _clean(child) for name, child in value.items()}
        elif not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None):
            cleaned[key] = value if key == "default" else _clean(value)
    return cleaned


def node_at(path: Path) -> dict[str, Any]:
    """The schema of the value at ``path``; an empty dict where the schema says nothing about it."""
    root = _schema()
    node: dict[str, Any] = root
    for step in path:
        node = _resolved(node, root)
        if isinstance(step, int):
            node = node.get("items", {})
        else:
            # A wrapper is a string or a table: a key can only belong to the table.
            node = next((option for option in node.get("anyOf", ()) if "properties" in option), node)
            extra = node.get("additionalProperties")
            node = node.get("properties", {}).get(step) or (extra if isinstance(extra, dict) else {})
    return _with_options(node, root)


def _with_options(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    node = _resolved(node, root)
    if "items" in node:
        node = {**node, "items": _resolved(node["items"], root)}
    return node


def _resolved(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return node
    target: dict[str, Any] = root["$defs"][reference.rsplit("/", 1)[1]]
    return {**target, **{key: value for key, value in node.items() if key != "$ref"}}
