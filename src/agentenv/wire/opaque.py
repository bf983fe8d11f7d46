"""What is left of a value that may not cross the boundary: its name and its description."""

from __future__ import annotations

from dataclasses import dataclass

TEXT_LIMIT = 1024


@dataclass(frozen=True)
class Opaque:
    """An object of a type that is not sent, as text.

    Attributes:
        type_name: ``module.QualifiedName`` of its class.
        text: Its repr, cut to 1024 characters; says so where the repr itself failed.
    """

    type_name: str
    text: str


def describe_object(value: object) -> Opaque:
    """Describe an object without trusting its repr to work."""
    kind = type(value)
    try:
        type_name = f"{kind.__module__}.{kind.__qualname__}"[:TEXT_LIMIT]
    except Exception:  # a metaclass may do anything
        type_name = "unknown"
    try:
        text = repr(value)[:TEXT_LIMIT]
    except Exception as error:
        text = f"<its repr raised {type(error).__name__}>"
    return Opaque(type_name, text)
