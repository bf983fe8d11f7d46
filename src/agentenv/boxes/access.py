"""What a sandbox is reached by, whether it is held by this process or by another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from agentenv.errors import Cause
from agentenv.sandbox.contract import Usage
from agentenv.sandbox.workbench import Shutdown, Stdio, Task

RUNNING, PAUSED, DIED, DESTROYED = "running", "paused", "died", "destroyed"
UNKNOWN = "unknown"
"""Of one whose keeper lives and cannot be understood."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a sandbox is.

    Attributes:
        id: Its name.
        state: "running", "paused", "died" or "destroyed"; of one with a keeper also "starting", or "unknown" where that
            does not answer in words we know.
        cause: Why it died, or why nothing is known, in words; "" otherwise.
        runtime: What runs it.
        image: As it was asked for; "" for the usual one.
        memory_mb: Its RAM.
        vcpu_count: Its processors.
        created_unix: Since when it is there, in seconds since 1970.
        origin: Id of the snapshot it was brought back from, or the name of the sandbox it is a copy of; "" for none.
        pid: The process of its machine.
        network: What it reaches: "none", "internet", or lists "allow" and "deny"; "" where nobody can say.
        network_mbps: Most megabits (10^6 bits) a second in each direction; None for no limit.
    """

    id: str
    state: str
    cause: str
    runtime: str
    image: str
    memory_mb: int
    vcpu_count: float
    created_unix: float
    origin: str
    pid: int
    network: str | Mapping[str, Sequence[str]] = "none"
    network_mbps: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


class Access(Protocol):
    """One sandbox. May be used by several threads.

    Attributes:
        id: Its name.
        kept: Whether it goes on when this process ends.
        destroyed: Whether it was destroyed by this object.
    """

    id: str
    kept: bool

    @property
    def destroyed(self) -> bool: ...

    def start(self, task: Task, stdio: Stdio) -> int:
        """See ``Workbench.start``; so for ``signal``, ``resize``, ``health``, ``pause`` and ``resume``."""

    def signal(self, number: int, signal: int) -> None: ...

    def resize(self, number: int, rows: int, columns: int) -> None: ...

    def health(self) -> Mapping[str, Any]: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def usage(self) -> Usage | None:
        """What it uses now, or None when it is gone."""

    def describe(self) -> Description:
        """What it is, and how it is."""

    def await_cause(self, timeout_s: float) -> Cause | None:
        """Why it died; waits so long for that, and returns None if it has not."""

    def snapshot(self, name: str | None, replace: bool) -> str:
        """Keep all of it in the store of snapshots; returns the snapshot's id.

        Args:
            name: What to call it; None for no name.
            replace: Whether an older one of this name loses it.
        """

    def fork(self, names: Sequence[str]) -> list[Access]:
        """Copies of it as it is now."""

    def destroy(self) -> None:
        """End it and free everything. Idempotent."""

    def shutdown(self, timeout_s: float) -> Shutdown:
        """End it in order, as ``Workbench.shutdown`` does, and free everything; that also where it fails.

        Raises:
            RuntimeUnavailable: It cannot go on, or its keeper knows nothing of this; it is as before.
        """
