"""A machine that Firecracker runs: its stream, its pauses, its snapshots."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.files import copy_memory, make_holes, written_whole
from agentenv.sandbox.runtimes._vm.machine import MachineSpec
from agentenv.sandbox.runtimes._vm.monitor import Monitor, MonitoredMachine, address_of
from agentenv.sandbox.runtimes._vm.saved import Saved
from agentenv.sandbox.runtimes.firecracker.api import Api, ApiError
from agentenv.sandbox.runtimes.firecracker.jail import VSOCK_SOCKET, Place

MEMORY, STATE = "memory", "state"
_KEPT = "kept."
"""In front of the names of a snapshot's files while Firecracker writes them: it must not write over those it was
brought back from."""
PORT = 1024
_LOOK_S = 0.01
_LONGEST_LOOK_S = 0.1
_ATTEMPT_S = 2.0
_LOAD_S = 60.0
_SNAPSHOT_S = 60.0
_SLOW_BYTES_PER_S = 20 << 20
_MOST_ANSWER = 64


_MUTE_RELEASES = (1, 16)


def goes_on_from_snapshots_only(version: str) -> bool:
    """Whether a paused machine of this Firecracker answers no stream any more unless a snapshot was made meanwhile.

    1.16 carries nothing to a machine that goes on before that has seen the order to reset its streams, and gives the
    order with a snapshot alone; https://github.com/firecracker-microvm/firecracker/pull/6100 came after 1.16.1. A later
    1.16 may have it; a snapshot more does it no harm.
    """
    return tuple(map(int, re.findall(r"\d+", version)[:2])) == _MUTE_RELEASES


class FirecrackerMachine(MonitoredMachine):
    """See ``agentenv.sandbox.runtimes._vm.machine.Machine``."""

    def __init__(
        self,
        spec: MachineSpec,
        home: Path,
        monitor: Monitor,
        place: Place,
        saved: Saved,
        explain: Callable[[str], str],
    ) -> None:
        """Take over a Firecracker that was started.

        Args:
            spec: What was asked.
            home: Its directory.
            monitor: Its process.
            place: Where it runs; owned from here on.
            saved: How a snapshot of it is described.
            explain: The remedy for what it says.
        """
        super().__init__(spec, home, monitor)
        self.api = Api(place.root, "api.sock")
        self._place = place
        self._saved = saved
        self._explain = explain
        self._reset_due = False
        self._told_to_reset = True

    def connect(self, timeout_s: float) -> socket.socket:
        """A stream to the agent; see the contract.

        A machine that goes on after a snapshot, and one that is brought back, ends all its streams as soon as it looks
        at its device; before Firecracker 1.16, what connects earlier is lost with them. It looks at streams and at that
        order in turn: so once one stream was answered, the next one lasts. The first is given up.
        """
        deadline = time.monotonic() + timeout_s
        pause = _LOOK_S
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"machine {self.spec.id!r}: no agent listened on port {PORT} within {timeout_s:g} s")
            # A request that reached the machine before it could answer is never answered: hence an end to each.
            stream = self._try_connect(min(left, _ATTEMPT_S))
            if stream is not None:
                if not self._reset_due:
                    return stream
                stream.close()
                self._reset_due = False
                continue
            if self._monitor.await_end(min(pause, max(0.0, deadline - time.monotonic()))):
                raise self._gone()
            pause = min(pause * 1.5, _LONGEST_LOOK_S)

    def pause(self) -> None:
        """Stop its processors."""
        self.call("PATCH", "/vm", {"state": "Paused"})
        self._told_to_reset = False

    def resume(self) -> None:
        """Let them go on.

        Where Firecracker needs a snapshot in between (``goes_on_from_snapshots_only``), one is written that nobody
        keeps. If there is no room for it, the machine stays as it is: paused.
        """
        if not self._told_to_reset and goes_on_from_snapshots_only(self._saved.version):
            with self._snapshot():
                pass
        self.call("PATCH", "/vm", {"state": "Resumed"})

    def snapshot(self, directory: Path, *, durable: bool = True) -> None:
        """Write all of it but its drives; see the contract."""
        self._expect_paused()
        with written_whole(directory, durable=durable) as partial:
            with self._snapshot():
                for name in (MEMORY, STATE):
                    _take(self._place.root / (_KEPT + name), partial / name)
            self._saved.write(partial)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Have Firecracker write a snapshot's files into its root; they are there until the end of the block."""
        body = {"snapshot_type": "Full", "snapshot_path": _KEPT + STATE, "mem_file_path": _KEPT + MEMORY}
        timeout_s = _SNAPSHOT_S + (self.spec.memory_mb << 20) / _SLOW_BYTES_PER_S
        try:
            self._reset_due = True
            self.call("PUT", "/snapshot/create", body, timeout_s=timeout_s)
            self._told_to_reset = True
            yield
        finally:
            for name in (MEMORY, STATE):
                (self._place.root / (_KEPT + name)).unlink(missing_ok=True)

    def ballooned_mb(self) -> int:
        """What its balloon holds; see the contract."""
        if not self.spec.balloon_mb:
            return 0
        return int(self.call("GET", "/balloon/statistics", None)["actual_mib"])

    def load(self, body: Mapping[str, Any]) -> None:
        """Bring it back; its Firecracker has done nothing yet."""
        self.call("PUT", "/snapshot/load", body, timeout_s=_LOAD_S)
        self._reset_due = True

    def close(self) -> None:
        """End it and free everything; see the contract."""
        super().close()
        self._place.clear()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float = 30.0) -> Any:
        """Have Firecracker do something; what it answers.

        Raises:
            RuntimeUnavailable: It refuses.
            ConnectionError: It has ended.
            TimeoutError: It did not answer in time.
            OSError: There is no room.
        """
        try:
            return self.api.request(method, path, body, timeout_s=timeout_s)
        except ApiError as error:
            if "os error 28" in error.text:
                raise OSError(
                    errno.ENOSPC, f"machine {self.spec.id!r}: no space left for {path}: {error.text}"
                ) from error
            raise RuntimeUnavailable(
                f"machine {self.spec.id!r}: Firecracker refused {error}", self._explain(error.text)
            ) from error
        except TimeoutError as error:
            raise TimeoutError(f"machine {self.spec.id!r}: {method} {path} not done after {timeout_s:g} s") from error
        except OSError as error:
            raise self._gone() from error

    def _expect_paused(self) -> None:
        found = self.call("GET", "/", None)
        if not isinstance(found, dict) or found.get("state") != "Paused":
            raise RuntimeUnavailable(
                f"machine {self.spec.id!r}: expected a paused one to make a snapshot of, it is {found}",
                "pause it first",
            )

    def _try_connect(self, timeout_s: float) -> socket.socket | None:
        stream = socket.socket(socket.AF_UNIX)
        try:
            stream.settimeout(timeout_s)
            with address_of(self._place.root, VSOCK_SOCKET) as address:
                stream.connect(address)
            stream.sendall(f"CONNECT {PORT}\n".encode())
            answer = b""
            # One byte at a time: what follows the line is the agent's.
            while not answer.endswith(b"\n") and len(answer) < _MOST_ANSWER:
                byte = stream.recv(1)
                if not byte:
                    break
                answer += byte
            if answer.startswith(b"OK ") and answer.endswith(b"\n"):
                stream.settimeout(None)
                return stream
        except OSError:
            pass
        except BaseException:
            stream.close()
            raise
        stream.close()
        return None


def _take(source: Path, target: Path) -> None:
    """Move a file Firecracker wrote, ours from now on, and without the pages that hold only zeros."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
        return
    fd = os.open(target, os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.geteuid() == 0:
            # The group stays: a jailed Firecracker reads it by that.
            os.fchown(fd, 0, -1)
        os.fchmod(fd, 0o640)
        with contextlib.suppress(OSError):
            make_holes(fd)
    finally:
        os.close(fd)


def _copy(source: Path, target: Path) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            if os.geteuid() == 0:
                os.fchown(writer, 0, os.fstat(reader).st_gid)
            copy_memory(reader, writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)
