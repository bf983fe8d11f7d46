"""Starting keepers, and waiting until they answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from agentenv.boxes import kept
from agentenv.boxes.failures import from_record
from agentenv.boxes.plans import Plan
from agentenv.boxes.remote import RemoteAccess
from agentenv.errors import RuntimeUnavailable
from agentenv.images.progress import LINES, Report
from agentenv.sandbox.sweep import sweep

# It is no child of the process that asks for it: that one would have to wait for it. What it keeps has variables, and
# words of a command line are for everybody to see.
_BOOTSTRAP = (
    "import os, sys, json; c = json.loads(sys.stdin.buffer.read()); os.fork() and os._exit(0); sys.path[:] = c['path'];"
    " from agentenv.boxes.keeper_main import enter; enter(c)"
)
_END_S = 30.0
_TAIL = 4000


class _Starting:
    """A keeper that does not answer yet."""

    def __init__(self, plan: Plan) -> None:
        self.name = plan.spec.id
        self.pid = 0
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
        if "pid" in message:
            self.pid = int(message["pid"])
        elif "say" in message:
            report.say(str(message["say"]))
        elif "error" in message:
            self.error = from_record(message["error"])
        elif "ready" in message:
            self.ready = True

    def end(self) -> None:
        """Have it give up, and leave nothing of it."""
        os.close(self.fd)  # alone makes it give up; the signal is quicker
        self.fd = -1
        if not self.pid:
            return
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGTERM)
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                if not poller.poll(int(_END_S * 1000)):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    poller.poll()
                    sweep()
            finally:
                os.close(pidfd)
        kept.find_all()  # removes what is left of it

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
            for plan in plans:
                one = _Starting(replace(plan, spec=replace(plan.spec, **_absolute(plan))))
                starting.append(one)
                stack.callback(one.close)
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
            return [RemoteAccess(kept.find(one.name)) for one in starting]
        except BaseException:
            for one in starting:
                one.end()
            raise


def _absolute(plan: Plan) -> dict[str, Any]:
    """Files as paths that mean the same in another directory; anything else may be a name."""
    found = {}
    for key in ("kernel", "image"):
        value = getattr(plan.spec, key)
        if value is not None and ("/" in value or Path(value).exists()):
            found[key] = os.path.abspath(Path(value).expanduser())
    return found
