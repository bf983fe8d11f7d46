"""What answers for a sandbox that outlives the command that made it.

Requests are JSON messages with an "op", with descriptors where a program is started, from processes of the same user;
each is answered by one message. A connection that asked for a copy of the sandbox has it as long as it is open.

The machine ends with this process. So want of descriptors, threads or memory is borne: whoever asks then waits.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentenv.boxes.copies import copying_ground
from agentenv.boxes.failures import to_record
from agentenv.boxes.local import LocalAccess
from agentenv.errors import AgentEnvError, ClosedError, ConfigError, ProtocolError, ResourceLimit, RuntimeUnavailable
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.workbench import Stdio, Task

logger = logging.getLogger("agentenv.boxes")

_ENDS = ("stdin", "stdout", "stderr", "status")
_CREDENTIALS = struct.Struct("3i")
_PAUSE_S = 0.2
_LAST_S = 2.0
# What cleans up after ten days, or one, does not find anything older than that.
_RENEW_S = 600.0
Answer = dict[str, Any]


class Keeper:
    """Serves one sandbox."""

    def __init__(
        self,
        access: LocalAccess,
        listener: socket.socket,
        give_up: Callable[[], None],
        renew: Callable[[], socket.socket | None],
    ) -> None:
        """Answer at a socket.

        Args:
            access: The sandbox.
            listener: The socket.
            give_up: Removes the name.
            renew: Called now and then, so that the name stays; returns another socket where this one is not found any
                more. A ``ConfigError`` of it says that the name is another's.
        """
        self._access, self._listener, self._give_up, self._renew = access, listener, give_up, renew
        self._bearing = False
        self._wake, self._stop = socket.socketpair()
        self._attended = 0
        self._changed = threading.Condition()
        self._held: set[contextlib.ExitStack] = set()
        self._ending = threading.Lock()
        self._ended: Answer | None = None
        self._handlers: Mapping[str, Callable[[Mapping[str, Any], Sequence[int]], Answer]] = {
            "describe": lambda _request, _fds: {"description": access.describe().to_json()},
            "start": self._start,
            "signal": self._signal,
            "resize": self._resize,
            "health": lambda _request, _fds: {"health": dict(access.health())},
            "usage": self._usage,
            "cause": self._cause,
            "pause": self._pause,
            "resume": self._resume,
            "snapshot": self._snapshot,
            "shutdown": self._shutdown,
            "destroy": self._destroy,
        }

    def serve(self) -> None:
        """Answer until the sandbox is to be destroyed, or its name is another's."""
        due = time.monotonic() + _RENEW_S
        while True:
            poller = select.poll()
            poller.register(self._listener, select.POLLIN)
            poller.register(self._wake, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(max(0.0, due - time.monotonic()) * 1000)}
            if self._wake.fileno() in ready:
                self._attend_the_last()
                return
            if self._listener.fileno() in ready:
                self._admit()
            if time.monotonic() >= due:
                due = time.monotonic() + _RENEW_S
                if not self._stay():
                    return

    def _admit(self) -> None:
        """Have a thread attend to whoever asks."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            self._bear(error)
            return
        self._count(1)
        while True:
            # A connection that is never used holds up nobody, and not the end of this process either.
            thread = threading.Thread(target=self._attend, args=(connection,), name="agentenv-keeper", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # "can't start new thread"
                if not self._bear(error):
                    continue
                connection.close()
                self._count(-1)
            else:
                self._bearing = False
            return

    def _attend_the_last(self) -> None:
        """Answer who has asked already; who keeps a connection and asks for nothing is not waited for."""
        due = time.monotonic() + _LAST_S
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        while (left := due - time.monotonic()) > 0:
            if poller.poll(0):
                self._admit()
                continue
            with self._changed:
                if not self._attended:
                    return
                self._changed.wait(min(left, _PAUSE_S))

    def _bear(self, error: Exception) -> bool:
        """Wait a little for what is short; returns whether the end has come meanwhile."""
        if not self._bearing:
            logger.error("sandbox %r: a request waits, since its keeper lacks something: %s", self._access.id, error)
        self._bearing = True
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        return bool(poller.poll(_PAUSE_S * 1000))

    def _stay(self) -> bool:
        """Keep the name; returns whether it is still ours."""
        try:
            listener = self._renew()
        except ConfigError as error:
            logger.error("sandbox %r ends, for nobody reaches it any more: %s", self._access.id, error)
            return False
        except (AgentEnvError, OSError) as error:
            logger.error("sandbox %r: its name cannot be kept now, and may be lost: %s", self._access.id, error)
            return True
        if listener is not None:
            self._listener.close()
            self._listener = listener
        return True

    def _count(self, change: int) -> None:
        with self._changed:
            self._attended += change
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of the sockets, and of copies that somebody still has."""
        for held in list(self._held):
            held.close()
        for one in (self._listener, self._wake, self._stop):
            one.close()

    def _attend(self, connection: socket.socket) -> None:
        held = contextlib.ExitStack()
        self._held.add(held)
        try:
            self._answer_all(connection, held)
        finally:
            self._held.discard(held)
            self._count(-1)

    def _answer_all(self, connection: socket.socket, held: contextlib.ExitStack) -> None:
        with connection, held, contextlib.suppress(ControlClosed, OSError, ValueError):
            if not _is_ours(connection):
                return
            while True:
                request, fds = receive_message(connection, max_fds=len(_ENDS))
                try:
                    reply = self._answer(request, fds, held)
                finally:
                    for fd in fds:
                        os.close(fd)
                try:
                    send_message(connection, reply)
                finally:  # also where whoever asked did not wait
                    if reply.get("over"):
                        self._stop.send(b"x")

    def _answer(self, request: Mapping[str, Any], fds: Sequence[int], held: contextlib.ExitStack) -> Answer:
        try:
            if request.get("op") == "copy":
                return self._copy(held)
            handler = self._handlers.get(str(request.get("op")))
            if handler is None:
                raise ProtocolError(f"expected one of {', '.join(self._handlers)}, got {request.get('op')!r}")
            return handler(request, fds)
        except (KeyError, TypeError, ValueError) as error:
            # An error of ours is a ValueError too, and says more.
            mine = (
                error if isinstance(error, AgentEnvError) else ProtocolError(f"a request that lacks something: {error}")
            )
            return {"error": to_record(mine)}
        except (AgentEnvError, OSError) as error:
            return {"error": to_record(error)}
        except Exception as error:
            logger.exception("a request failed")
            return {"error": to_record(error)}

    def _start(self, request: Mapping[str, Any], fds: Sequence[int]) -> Answer:
        if len(fds) != len(request["ends"]):  # the kernel drops those there is no room for
            what = f"expected room for {len(request['ends'])} descriptors in the keeper, got {len(fds)}"
            raise ResourceLimit(errno.EMFILE, f"{what}; run fewer programs at once")
        given = dict(zip(request["ends"], fds, strict=True))
        told = dict(request["task"])
        terminal = told.get("terminal")
        task = Task(
            tuple(told["argv"]),
            told["work"],
            dict(told["variables"]),
            told["directory"],
            told["user"],
            None if terminal is None else (int(terminal[0]), int(terminal[1])),
        )
        return {"number": self._access.start(task, Stdio(*(given.get(end, -1) for end in _ENDS)))}

    def _signal(self, request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        self._access.signal(request["number"], request["signal"])
        return {}

    def _resize(self, request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        self._access.resize(request["number"], request["rows"], request["columns"])
        return {}

    def _pause(self, _request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        self._access.pause()
        return {}

    def _resume(self, _request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        self._access.resume()
        return {}

    def _snapshot(self, request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        store = request.get("store")
        found = self._access.snapshot(request["name"], request["replace"], None if store is None else Path(store))
        return {"snapshot": found}

    def _usage(self, _request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        found = self._access.usage()
        return {"usage": None if found is None else asdict(found)}

    def _cause(self, request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        found = self._access.await_cause(float(request["timeout"]))
        return {"cause": None if found is None else asdict(found)}

    def _copy(self, held: contextlib.ExitStack) -> Answer:
        with contextlib.ExitStack() as stack:
            directory = stack.enter_context(copying_ground())
            self._access.copy_to(directory)
            held.push(stack.pop_all())
        plan = self._access.plan
        return {"plan": replace(plan, spec=replace(plan.spec, origin=directory)).to_record()}

    def _shutdown(self, request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        with self._ending:  # who asks while it ends is told the same
            if self._ended is None:
                self._ended = self._shut_down(request)
            return self._ended

    def _shut_down(self, request: Mapping[str, Any]) -> Answer:
        try:
            reply: Answer = {"done": asdict(self._access.shutdown(float(request["timeout"])))}
        except (ClosedError, RuntimeUnavailable):  # somebody else ends it, or nobody
            raise
        except (AgentEnvError, OSError) as error:  # it is destroyed all the same
            reply = {"error": to_record(error)}
        self._give_up()
        return {**reply, "over": True}

    def _destroy(self, _request: Mapping[str, Any], _fds: Sequence[int]) -> Answer:
        self._access.destroy()
        self._give_up()
        return {"over": True}


def _is_ours(connection: socket.socket) -> bool:
    """The directory's mode keeps others out; whoever has a descriptor all the same is asked for nothing."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1]) in (0, os.geteuid())
