"""A sandbox that a keeper holds, reached over its socket: every request is a connection of its own.

The descriptors of a program's pipes go with the request, so that its bytes flow past the keeper.
"""

from __future__ import annotations

import contextlib
import signal as signals
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentenv.boxes import kept
from agentenv.boxes.access import DIED, UNKNOWN, Access, Description
from agentenv.boxes.failures import from_record
from agentenv.boxes.holding import has_ended, holding
from agentenv.boxes.keeping import place
from agentenv.boxes.kept import Kept
from agentenv.boxes.status import died
from agentenv.errors import (
    AgentEnvError,
    Cause,
    CauseKind,
    ClosedError,
    Owner,
    ProtocolError,
    RuntimeUnavailable,
    SandboxDied,
    StepTimeout,
)
from agentenv.guest.control import receive_message, send_message
from agentenv.sandbox.contract import Usage
from agentenv.sandbox.workbench import Shutdown, Stdio, Task
from agentenv.telemetry.text import one_line

_GONE = "its keeper is gone, and the machine with it"
_STARTING = "starting"
_END_S = 30.0
_SHUTDOWN_S = 240.0
_DESCRIBE_S = 10.0
_ENDING_S = 5.0
_NUMBER = (int, float)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "state", "cause", "runtime", "image", "origin"), str),
    **dict.fromkeys(("memory_mb", "pid"), int),
    **dict.fromkeys(("vcpu_count", "created_unix"), _NUMBER),
    "network": (str, dict),
    "network_mbps": (*_NUMBER, type(None)),
}


class _Silent(TimeoutError):
    """A keeper lives and does not answer."""


class _NotUp(RuntimeUnavailable):
    """A keeper lives and has no socket yet."""


class _GivenUp(SandboxDied):
    """A keeper has given up its name in order."""


class Ended(ClosedError):
    """Somebody else has ended a sandbox in the moment before it was asked to end."""


