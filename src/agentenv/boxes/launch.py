"""Starting keepers, and waiting until they answer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import psutil

from agentenv.boxes import kept
from agentenv.boxes.failures import from_record
from agentenv.boxes.holding import has_ended, holding
from agentenv.boxes.plans import Plan
from agentenv.boxes.remote import RemoteAccess
from agentenv.errors import ResourceLimit, RuntimeUnavailable, counted
from agentenv.fleet.descriptors import in_words
from agentenv.fleet.owner import Owner
from agentenv.images.progress import LINES, Report
from agentenv.sandbox.sweep import sweep

# It is no child of the process that asks for it: that one would have to wait for it. What it keeps has variables, and
# words of a command line are for everybody to see.
_BOOTSTRAP = (
    "import os, sys, json; c = json.loads(sys.stdin.buffer.read()); os.fork() and os._exit(0); sys.path[:] = c['path'];"
    " from agentenv.boxes.keeper_main import enter; enter(c)"
)
_END_S = 30.0
_OWNER_S = 10.0
_AT_ONCE = 8
_LEAST_MB = 80
"""What a keeper and a monitor take that copies do not share (benchmarks/vm.py), rounded down."""
_TAIL = 4000


class _Starting:
    """A keeper that does not answer yet."""

    def __init__(self, plan: Plan) -> None:
        self.name = plan.spec.id
        self.owner: Owner | None = None
        self.ready = False
        self.error: Exception | None = None
        self._held = b""
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self.fd, writer = os.pipe()
        config = {
            "path": [os.path.abspath(path) for path in sys.path if path and "\0" not in path],
            "fd": writer,
            "plan": plan.to_record(),
        }
        try:
            subprocess.run(
                [sys.executable, "-s", "-P", "-c", _BOOTSTRAP, self.name],  # the name is for people
                input=json.dumps(config).encode(),
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(writer,),
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            if (limit := in_words(error)) is not None:
                raise limit from error
            raise RuntimeUnavailable(f"cannot start {sys.executable}: {error}") from error
        except BaseException:
            self.close()
            raise
        finally:
            os.close(writer)

    def hear(self, report: Report) -> None:
        """Take in what it says."""
        part = os.read(self.fd, 1 << 16)
        *lines, self._held = (self._held + part).split(b"\n")
        for line in lines:
            self._take(json.loads(line), report)
        if not part and not self.ready and self.error is None:
            self._stderr.seek(0)
            said = self._stderr.read()[-_TAIL:].decode(errors="replace").strip()
            self.error = RuntimeUnavailable(f"the keeper of sandbox {self.name!r} ended while starting: {said}")

    def _take(self, message: Mapping[str, Any], report: Report) -> None:
        if "owner" in message:
            self.owner = Owner.from_record(message["owner"])
        elif "say" in message:
            report.say(str(message["say"]))
        elif "error" in message:
            self.error = from_record(message["error"])
        elif "ready" in message:
            self.ready = True

    def end(self) -> None:
        """Have it give up, and leave nothing of it."""
        self._catch_up()
        os.close(self.fd)  # alone makes it give up; the signal is quicker
        self.fd = -1
        if self.owner is None:
            return
        with holding(self.owner) as pidfd, contextlib.suppress(ProcessLookupError):
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                if not has_ended(pidfd, _END_S):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    has_ended(pidfd, _END_S)
                    sweep()
        kept.find_all()  # removes what is left of it

    def _catch_up(self) -> None:
        """See who it is: one that is ready already goes on by itself, whoever listens."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        with contextlib.suppress(Exception):  # whatever it says, it ends
            while self.owner is None and self.error is None and poller.poll(_OWNER_S * 1000):
                self.hear(LINES)

    def close(self) -> None:
        """Stop listening."""
        self._stderr.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def launch(plans: Sequence[Plan], report: Report = LINES) -> list[RemoteAccess]:
    """Start sandboxes that go on without this process, all or none.

    Args:
        plans: What to start.
        report: Told of what takes long.

    Raises:
        ConfigError: A name is taken.
        RuntimeUnavailable, SandboxDied, StepTimeout: As when one is made in this process.
    """
    starting: list[_Starting] = []
    with contextlib.ExitStack() as stack:
        try:
            for first in range(0, len(plans), _AT_ONCE):
                some = plans[first : first + _AT_ONCE]
                for plan in some:
                    starting.append(_Starting(replace(plan, spec=replace(plan.spec, **_absolute(plan)))))
                    stack.callback(starting[-1].close)
                _await_all(starting[first:], report)
                if len(plans) > _AT_ONCE:
                    report.say(f"{len(starting)} of {len(plans)} sandboxes are there")
            return [RemoteAccess(kept.find(one.name)) for one in starting]
        except BaseException:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(_Starting.end, starting))
            raise


def _await_all(starting: Sequence[_Starting], report: Report) -> None:
    """Listen until all answer, or one cannot.

    Raises:
        Exception: What that one says.
    """
    poller = select.poll()
    waiting = {one.fd: one for one in starting}
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    while waiting:
        for fd, _ in poller.poll():
            one = waiting[fd]
            one.hear(report)
            if one.error is not None:
                raise one.error
            if one.ready:
                poller.unregister(fd)
                del waiting[fd]


def expect_memory(count: int) -> None:
    """See that the host has room for what each takes in any case, before any is there.

    Raises:
        ResourceLimit: It has not.
    """
    free = psutil.virtual_memory().available >> 20
    if count * _LEAST_MB > free:
        raise ResourceLimit(
            errno.ENOMEM,
            f"expected memory for {counted(count, 'sandbox', 'sandboxes')}, of which each takes {_LEAST_MB} MB at"
            f" least, and {free} MB of this host's memory are free; ask for {free // _LEAST_MB} at most",
        )


def _absolute(plan: Plan) -> dict[str, Any]:
    """Files as paths that mean the same in another directory; anything else may be a name."""
    found = {}
    for key in ("kernel", "image"):
        value = getattr(plan.spec, key)
        if value is not None and ("/" in value or Path(value).is_file()):  # a directory may have the name of an image
            found[key] = os.path.abspath(Path(value).expanduser())
    return found
