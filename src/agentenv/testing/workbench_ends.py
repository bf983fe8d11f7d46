"""The promises of a workbench about an orderly end; each of these tests ends a sandbox of its own."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentenv.errors import CauseKind, ClosedError
from agentenv.fleet.context import RunContext
from agentenv.sandbox.contract import Sandbox
from agentenv.sandbox.workbench import Shutdown, Task, Workbench
from agentenv.testing.leftovers import becomes_true
from agentenv.testing.workbench_ground import END_S, Running, WorkbenchGround, run

_STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
_PIPE, _WINDOW = 1 << 16, 1 << 18
_LAST = _PIPE + _WINDOW // 2
"""Bytes that a pipe does not hold, and that can be on their way without anybody reading."""


class _Ender:
    """A shutdown in a thread of its own."""

    def __init__(self, bench: Workbench, timeout_s: float) -> None:
        self.done: Shutdown | None = None
        self._bench, self._timeout_s = bench, timeout_s
        self._thread = threading.Thread(target=self._end)
        self._thread.start()

    def _end(self) -> None:
        self.done = self._bench.shutdown(self._timeout_s)

    def join(self) -> Shutdown | None:
        self._thread.join(END_S)
        return self.done


class WorkbenchEnds(WorkbenchGround):
    """See the module; part of ``WorkbenchSuite``."""

    @contextmanager
    def _ending(self, context: RunContext) -> Iterator[tuple[Sandbox, Workbench]]:
        (sandbox,) = context.runtime.create([self._spec(context, "ending")], context.output)
        try:
            assert sandbox.workbench is not None
            yield sandbox, sandbox.workbench
            assert not sandbox.alive()
            assert sandbox.cause().kind is CauseKind.CLOSED
        finally:
            sandbox.destroy()

    def test_programs_end_by_themselves(self, context: RunContext) -> None:
        """Each counts once: with its children, where it was stopped, and where its first process ended long ago."""
        with self._ending(context) as (_, bench):
            run(bench, "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &")
            script = "trap 'echo caught; echo to itself >&2; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
            polite = Running(bench, Task(("sh", "-c", script)))
            plain = Running(bench, Task(("sh", "-c", "sleep 1001 & sleep 1002 & echo ready; wait")))
            assert (polite.line(), plain.line()) == (b"ready\n", b"ready\n")
            stopped = Running(bench, Task(("sh", "-c", "trap 'exit 4' TERM; echo $$; kill -STOP $$")))
            status = f"/proc/{int(stopped.line())}/status"
            run(bench, "sh", "-c", f"until grep -q 'State:.T' {status}; do sleep 0.05; done")
            assert bench.shutdown(END_S) == Shutdown(ended=4, killed=0)
            done = polite.end()
            assert (done.status, done.stdout) == ({"exit": 3}, b"caught\n")
            assert done.stderr.endswith(b"to itself\n")  # after what the shell says of the end of its child
            assert plain.end().status == {"signal": int(signal.SIGTERM)}
            assert stopped.end().status == {"exit": 4}

    def test_those_that_do_not_are_killed(self, context: RunContext) -> None:
        with self._ending(context) as (_, bench):
            run(bench, "sh", "-c", "trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 &")
            stubborn = Running(bench, Task(("sh", "-c", _STUBBORN)))
            assert stubborn.line() == b"ready\n"
            assert bench.shutdown(0.5) == Shutdown(ended=0, killed=2)
            assert stubborn.end().status == {"signal": int(signal.SIGKILL)}

    def test_last_words_are_waited_for(self, context: RunContext) -> None:
        """Whoever reads late finds all of them, and the machine does not end before."""
        script = f"trap 'head -c {_LAST} /dev/zero; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        with self._ending(context) as (sandbox, bench):
            running = Running(bench, Task(("sh", "-c", script)))
            assert running.line() == b"ready\n"
            ender = _Ender(bench, END_S)
            with open(running.status, "rb", closefd=False) as file:
                assert json.loads(file.read()) == {"exit": 5}
            assert not becomes_true(lambda: not sandbox.alive(), 2.0)
            assert len(running.end().stdout) == _LAST
            assert ender.join() == Shutdown(ended=1, killed=0)

    def test_one_that_stands_still_goes_on_for_it(self, context: RunContext) -> None:
        with self._ending(context) as (_, bench):
            running = Running(bench, Task(("sh", "-c", "trap 'echo bye; exit 6' TERM; echo ready; read -r word")), None)
            assert running.line() == b"ready\n"
            bench.pause()
            assert bench.shutdown(END_S) == Shutdown(ended=1, killed=0)
            done = running.end()
            assert (done.status, done.stdout) == ({"exit": 6}, b"bye\n")

    def test_meanwhile_nothing_begins_and_what_runs_can_be_signalled(self, context: RunContext) -> None:
        with self._ending(context) as (_, bench):
            stubborn = Running(bench, Task(("sh", "-c", _STUBBORN)))
            assert stubborn.line() == b"ready\n"
            ender = _Ender(bench, END_S)
            assert becomes_true(lambda: _is_refused(bench), END_S)
            with pytest.raises(ClosedError, match="shut down"):
                bench.pause()
            with pytest.raises(ClosedError, match="shut down"):
                bench.shutdown(1.0)
            assert bench.health()["tasks"] >= 1
            bench.signal(stubborn.number, signal.SIGKILL)
            assert ender.join() == Shutdown(ended=1, killed=0)
            assert stubborn.end().status == {"signal": int(signal.SIGKILL)}

    def test_what_multiplies_is_killed(self, context: RunContext) -> None:
        bomb = "trap '' TERM; echo ready; bomb() { bomb | bomb & }; bomb; while :; do sleep 0.05; done"
        with self._ending(context) as (_, bench):
            running = Running(bench, Task(("sh", "-c", bomb)))
            assert running.line() == b"ready\n"
            assert bench.shutdown(1.0) == Shutdown(ended=0, killed=1)
            running.end()


def _is_refused(bench: Workbench) -> bool:
    try:
        run(bench, "true")
    except ClosedError:
        return True
    return False
