"""A forked environment: a process of its own in the cell of the one it was forked from.

It shares that cell's limits, files and output, and lives no longer than it. To whoever steps it, it is a sandbox like
any other; started again after the loss of the cell, it gets one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentenv.errors import Cause
from agentenv.sandbox.contract import Order, SandboxSpec, Usage
from agentenv.sandbox.runtimes._family import greet
from agentenv.sandbox.runtimes._tenant import Household, Tenant
from agentenv.sandbox.runtimes._usage import read_usage


class Home(Protocol):
    """What is needed of the cell."""

    pid: int

    def first(self) -> int:
        """See ``Tenant.first``."""

    def leave(self) -> None:
        """A branch is gone."""


class Branch(Tenant):
    """See the module."""

    def __init__(
        self,
        spec: SandboxSpec,
        source: Tenant,
        house: Household,
        home: Home,
        order: Order,
    ) -> None:
        """Prepare; ``attach`` makes the copy.

        Args:
            spec: Of the environment, under an id of its own.
            source: Whose process is copied.
            house: The cell's.
            home: The cell.
            order: Has the copy made: it serves with the attach message and the descriptors it is given.
        """
        super().__init__(spec, house)
        self.pid = home.pid
        self.introductions = source.introductions
        self._home, self._order = home, order
        self._destroyed = False
        house.branches += 1
        house.hold()

    def attach(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Have the copy made, and hand over shared memory and bells; see the contract."""
        try:
            self._order(message, [self.guest_end.fileno(), *fds])
        finally:
            self.guest_end.close()
        self._take_over(greet(self.control, self.first))

    def branch(self, spec: SandboxSpec, order: Order) -> Branch:
        """A further tenant of the cell, whose process is copied from this one's; see the contract."""
        return Branch(spec, self, self._house, self._home, order)

    def first(self) -> int:
        """As the cell says."""
        return self._home.first()

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._worker is not None and self._worker.alive()

    def kill(self, reason: Cause | None = None) -> None:
        """End its process at once; see the contract."""
        if self._worker is not None and self._worker.pidfd >= 0:
            if reason is not None and self._reason is None and self.alive():
                self._reason = reason
            self._worker.kill()
            self._worker.wait(10.0)

    def usage(self) -> Usage | None:
        """What its process uses now, or None when it is gone."""
        return read_usage([self._worker.pid]) if self._worker is not None and self.alive() else None

    @property
    def destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._destroyed

    def destroy(self) -> None:
        """End its process and let go of the cell; see the contract."""
        if self._destroyed:
            return
        self._destroyed = True
        self.kill()
        if self._worker is not None:
            self._worker.close()
        self.control.close()
        self.guest_end.close()
        self._home.leave()