class RemoteAccess:
    """See ``access.Access``."""

    kept = True
    destroyed = False

    def __init__(self, found: Kept) -> None:
        """Reach a keeper that is there."""
        self.id = found.name
        self.owner = found.owner

    def start(self, task: Task, stdio: Stdio) -> int:
        """Start a program or a piece of work; see ``Access``."""
        ends = {name: getattr(stdio, name) for name in ("stdin", "stdout", "stderr", "status")}
        given = {name: fd for name, fd in ends.items() if fd >= 0}
        record = {**asdict(task), "variables": dict(task.variables)}
        return int(self._tell("number", "start", list(given.values()), task=record, ends=list(given)))

    def signal(self, number: int, signal: int) -> None:
        """Send a signal to a task."""
        self._ask("signal", number=number, signal=int(signal))

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a task's terminal."""
        self._ask("resize", number=number, rows=rows, columns=columns)

    def health(self) -> Mapping[str, Any]:
        """What it says of itself."""
        told = self._tell("health", "health")
        return told if isinstance(told, dict) else {}

    def pause(self) -> None:
        """Have it stand still."""
        self._ask("pause")

    def resume(self) -> None:
        """Let it go on."""
        self._ask("resume")

    def usage(self) -> Usage | None:
        """What it uses now."""
        told = self._tell("usage", "usage")
        return None if told is None else Usage(**told)

    def describe(self) -> Description:
        """What it is, and how it is; also of one that is only starting, or whose keeper is gone."""
        state, network = UNKNOWN, ""
        try:
            return _read_description(self._tell("description", "describe", timeout_s=_DESCRIBE_S))
        except _NotUp:
            state, cause = _STARTING, ""
        except _Silent as error:
            cause = str(error)
        except (FileNotFoundError, SandboxDied):
            state, cause = DIED, self._gone()
        except (AgentEnvError, OSError, KeyError, TypeError, ValueError) as error:
            said = one_line(str(error), 200).removeprefix(f"sandbox {self.id!r}: ")
            cause = f"its keeper is of another version, or does not work: {said}; agentenv sandbox rm {self.id} ends it"
        return Description(self.id, state, cause, "", "", 0, 0.0, 0.0, "", self.owner.pid, network=network)

    def await_cause(self, timeout_s: float) -> Cause | None:
        """Why it died."""
        try:
            told = self._tell("cause", "cause", timeout=timeout_s)
            return _cause(told)
        except (OSError, RuntimeUnavailable, ProtocolError):
            return self._lost()

    def snapshot(self, name: str | None, replace: bool) -> str:
        """Keep all of it in the store of snapshots."""
        # In the store of whoever asks, which need not be that of whoever made the sandbox.
        return str(self._tell("snapshot", "snapshot", name=name, replace=replace, store=str(place())))

    def fork(self, names: Sequence[str]) -> list[Access]:
        """Copies of it, each with a keeper of its own."""
        from agentenv.boxes.launch import expect_memory, launch
        from agentenv.boxes.plans import Plan

        expect_memory(len(names))  # before anything is copied
        # The keeper removes the copy when this connection ends, however it ends.
        with contextlib.closing(self._dial()) as connection:
            plan = Plan.from_record(self._converse(connection, {"op": "copy"})["plan"])
            return list(launch([plan.named(name) for name in names]))

    def destroy(self) -> None:
        """End it, and its keeper; also one whose keeper is gone, or does not understand us."""
        with holding(self.owner) as pidfd:
            if pidfd is not None:
                self._end(pidfd)
        kept.give_up(self.id, self.owner)

    def shutdown(self, timeout_s: float) -> Shutdown:
        """End it in order, and its keeper."""
        with holding(self.owner) as pidfd:
            if pidfd is None:
                if not kept.has(self.id, self.owner):
                    raise self._ended()
                raise died(self.id, self._lost())
            try:
                done = self._shut_down(timeout_s)
            except _GivenUp as error:
                self._follow(pidfd)
                raise self._ended() from error
            except RuntimeUnavailable:  # it is as before
                raise
            except (AgentEnvError, OSError):
                self._follow(pidfd)
                raise
            self._follow(pidfd)
            return done

    def _shut_down(self, timeout_s: float) -> Shutdown:
        try:
            self._tell("description", "describe", timeout_s=_END_S)  # one that does not answer is not waited for longer
        except _Silent as error:
            raise RuntimeUnavailable(f"sandbox {self.id!r}: {error}", f"kill -9 {self.owner.pid} ends both") from error
        try:
            told = self._tell("done", "shutdown", timeout_s=timeout_s + _SHUTDOWN_S, timeout=timeout_s)
            return Shutdown(int(told["ended"]), int(told["killed"]))
        except _Silent as error:
            cause = Cause(CauseKind.TIMEOUT, Owner.INFRASTRUCTURE, f"{error}; it was destroyed all the same")
            raise StepTimeout(cause.detail, env_id=self.id, cause=cause, noun="sandbox") from error
        except (KeyError, TypeError, ValueError) as error:  # a ProtocolError is one
            said = one_line(str(error), 200).removeprefix(f"sandbox {self.id!r}: ")
            raise RuntimeUnavailable(
                f"sandbox {self.id!r}: its keeper is of another version, and cannot end it in order: {said}",
                f"agentenv sandbox rm {self.id} ends it at once",
            ) from error

    def _follow(self, pidfd: int) -> None:
        """See to it that a keeper that is to end does."""
        if not has_ended(pidfd, _ENDING_S):
            self.destroy()
        kept.give_up(self.id, self.owner)

    def _end(self, pidfd: int) -> None:
        """Have the keeper end the sandbox and itself.

        Raises:
            RuntimeUnavailable: It does not.
        """
        left = _END_S
        try:
            self._ask("destroy", timeout_s=_END_S)
        except _Silent:
            left = 0.0
        except (FileNotFoundError, SandboxDied):
            pass
        except AgentEnvError as error:
            if not isinstance(error, _NotUp | ProtocolError) and type(error) is not AgentEnvError:
                raise
            signals.pidfd_send_signal(pidfd, signals.SIGTERM)  # in whatever words it is asked, this it knows
        if not has_ended(pidfd, left):
            raise RuntimeUnavailable(
                f"sandbox {self.id!r}: its keeper, process {self.owner.pid}, has not ended within {_END_S:g} s",
                f"kill -9 {self.owner.pid} ends it and the machine",
            )

    def _gone(self) -> str:
        log = kept.last_words().get(self.id)
        return _GONE if log is None else f"{_GONE}; {log} tells of a fault"

    def _lost(self) -> Cause:
        return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, self._gone())

    def _ended(self) -> Ended:
        return Ended(f"sandbox {self.id!r} was ended by somebody else")

    def _dial(self, timeout_s: float | None = None) -> socket.socket:
        try:
            return kept.dial(self.id, timeout_s)
        except BlockingIOError as error:
            raise self._silent(timeout_s) from error
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if not kept.has(self.id, self.owner):
                cause = self._lost()
                raise _GivenUp(cause.detail, env_id=self.id, cause=cause, noun="sandbox") from error
            if not self.owner.alive():
                raise died(self.id, self._lost()) from error
            raise _NotUp(f"sandbox {self.id!r} is not up yet", "wait for agentenv sandbox create") from error

    def _silent(self, timeout_s: float | None) -> _Silent:
        log = kept.log_of(self.id)
        more = f"; {log} tells of a fault" if log.exists() and log.stat().st_size else ""
        return _Silent(f"its keeper, process {self.owner.pid}, has not answered within {timeout_s or 0:g} s{more}")

    def _tell(
        self, key: str, op: str, fds: Sequence[int] = (), *, timeout_s: float | None = None, **fields: Any
    ) -> Any:
        """What the keeper answers under a name."""
        reply = self._ask(op, fds, timeout_s=timeout_s, **fields)
        if key not in reply:
            raise ProtocolError(
                f"sandbox {self.id!r}: expected {key!r} of its keeper, got {', '.join(reply) or 'nothing'}"
            )
        return reply[key]

    def _ask(
        self, op: str, fds: Sequence[int] = (), *, timeout_s: float | None = None, **fields: Any
    ) -> Mapping[str, Any]:
        with contextlib.closing(self._dial(timeout_s)) as connection:
            connection.settimeout(timeout_s)
            return self._converse(connection, {"op": op, **fields}, fds)

    def _converse(
        self, connection: socket.socket, request: dict[str, Any], fds: Sequence[int] = ()
    ) -> Mapping[str, Any]:
        try:
            send_message(connection, request, fds)
            reply, _ = receive_message(connection)
        except ConnectionError as error:
            raise self._hung_up() from error
        except TimeoutError as error:
            raise self._silent(connection.gettimeout()) from error
        except ValueError as error:
            raise ProtocolError(f"sandbox {self.id!r}: its keeper sent something else: {error}") from error
        return _answer(reply)

    def _hung_up(self) -> Exception:
        """The error for a connection that ended without an answer."""
        with holding(self.owner) as pidfd:
            if pidfd is not None and not has_ended(pidfd, _ENDING_S):
                return ProtocolError(f"sandbox {self.id!r}: its keeper, process {self.owner.pid}, hung up")
        return died(self.id, self._lost())


