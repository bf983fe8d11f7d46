"""Conformance suites to run over your own environment, runtime or channel.

``check_parity`` and ``check_single_parity`` are functions for any environment; ``ChannelSuite`` and ``RuntimeSuite``
are classes of tests to subclass with one fixture. Nothing in agentenv imports this package, and importing it imports
nothing: the parts need pytest, hypothesis or neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentenv.testing.channels import ChannelSuite as ChannelSuite
    from agentenv.testing.envs import Parity as Parity
    from agentenv.testing.envs import check_parity as check_parity
    from agentenv.testing.envs import check_single_parity as check_single_parity
    from agentenv.testing.exact import assert_same as assert_same
    from agentenv.testing.runtimes import RuntimeSuite as RuntimeSuite

_NAMES = {
    "ChannelSuite": "channels",
    "Parity": "envs",
    "RuntimeSuite": "runtimes",
    "assert_same": "exact",
    "check_parity": "envs",
    "check_single_parity": "envs",
}

__all__ = list(_NAMES)  # names of strings


def __getattr__(name: str) -> Any:
    """Import on first use."""
    if name in _NAMES:
        return getattr(importlib.import_module(f"agentenv.testing.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'agentenv.testing' has no attribute {name!r}")
