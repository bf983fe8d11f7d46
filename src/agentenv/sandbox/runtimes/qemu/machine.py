"""A machine that QEMU runs, and its snapshots.

Its RAM is a file without a name, shared with QEMU; so a snapshot copies the pages that were touched while QEMU keeps
still, and has QEMU write only the state of its devices, some 100 KB. A machine that is brought back maps the memory
of the snapshot for itself, copy-on-write: nothing is read before it is used, and what nobody changes is shared by all.
A snapshot of such a machine is a copy of that memory with the pages it has changed; where we may not look into QEMU's
process, QEMU sends all of it through a pipe, which takes longer.

The state is written by ``xen-save-devices-state``, which despite its name has nothing to do with Xen: it is the
command that writes the state of everything but RAM and drives. (The other way to leave out RAM, migrating with
``x-ignore-shared``, would write all of it where it is not shared, as it is not in machines that were brought back.) It
writes no section that describes the machine, so QEMU is told not to expect one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.files import receive_memory, written_whole
from agentenv.sandbox.runtimes._vm.machine import MachineSpec
from agentenv.sandbox.runtimes._vm.monitor import Monitor, MonitoredMachine, address_of
from agentenv.sandbox.runtimes._vm.saved import Saved
from agentenv.sandbox.runtimes.qemu.command import AGENT, AGENT_SOCKET
from agentenv.sandbox.runtimes.qemu.qmp import Qmp, QmpError
from agentenv.sandbox.runtimes.qemu.ram import Ram
from agentenv.sandbox.runtimes.qemu.vsock import Line

MEMORY, STATE = "memory", "state"
_LOOK_S = 0.005
_LONGEST_LOOK_S = 0.1
_ANSWER_S = 30.0
_LOAD_S = 60.0
_SLOW_BYTES_PER_S = 50 << 20
# A microvm's RAM lies from 0 to 3 GiB, and what is more from 4 GiB on.
_LOW, _HIGH = 3 << 30, 4 << 30


class QemuMachine(MonitoredMachine):
    """See ``agentenv.sandbox.runtimes._vm.machine.Machine``."""

    def __init__(
        self, spec: MachineSpec, home: Path, monitor: Monitor, qmp: Qmp, ram: Ram, saved: Saved, line: Line | None
    ) -> None:
        """Take over a QEMU that was started and answers.

        Args:
            spec: What was asked.
            home: Its directory.
            monitor: Its process.
            qmp: Its control connection.
            ram: Its RAM; owned from here on.
            saved: How a snapshot of it is described.
            line: On which its agent calls, owned from here on; None where there is a serial port.
        """
        super().__init__(spec, home, monitor)
        self._qmp = qmp
        self._ram = ram
        self._saved = saved
        self._line = line

    def connect(self, timeout_s: float) -> socket.socket:
        """A stream to the agent, one at a time: a further one is served when the one before it is closed."""
        deadline = time.monotonic() + timeout_s
        if self._line is not None:
            return self._take_call(self._line, deadline, timeout_s)
        pause = _LOOK_S
        while not self._agent_listens():
            if time.monotonic() + pause > deadline:
                raise TimeoutError(f"machine {self.spec.id!r}: no agent opened its port within {timeout_s:g} s")
            if self._monitor.await_end(pause):
                raise self._gone()
            pause = min(pause * 1.5, _LONGEST_LOOK_S)
        stream = socket.socket(socket.AF_UNIX)
        try:
            with address_of(self.home, AGENT_SOCKET) as address:
                stream.settimeout(max(0.01, deadline - time.monotonic()))
                stream.connect(address)
            stream.settimeout(None)
            return stream
        except BaseException as error:
            stream.close()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise self._gone() from error
            raise

    def pause(self) -> None:
        """Stop its processors; what its drives were told to write is written."""
        self._execute("stop")

    def resume(self) -> None:
        """Let them go on."""
        self._execute("cont")

    def snapshot(self, directory: Path, *, durable: bool = True) -> None:
        """Write all of it but its drives; see the contract."""
        found = self._execute("query-status")
        if found.get("status") != "paused":
            raise RuntimeUnavailable(
                f"machine {self.spec.id!r}: expected a paused one to make a snapshot of, it is {found.get('status')!r}",
                "pause it first",
            )
        with written_whole(directory, durable=durable) as partial_directory:
            target = os.open(partial_directory / MEMORY, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if not self._ram.copy(target, self.pid):
                    self._fetch_memory(target)
            finally:
                os.close(target)
            (partial_directory / STATE).write_bytes(self._fetch_state())
            self._saved.write(partial_directory)

    def end_reason(self) -> str:
        """What QEMU said of its end; see the contract."""
        return "" if self.alive() else self._qmp.end_reason()

    def kill(self) -> None:
        """End it at once; see the contract."""
        super().kill()
        self._ram.close()

    def close(self) -> None:
        """End it and free everything; see the contract."""
        super().close()
        self._qmp.close()
        if self._line is not None:
            self._line.close()
        with contextlib.suppress(OSError):  # its disk may be read-only by now
            (self.home / AGENT_SOCKET).unlink()

    # -- parts

    def load(self, state: bytes) -> None:
        """Give a QEMU that waits for it the state of its devices.

        Raises:
            RuntimeUnavailable: QEMU does not understand it.
        """
        ours, theirs = socket.socketpair()
        try:
            with ours:
                with theirs:
                    self._qmp.execute("getfd", {"fdname": STATE}, fds=[theirs.fileno()])
                self._qmp.execute("migrate-incoming", {"uri": f"fd:{STATE}"})
                ours.settimeout(_LOAD_S)
                ours.sendall(state)
            deadline = time.monotonic() + _LOAD_S
            while (found := self._qmp.execute("query-status")).get("status") == "inmigrate":
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it had not read its state after {_LOAD_S:g} s")
                time.sleep(0.001)
        except (QmpError, OSError) as error:
            raise self._monitor.failure(f"machine {self.spec.id!r} was not brought back: {error}") from error
        if found.get("status") != "paused":
            raise self._monitor.failure(f"machine {self.spec.id!r}: expected to find it paused, it is {found}")

    def _execute(
        self,
        command: str,
        arguments: dict[str, Any] | None = None,
        *,
        fds: Sequence[int] = (),
        timeout_s: float = _ANSWER_S,
    ) -> Any:
        try:
            return self._qmp.execute(command, arguments, fds=fds, timeout_s=timeout_s)
        except QmpError as error:
            raise RuntimeUnavailable(f"machine {self.spec.id!r}: QEMU refused {error}") from error
        except TimeoutError as error:
            raise TimeoutError(f"machine {self.spec.id!r}: {command} not done after {timeout_s:g} s") from error
        except OSError as error:
            raise self._gone() from error

    def _take_call(self, line: Line, deadline: float, timeout_s: float) -> socket.socket:
        try:
            stream = line.answer(deadline, self._monitor.await_end)
        except TimeoutError as error:
            raise TimeoutError(f"machine {self.spec.id!r}: {error} ({timeout_s:g} s)") from error
        if stream is None:
            raise self._gone()
        return stream

    def _agent_listens(self) -> bool:
        devices = self._execute("query-chardev")
        return any(device.get("label") == AGENT and device.get("frontend-open") for device in devices)

    def _give(self, fd: int) -> tuple[int, int]:
        """Give QEMU a descriptor; the number of the set it is in, and its own there."""
        found = self._execute("add-fd", fds=[fd])
        return int(found["fdset-id"]), int(found["fd"])

    def _take_back(self, number: int) -> None:
        with contextlib.suppress(QmpError, OSError):
            self._qmp.execute("remove-fd", {"fdset-id": number})

    def _fetch_state(self) -> bytes:
        """The state of its devices. It passes through memory, so that a full disk is found out by us."""
        fd = os.memfd_create("agentenv-state", os.MFD_CLOEXEC)
        try:
            # QEMU wants a descriptor opened the way it would have opened the file itself.
            writable = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                number, _ = self._give(writable)
            finally:
                os.close(writable)
            try:
                self._execute("xen-save-devices-state", {"filename": f"/dev/fdset/{number}", "live": False})
            finally:
                self._take_back(number)
            with open(fd, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(fd)

    def _fetch_memory(self, target: int) -> None:
        """Have QEMU send its RAM, and write it."""
        size = self.spec.memory_mb << 20
        os.ftruncate(target, size)
        read, write = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
        try:
            number, theirs = self._give(write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(_receive, read, target, size)
            try:
                for start, count in _ranges(size):
                    arguments = {"val": start, "size": count, "filename": f"/proc/self/fd/{theirs}"}
                    self._execute("pmemsave", arguments, timeout_s=_ANSWER_S + count / _SLOW_BYTES_PER_S)
            except RuntimeUnavailable:
                self._take_back(number)
                job.result()  # a full disk is the reason for QEMU's complaint
                raise
            finally:
                self._take_back(number)  # the last writer: ends the reader
            job.result()


def _receive(read: int, target: int, size: int) -> None:
    try:
        receive_memory(partial(os.read, read), target, 0, size)
    finally:
        os.close(read)  # QEMU, should it still write, is refused


def _ranges(size: int) -> Sequence[tuple[int, int]]:
    """Where RAM of this size lies: start and length."""
    return [(0, size)] if size <= _LOW else [(0, _LOW), (_HIGH, size - _LOW)]