def _answer(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    told = reply.get("error")
    if told is None:
        return reply
    try:
        error = from_record(told)
    except (AttributeError, KeyError, TypeError, ValueError):
        error = ProtocolError(f"expected an error of a keeper, got {one_line(repr(told), 200)}")
    raise error


def _cause(told: Any) -> Cause | None:
    try:
        return (
            None if told is None else Cause(**{**told, "kind": CauseKind(told["kind"]), "owner": Owner(told["owner"])})
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"expected why a sandbox died, got {one_line(repr(told), 200)}") from error


def _read_description(told: Any) -> Description:
    """What a keeper says of its sandbox.

    Raises:
        TypeError, ValueError: It says something else.
    """
    if not isinstance(told, dict):
        raise ValueError(f"expected a description, got {one_line(repr(told), 100)}")
    found = Description(**told)
    for name, kind in _KINDS.items():
        if not isinstance(value := getattr(found, name), kind) or isinstance(value, bool):
            raise ValueError(f"expected another {name}, got {one_line(repr(value), 100)}")
    lists = found.network.values() if isinstance(found.network, dict) else ()
    if not all(isinstance(one, list) and all(isinstance(entry, str) for entry in one) for one in lists):
        raise ValueError(f"expected another network, got {one_line(repr(found.network), 100)}")
    return found


def connect(name: str) -> RemoteAccess:
    """The sandbox of a name.

    Raises:
        ConfigError: There is none.
    """
    return RemoteAccess(kept.find(name))


def connect_all() -> list[RemoteAccess]:
    """All that have a keeper, by name."""
    return [RemoteAccess(found) for found in kept.find_all()]
