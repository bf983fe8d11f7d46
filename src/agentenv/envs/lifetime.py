"""What holds living sandboxes: one block long where it is used in ``with``, and never a copy."""

from __future__ import annotations

from typing import Any, NoReturn, Self


class Lifetime:
    """A part of ``AgentENV`` and ``AgentVectorEnv``, whose ``close`` it calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: Any) -> Any:
        self.close()  # type: ignore[attr-defined]  # of the class this is a part of

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"an {name} holds living sandboxes and can be neither pickled nor copied: make another")
