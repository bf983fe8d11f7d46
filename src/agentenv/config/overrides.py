"""``--set path=value``: one key changed from the command line, before anything is checked.

The value goes through the same checks as if the file had said it. A path that leads nowhere is a mistake, never a new
environment.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from agentenv.config.faults import Path
from agentenv.config.origin import OVERRIDE, dotted
from agentenv.config.words import got, kind
from agentenv.errors import Problem

_STEP = re.compile(
    r"""(?P<dot>\.?)(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[A-Za-z0-9_-]+))|\[(?P<index>\d{1,9})\]"""
)


class OverrideError(Exception):
    """One override that cannot be applied."""

    def __init__(self, path: str, message: str, hint: str = "") -> None:
        self.problem = Problem(OVERRIDE, path, message, hint)
        super().__init__(str(self.problem))


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> tuple[set[Path], list[Problem]]:
    """Change ``table`` in place.

    Returns:
        The paths that were set, with every table made on the way, and the overrides that could not be applied.
    """
    touched: set[Path] = set()
    problems = []
    for override in overrides:
        try:
            touched |= _apply(table, override)
        except OverrideError as refused:
            problems.append(refused.problem)
    return touched, problems


def _apply(table: dict[str, Any], override: str) -> set[Path]:
    written, equals, text = override.partition("=")
    if not equals:
        raise OverrideError(override, "expected path=value, got no =", "such as global.seed=3")
    path = _resolve(_parse_path(written.strip()), table)
    made: set[Path] = {path}
    node: Any = table
    for depth, step in enumerate(path[:-1]):
        node = _enter(node, step, path[:depth], made)
    last = path[-1]
    if isinstance(last, int):
        _check_index(node, last, path[:-1])
    elif not isinstance(node, dict):
        raise OverrideError(dotted(path), f"expected a table at {dotted(path[:-1])}, got {kind(node)}")
    node[last] = parse_value(text.strip())
    return made


def parse_value(text: str) -> Any:
    """A value as TOML reads it, ``null`` as None, anything else as the text itself."""
    if text == "null":
        return None
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _parse_path(written: str) -> Path:
    steps: list[str | int] = []
    at = 0
    while at < len(written):
        match = _STEP.match(written, at)
        separated = match is not None and (match["index"] is not None or bool(match["dot"]) == bool(steps))
        if match is None or not separated:
            break
        names = (match["double"], match["single"], match["bare"])
        steps.append(int(match["index"]) if match["index"] else next(name for name in names if name is not None))
        at = match.end()
    if at < len(written) or not steps or isinstance(steps[0], int):
        hint = "such as global.seed, environments.agent_1.memory_mb or environments[0].count"
        raise OverrideError(written or '""', "expected a dotted path", hint)
    return tuple(steps)


def _resolve(path: Path, table: dict[str, Any]) -> Path:
    """Replace the id of an environment, which may itself contain dots, by its index."""
    if path[0] != "environments" or len(path) == 1 or isinstance(path[1], int):
        return path
    tables = table.get("environments")
    listed = tables if isinstance(tables, list) else []
    ids = {str(entry["id"]): i for i, entry in enumerate(listed) if isinstance(entry, dict) and "id" in entry}
    for end in range(len(path), 1, -1):
        names = path[1:end]
        env_id = ".".join(str(name) for name in names)
        if env_id in ids and all(isinstance(name, str) for name in names):
            return ("environments", ids[env_id], *path[end:])
    wanted = str(path[1])
    near = difflib.get_close_matches(wanted, ids, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"ids in the file: {', '.join(list(ids)[:10]) or 'none'}"
    raise OverrideError(dotted(path), f"expected the id of an environment, {got(wanted, with_kind=False)}", hint)


def _enter(node: Any, step: str | int, parent: Path, made: set[Path]) -> Any:
    if isinstance(step, int):
        _check_index(node, step, parent)
        return node[step]
    if not isinstance(node, dict):
        raise OverrideError(dotted((*parent, step)), f"expected a table at {dotted(parent)}, got {kind(node)}")
    if node.get(step) is None:
        node[step] = {}
        made.add((*parent, step))
    return node[step]


def _check_index(node: Any, index: int, parent: Path) -> None:
    if not isinstance(node, list):
        raise OverrideError(dotted((*parent, index)), f"expected a list at {dotted(parent)}, got {kind(node)}")
    if index >= len(node):
        wanted = f"an index from 0 to {len(node) - 1}" if node else "no index, the list is empty"
        raise OverrideError(dotted((*parent, index)), f"expected {wanted}, got {index}")
