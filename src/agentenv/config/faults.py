"""A mistake before its place is known, and how a field's validator hands it to pydantic.

Pydantic carries the faults unopened; :mod:`agentenv.config.explain` takes them out again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import PydanticCustomError

Path = tuple[str | int, ...]
CUSTOM_TYPE = "agentenv"


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake at a path of the configuration, before it is known which line that is."""

    path: Path
    message: str
    hint: str = ""


def refusal(*faults: Fault) -> PydanticCustomError:
    """Pack faults, whose paths are relative to the field, into the exception pydantic collects."""
    text = "; ".join(fault.message for fault in faults)
    return PydanticCustomError(CUSTOM_TYPE, "{text}", {"text": text, "faults": faults})
