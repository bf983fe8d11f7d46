"""The class OneOf where Gymnasium has it: it came with 1.0, and an image may have an older one."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

ONE_OF: tuple[type[Any], ...] = (spaces.OneOf,) if hasattr(spaces, "OneOf") else ()
"""For ``isinstance``; empty where there is no such class."""
