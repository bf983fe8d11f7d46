"""What an environment said about itself, judged field by field before anything believes it.

It was written by the other side: every field may be of any type, absent or absurd. What cannot be used harmlessly
(spaces) is refused; what is only for show (metadata, names) is dropped when it is not what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from agentenv.wire.spaces import first_difference, rebuild

_SPEC_ID = re.compile(r"(?:[\w-]{1,100}/)?[\w.-]{1,100}-v\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Introduction:
    """An environment's description of itself, with the types it should have.

    Attributes:
        observation_space, action_space: Rebuilt on the host.
        metadata: Plain data; ``render_modes``, where present, is a list of texts.
        render_mode: As Gymnasium's, or None.
        spec_id: Gymnasium id, or None.
        max_episode_steps: The limit of its registration, or None.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    spec_id: str | None
    max_episode_steps: int | None

    def other_space(self, expected: Introduction) -> tuple[str, str] | None:
        """Which space is another one than expected, and how it differs; None where both are the same."""
        for kind, mine, theirs in (
            ("observation_space", expected.observation_space, self.observation_space),
            ("action_space", expected.action_space, self.action_space),
        ):
            if theirs != mine:
                return kind, str(first_difference(mine, theirs))
        return None


def read_introduction(record: Mapping[str, Any], *, max_bytes: int) -> Introduction:
    """Judge one introduction.

    Args:
        record: What came out of JSON.
        max_bytes: Most memory each space may need: an environment cannot hold a larger one than its own limit.

    Raises:
        ProtocolError: A space is malformed or too large.
    """
    metadata = record.get("metadata")
    plain = dict(metadata) if isinstance(metadata, dict) else {}
    modes = plain.get("render_modes")
    if modes is not None and not (isinstance(modes, list) and all(isinstance(mode, str) for mode in modes)):
        del plain["render_modes"]
    render_mode, spec_id, limit = (record.get(key) for key in ("render_mode", "spec_id", "max_episode_steps"))
    return Introduction(
        rebuild(record.get("observation_space"), max_bytes=max_bytes),
        rebuild(record.get("action_space"), max_bytes=max_bytes),
        plain,
        render_mode if isinstance(render_mode, str) else None,
        spec_id if isinstance(spec_id, str) and _SPEC_ID.fullmatch(spec_id) else None,
        limit if type(limit) is int and limit > 0 else None,
    )
