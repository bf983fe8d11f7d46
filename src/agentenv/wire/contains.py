"""Whether a value is in a space, asked so that no value can disturb the one who asks.

Gymnasium's own ``contains`` raises for some values of another structure and warns whenever a Box meets a numpy scalar,
which is what iterating over 0-d items yields. The rules here are the same, the answer is always True or False.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import iterate

from agentenv.wire.oneof import ONE_OF


def contains(space: Space[Any], value: object) -> bool:
    """Whether Gymnasium would count the value as a member; False where its test fails on it."""
    try:
        return _contains(space, value)
    except Exception:  # a value of another structure: no length, not iterable, not comparable
        return False


def _contains(space: Any, value: Any) -> bool:
    if isinstance(space, spaces.Box):
        array = value if isinstance(value, np.ndarray) else np.asarray(value, space.dtype)
        return bool(space.contains(array))
    if isinstance(space, spaces.Dict):
        parts = space.spaces
        return (
            isinstance(value, dict)
            and value.keys() == parts.keys()
            and all(_contains(parts[k], value[k]) for k in parts)
        )
    if isinstance(space, spaces.Tuple):
        same = isinstance(value, (tuple, list, np.ndarray)) and len(value) == len(space.spaces)
        return same and all(map(_contains, space.spaces, value))
    if isinstance(space, ONE_OF):
        index, item = value
        if not isinstance(value, tuple) or not isinstance(index, (int, np.int64)):
            return False
        return 0 <= int(index) < len(space.spaces) and _contains(space.spaces[index], item)
    if isinstance(space, spaces.Sequence):
        if space.stack:
            return all(_contains(space.feature_space, item) for item in iterate(space.stacked_feature_space, value))
        return isinstance(value, tuple) and all(_contains(space.feature_space, item) for item in value)
    if isinstance(space, spaces.Graph):
        return _contains_graph(space, value)
    return bool(space.contains(value))


def _contains_graph(space: Any, value: Any) -> bool:
    if not isinstance(value, spaces.GraphInstance) or value.nodes is None:
        return False
    nodes = list(iterate(space.batch_node_space, value.nodes))
    if not all(_contains(space.node_space, node) for node in nodes):
        return False
    links: Any = value.edge_links
    if value.edges is None or links is None:
        return value.edges is None and links is None
    if space.edge_space is None or not isinstance(links, np.ndarray):
        return False
    edges = list(iterate(space.batch_edge_space, value.edges))
    if links.dtype.kind not in "iu" or links.shape != (len(edges), 2):
        return False
    inside = bool(((links >= 0) & (links < len(nodes))).all())
    return inside and all(_contains(space.edge_space, edge) for edge in edges)
