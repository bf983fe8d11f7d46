"""Where two spaces differ, in words fit for an error message.

It follows Gymnasium's ``==``: no difference is reported exactly where the spaces are equal to it, so bounds that are
merely close count as the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agentenv.wire.oneof import ONE_OF


def first_difference(a: Space[Any], b: Space[Any]) -> str | None:
    """Say where two spaces differ first, such as ``"['pos']: low[2]: -1.0 against -2.0"``.

    Returns:
        The place and both values, or None if the spaces are equal.
    """
    found = _compare(a, b)
    if found is None and a != b:
        return f"{a} against {b}"
    return found


def _compare(a: Any, b: Any) -> str | None:
    if any(isinstance(a, kind) and isinstance(b, kind) for kind in _COMPOSITES):
        return _compare_parts(a, b)
    for kind, names in _ATTRIBUTES:
        if isinstance(a, kind) and isinstance(b, kind):
            return next(
                (text for name in names if (text := _attribute(name, getattr(a, name), getattr(b, name)))), None
            )
    if type(a) is not type(b):
        return f"{type(a).__name__} against {type(b).__name__}"
    return None if a == b else f"{a} against {b}"


_COMPOSITES: tuple[type, ...] = (spaces.Dict, spaces.Tuple, *ONE_OF, spaces.Sequence, spaces.Graph)
_ATTRIBUTES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (spaces.Box, ("dtype", "shape", "low", "high")),
    (spaces.Discrete, ("dtype", "n", "start")),
    (spaces.MultiBinary, ("n",)),
    (spaces.MultiDiscrete, ("dtype", "shape", "nvec", "start")),
    (spaces.Text, ("min_length", "max_length", "characters")),
)


def _attribute(name: str, a: Any, b: Any) -> str | None:
    if not isinstance(a, np.ndarray):
        return None if a == b else f"{name}: {a} against {b}"
    # Box.__eq__ is np.allclose for every dtype, the other spaces compare exactly.
    differing = ~np.isclose(a, b) if name in ("low", "high") else np.not_equal(a, b)
    if not differing.any():
        return None
    index = tuple(int(i) for i in np.argwhere(differing)[0]) if differing.ndim else ()
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{name}{place}: {a[index]} against {b[index]}"


def _compare_parts(a: Any, b: Any) -> str | None:
    ours, theirs = _parts(a), _parts(b)
    if list(ours) != list(theirs) and set(ours) != set(theirs):
        return f"{type(a).__name__} of {', '.join(ours) or 'nothing'} against {', '.join(theirs) or 'nothing'}"
    for name, part in ours.items():
        if (text := _compare(part, theirs[name])) is not None:
            return f"{name}: {text}"
    if isinstance(a, spaces.Sequence) and a.stack != b.stack:
        return f"stack: {a.stack} against {b.stack}"
    return None


def _parts(space: Any) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        return {f"[{key!r}]": part for key, part in space.spaces.items()}
    if isinstance(space, spaces.Sequence):
        return {"items": space.feature_space}
    if isinstance(space, spaces.Graph):
        return {"nodes": space.node_space} | ({} if space.edge_space is None else {"edges": space.edge_space})
    return {f"[{index}]": part for index, part in enumerate(space.spaces)}
