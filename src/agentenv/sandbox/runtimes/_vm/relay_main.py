"""The process beside the host's that starts monitors and carries bytes between machines and the host's descriptors.

To the host a machine looks like any sandbox: it has slots of shared memory, bells, pipes and sockets. This process
holds the other ends of those and the streams into the machines (``guest.link``). It runs nothing else, is not slowed by
what the host computes, and when it ends, by whatever means, its monitors end with it, and it with the host.

Requests come on one socket, one at a time, each with a "number", an "op" and as many descriptors as its "fds" says, and
are answered in turn, with the same number. What a request takes of its descriptors it takes out of their list; the rest
is closed, however it ended:

    spawn     start a program -> its pid, and a pidfd
    join      a stream into a machine, the host's end of requests to its agent, the monitor's pidfd
    tie       descriptors to streams of a machine
    untie     descriptors from streams
    attach    slots and bells of a machine
    hold      nothing but requests, and the end of a machine's stream is no reason to end the machine any more
    rest      let go of its stream
    rejoin    another stream into it
    release   everything again
    fate      what came from a machine and was not the protocol
    unwritten how much came from a machine and was not read yet by whoever it is for
    leave     forget a machine
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import select
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.guest import confine
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.guest.link import Link
from agentenv.guest.pumping import READ, Loop, close_quietly
from agentenv.sandbox.runtimes._net.namespace import enter
from agentenv.wire.frames import CHUNK, RPC, WINDOW, Kind
from agentenv.wire.replica import Replica
from agentenv.wire.slot import SlotLayout

_RING = (1).to_bytes(8, "little")
_MAX_FDS = 16


@dataclass(slots=True)
class _Machine:
    """A machine's stream, and the host's memory and bells that belong to it."""

    link: Link
    pidfd: int
    broken: str = ""
    replica: Replica | None = None
    wake: int = -1
    done: int = -1


class Relay:
    """See the module."""

    def __init__(self, owner: socket.socket, homes: str) -> None:
        """Obey ``owner``; when it is gone, remove ``homes``."""
        self._homes = homes
        self._loop = Loop()
        self._owner = owner
        self._machines: dict[int, _Machine] = {}
        self._requests: dict[str, Callable[[dict[str, Any], list[int]], tuple[dict[str, Any], list[int]]]] = {
            "spawn": _spawn,
            "join": self._join,
            "tie": self._tie,
            "untie": self._untie,
            "attach": self._attach,
            "hold": self._hold,
            "rest": self._rest,
            "rejoin": self._rejoin,
            "release": self._release,
            "fate": self._fate,
            "unwritten": self._unwritten,
            "leave": self._leave,
        }
        self._loop.watch(owner.fileno(), READ, self._obey)

    def run(self) -> None:
        """Serve until the owner is gone."""
        self._loop.run()
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # that all are gone; till then they could write to their homes
            os.waitpid(-1, 0)
        shutil.rmtree(self._homes, ignore_errors=True)

    def _obey(self, _events: int) -> None:
        try:
            request, fds = receive_message(self._owner, max_fds=_MAX_FDS)
        except (ControlClosed, OSError):
            self._loop.running = False
            return
        try:
            _expect_whole(request, fds)
            reply, given = self._requests[request["op"]](request, fds)
        except OSError as error:
            reply, given = {"error": error.strerror or str(error), "errno": error.errno}, []
        except (ValueError, KeyError) as error:
            reply, given = {"error": str(error), "errno": None}, []
        finally:
            for fd in fds:
                close_quietly(fd)
        with contextlib.suppress(ControlClosed, OSError):
            send_message(self._owner, {**reply, "number": request.get("number")}, given)
        for fd in given:
            os.close(fd)

    def _join(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        number = request["machine"]
        stream, rpc, pidfd = fds
        link = Link(
            self._loop,
            stream,
            max_body=CHUNK,
            on_frame=lambda kind, body: self._hear(number, kind, body),
            on_lost=lambda why: self._lose(number, why),
            lingers=True,  # the last words of who has ended are the ones that matter
        )
        self._machines[number] = _Machine(link, pidfd)
        fds[:] = [rpc]
        link.join(RPC, reader=rpc, writer=rpc)
        fds.clear()
        return {}, []

    def _tie(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        link = self._machines[request["machine"]].link
        for stream, ways in request["streams"]:
            reader, writer = (fds[0] if way in ways else -1 for way in "rw")
            credit, most = 0 if "g" in ways else WINDOW, request["most_bytes"]
            link.join(stream, reader=reader, writer=writer, credit=credit, most_bytes=most)
            del fds[0]
        return {}, []

    def _untie(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        link = self._machines[request["machine"]].link
        for stream in request["streams"]:
            link.cut(stream)
        return {}, []

    def _attach(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        machine = self._machines[request["machine"]]
        memory, wake, done = fds
        layout, count = SlotLayout(**request["layout"]), request["count"]
        self._detach(machine)
        machine.replica = Replica(memoryview(mmap.mmap(memory, count * layout.size)), layout, count)
        machine.wake, machine.done = wake, done
        del fds[1:]
        os.set_blocking(wake, False)  # the host's watch may take the ring that was reported
        machine.link.accept(machine.replica.max_answer)

        def ask(_events: int) -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 8)
            if machine.replica is not None:
                machine.link.send(Kind.STEP, body=machine.replica.request())

        self._loop.watch(wake, READ, ask)
        return {}, []

    def _hold(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        self._machines[request["machine"]].link.hold()
        return {}, []

    def _rest(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        self._machines[request["machine"]].link.rest()
        return {}, []

    def _rejoin(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        link = self._machines[request["machine"]].link
        (stream,) = fds
        fds.clear()
        link.go_on(stream)
        return {}, []

    def _release(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        self._machines[request["machine"]].link.release()
        return {}, []

    def _fate(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        machine = self._look_at(request)
        return {"broken": "" if machine is None else machine.broken}, []

    def _unwritten(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        machine, streams = self._look_at(request), request["streams"]
        if machine is None:
            return {"bytes": 0}, []
        return {"bytes": machine.link.unwritten_on(*streams) if streams else machine.link.unwritten}, []

    def _look_at(self, request: dict[str, Any]) -> _Machine | None:
        """A machine, of which all is taken in that it has sent before it ended."""
        machine = self._machines.get(request["machine"])
        if machine is not None and _has_ended(machine.pidfd):
            machine.link.exhaust()
        return machine

    def _leave(self, request: dict[str, Any], _fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        machine = self._machines.pop(request["machine"], None)
        if machine is not None:
            self._detach(machine)
            machine.link.close()
            close_quietly(machine.pidfd)
        return {}, []

    def _detach(self, machine: _Machine) -> None:
        for fd in (machine.wake, machine.done):
            if fd >= 0:
                self._loop.forget(fd)
                close_quietly(fd)
        machine.wake = machine.done = -1
        machine.replica = None

    def _hear(self, number: int, kind: Kind, body: bytes) -> None:
        machine = self._machines.get(number)
        if machine is None:
            return
        if kind is Kind.ANSWER and machine.replica is not None:
            if machine.replica.put_answer(body):
                os.write(machine.done, _RING)
        elif kind is Kind.BYE:
            self._end(machine)

    def _lose(self, number: int, why: str) -> None:
        """A machine whose stream has ended is of no use to anybody."""
        machine = self._machines.get(number)
        if machine is not None:
            if "protocol" in why:
                # Told to whoever asks, not sent to the host's end of requests: that was closed with the link, and a
                # machine could have filled it.
                machine.broken = why
            self._end(machine)

    def _end(self, machine: _Machine) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(machine.pidfd, signal.SIGKILL)


def _expect_whole(request: dict[str, Any], fds: Sequence[int]) -> None:
    """See that all descriptors have come: the kernel leaves out those for which there is no room.

    Raises:
        OSError: They have not.
    """
    if len(fds) != request["fds"]:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise OSError(
            errno.EMFILE,
            f"the relay to the machines has no room for descriptors: expected {request['fds']} with {request['op']!r},"
            f" got {len(fds)}, its limit is {limit}; raise the limit of open files (ulimit -n), or run fewer machines",
        )


def _spawn(request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], list[int]]:
    """Start a program in a session of its own.

    The first descriptor is its output, the last one, if asked, its network; the others are kept under given numbers.
    """
    parent = os.getpid()
    reader, writer = os.pipe2(os.O_CLOEXEC)
    waiting, go = os.pipe2(os.O_CLOEXEC)
    apart = request.get("apart", False)
    try:
        pid = confine.clone(confine.CLONE_NEWPID if apart else 0)
    except OSError:
        for fd in (reader, writer, waiting, go):
            os.close(fd)
        raise
    if pid == 0:
        try:
            os.close(reader)
            os.close(go)
            os.read(waiting, 1)  # one that ended before it was held could not be told from another of its number
            confine.die_with_parent(0 if apart else parent)  # seen from another namespace, the parent has no number
            if not _has_reader(writer):
                os._exit(1)
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(request["directory"])
            if request.get("network", False):
                enter(fds[-1])
            kept = [1, *request["numbers"]]
            _place(fds[: len(kept)], kept)
            os.dup2(1, 2, inheritable=True)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0, inheritable=True)
            os.execvpe(request["argv"][0], request["argv"], request["variables"])
        except OSError as error:
            os.write(writer, f"{request['argv'][0]}: {error.strerror}".encode())
        except ValueError as error:  # a zero byte in an argument
            os.write(writer, f"{request['argv'][0]}: {error}".encode())
        finally:
            os._exit(127)
    os.close(writer)
    os.close(waiting)
    try:
        pidfd = os.pidfd_open(pid)
    finally:
        os.close(go)
        failure = os.read(reader, 1000).decode(errors="replace")
        os.close(reader)
    if failure:
        os.close(pidfd)
        raise OSError(failure)
    return {"pid": pid}, [pidfd]


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _has_reader(pipe: int) -> bool:
    """Whether somebody could still read what is written to a pipe: of a parent that has ended nobody is left to."""
    poller = select.poll()
    poller.register(pipe, 0)
    return not poller.poll(0)


def _place(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Have descriptors under given numbers, whatever is there now."""
    high = [os.dup(fd) if fd <= max(numbers) else fd for fd in fds]
    spare = max([*high, *numbers]) + 1
    held = []
    for fd in high:
        os.dup2(fd, spare)
        held.append(spare)
        spare += 1
    for fd, number in zip(held, numbers, strict=True):
        os.dup2(fd, number, inheritable=True)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as stream:
        return [int(pid) for pid in stream.read().split()]


def main(fd: int, homes: str) -> None:
    """Serve the owner at the other end of a socket, and clean up after it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; how a monitor ended shows in what it left
    confine.hide_memory()
    Relay(socket.socket(fileno=fd), homes).run()
