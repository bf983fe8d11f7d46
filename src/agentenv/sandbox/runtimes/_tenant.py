"""The process of an environment in a cell, as whoever steps it holds it: replaced by a copy, copied, found dead.

A cell has one tenant that it was made for, and further ones where the environment was forked.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from agentenv.errors import Cause, CauseKind, RuntimeUnavailable
from agentenv.guest.control import ControlClosed, send_message
from agentenv.sandbox.cause import classify
from agentenv.sandbox.contract import Output, SandboxSpec, Usage
from agentenv.sandbox.runtimes._cgroup import Cgroup
from agentenv.sandbox.runtimes._family import Parked, Worker, greet, make_control
from agentenv.sandbox.runtimes._report import Report
from agentenv.sandbox.runtimes._usage import host_oom_kills, read_usage

REPORT_S = 1.0


@dataclass(slots=True)
class Household:
    """What all tenants of a cell share.

    Attributes:
        log_id: Under which the cell's output is kept.
        output: Takes it.
        report: How processes ended.
        cgroup: Limits, or None.
        held: Whether the cell outlives the process it was made for.
        branches: Tenants besides the first that are not gone.
        shell_alive: Whether the outer sandbox still runs; None where that is not known.
        oom_kills: Kills by the memory limit that are accounted for.
        host_oom_kills: What the whole machine had counted when the cell was made.
    """

    log_id: str
    output: Output
    report: Report
    cgroup: Cgroup | None
    held: bool = False
    branches: int = 0
    shell_alive: Callable[[], bool] | None = None
    oom_kills: int = 0
    host_oom_kills: int = field(default_factory=host_oom_kills)

    def hold(self) -> None:
        """Have the cell outlive the process it was made for."""
        if not self.held:
            self.held = True
            self.report.hold()

    def tail(self) -> str:
        """The last lines of its output."""
        self.output.drain(self.log_id)
        return self.output.tail(self.log_id)


class Tenant:
    """What every kind of sandbox in a cell does alike; see ``agentenv.sandbox.contract.Sandbox`` and ``Copying``."""

    def __init__(self, spec: SandboxSpec, house: Household) -> None:
        """Make the control socket.

        Raises:
            OSError: No descriptor is left.
        """
        self.spec = spec
        self.introductions: list[dict[str, Any]] = []
        self.last_usage: Usage | None = None
        self.control: socket.socket
        self.guest_end: socket.socket
        self.control, self.guest_end = make_control()
        self._house = house
        self._first = -1  # pidfd of the cell's first process
        self._worker: Worker | None = None
        self._reason: Cause | None = None
        self._cause: Cause | None = None

    @property
    def log_id(self) -> str:
        """Under which its output is kept."""
        return self._house.log_id

    @property
    def copying(self) -> Self:
        """By itself."""
        return self

    @property
    def workbench(self) -> None:
        """It has none."""
        return None

    @property
    def pidfd(self) -> int:
        """Becomes readable when it ends; see the contract."""
        return self._first if self._worker is None else self._worker.pidfd

    def first(self) -> int:
        """The number of the cell's first process, whose children carry its environments; 0 when it has ended."""
        raise NotImplementedError  # the cell's

    def await_end(self, timeout_s: float) -> None:
        """Wait until it has ended and said how; see the contract."""
        if self.pidfd < 0:
            return  # it was destroyed
        if self._house.held and self._worker is not None:
            if self._worker.wait(timeout_s):
                self._house.report.exit_of(self._worker.inner, 0.2)
        elif self._first >= 0:
            ended(self._first, timeout_s)

    def cause(self) -> Cause:
        """Why it ended; see the contract."""
        if self._cause is None:
            self.await_end(REPORT_S)
            house = self._house
            stats = house.cgroup.stats() if house.cgroup is not None else None
            self.last_usage = None if stats is None else read_usage(stats)
            # A memory controller counts exactly; the machine's figure stands in where there is none.
            counted = stats is not None and bool(stats.memory_peak_bytes or stats.charged_bytes)
            found = classify(
                house.report.exit_of(self._worker.inner if self._worker is not None else None),
                oom_kills=stats.oom_kills - house.oom_kills if stats is not None else 0,
                memory_mb=self.spec.memory_mb,
                memory_peak_bytes=stats.memory_peak_bytes if stats is not None else 0,
                host_oom_kills=0 if counted else host_oom_kills() - house.host_oom_kills,
                shell_alive=None if house.shell_alive is None else house.shell_alive(),
                output=house.tail(),
            )
            # A reason was given while it lived: an exit reported all the same came after it.
            if self._reason is not None and not found.oom_kills:
                found = self._reason
            if found.kind is CauseKind.OUT_OF_MEMORY and stats is not None:
                house.oom_kills = stats.oom_kills
            self._cause = found
        return self._cause

    def order_park(self) -> Parked:
        """Tell the environment's process, which is asked for a copy next, to park it; see the contract."""
        parked = Parked()
        try:
            send_message(self.control, {"park": True}, [parked.theirs.fileno()])
        except (ControlClosed, OSError):
            parked.drop()
            raise
        return parked

    def order_copy(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Order the environment's process, which is asked for a copy next, to make one that serves."""
        send_message(self.control, {"serve": dict(message)}, fds)

    def settle(self, parked: Parked) -> None:
        """Take hold of a parked copy that was made; see the contract."""
        parked.hello(self.first)
        parked.house = self._house
        self._house.hold()

    def shelters(self, parked: Parked) -> bool:
        """Whether a parked copy is one of this cell's."""
        return parked.house is self._house

    def renew_control(self) -> None:
        """Make a new control socket, for ``serve_from``."""
        self.control.close()
        self.guest_end.close()
        self.control, self.guest_end = make_control()

    def serve_from(self, parked: Parked, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Have a parked copy copied in place of the environment's process; see the contract."""
        try:
            parked.order(message, [self.guest_end.fileno(), *fds])
        except (ControlClosed, OSError) as error:
            raise RuntimeUnavailable(f"the parked copy of {self.spec.id!r} is gone") from error
        finally:
            self.guest_end.close()
        self._take_over(greet(self.control, self.first))

    def _take_over(self, worker: Worker) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.close()
        self._worker = worker
        self._house.report.watch(worker.inner)
        self._reason = self._cause = None


def ended(pidfd: int, timeout_s: float) -> bool:
    """Wait for the end of a process; whether it has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(timeout_s * 1000)))
