"""A stand-in for a space whose class only the sandbox has.

Environments define spaces of their own (MiniGrid's ``MissionSpace`` is one). The host must not import that class, so it
keeps the name and the description as text. The stand-in is compared by these, lets any value of the codec through, and
refuses to invent samples.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from gymnasium import Space


class ForeignSpace(Space[Any]):
    """A space known by name only.

    Attributes:
        type_name: ``module.QualifiedName`` of the space's class in the sandbox.
        text: Its repr there.
    """

    def __init__(self, type_name: str, text: str, dtype: np.dtype[Any] | None = None) -> None:
        """Name a space; ``dtype`` is what the space declared, where that is of text or numbers."""
        super().__init__(None, dtype)
        self.type_name = type_name
        self.text = text

    @property
    def is_np_flattenable(self) -> bool:
        """Always False: its values may be anything."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> NoReturn:
        """Refuse: only the class in the sandbox knows how.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"{self.type_name} exists only inside the sandbox, so the host cannot sample from it")

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a str where the space declares text; True for every value otherwise."""
        return isinstance(x, str) if self.dtype is not None and self.dtype.kind == "U" else True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForeignSpace) and (self.type_name, self.text, self.dtype) == (
            other.type_name,
            other.text,
            other.dtype,
        )

    __hash__ = None  # type: ignore[assignment]  # as Python does where __eq__ is

    def __repr__(self) -> str:
        return f"ForeignSpace({self.text})"
