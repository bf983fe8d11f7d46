"""A sandbox that a keeper holds, reached over its socket: every request is a connection of its own.

The descriptors of a program's pipes go with the request, so that its bytes flow past the keeper.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentenv.boxes import kept
from agentenv.boxes.access import DIED, Access, Description
from agentenv.boxes.failures import from_record
from agentenv.boxes.kept import Kept
from agentenv.boxes.status import died
from agentenv.errors import Cause, CauseKind, Owner, ProtocolError, RuntimeUnavailable
from agentenv.guest.control import ControlClosed, receive_message, send_message
from agentenv.sandbox.contract import Usage
from agentenv.sandbox.workbench import Stdio, Task

_GONE = "its keeper is gone, and the machine with it"
_STARTING = "starting"
_END_S = 30.0
_DESCRIBE_S = 10.0


class RemoteAccess:
    """See ``access.Access``."""

    kept = True

    def __init__(self, found: Kept) -> None:
        """Reach a keeper that is there."""
        self.id = found.name
        self.owner = found.owner

    def start(self, task: Task, stdio: Stdio) -> int:
        """Start a program or a piece of work; see ``Access``."""
        ends = {name: getattr(stdio, name) for name in ("stdin", "stdout", "stderr", "status")}
        given = {name: fd for name, fd in ends.items() if fd >= 0}
        record = {**asdict(task), "variables": dict(task.variables)}
        reply = self._ask("start", list(given.values()), task=record, ends=list(given))
        return int(reply["number"])

    def signal(self, number: int, signal: int) -> None:
        """Send a signal to a task."""
        self._ask("signal", number=number, signal=int(signal))

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Change the size of a task's terminal."""
        self._ask("resize", number=number, rows=rows, columns=columns)

    def health(self) -> Mapping[str, Any]:
        """What it says of itself."""
        told = self._ask("health")["health"]
        return told if isinstance(told, dict) else {}

    def pause(self) -> None:
        """Have it stand still."""
        self._ask("pause")

    def resume(self) -> None:
        """Let it go on."""
        self._ask("resume")

    def usage(self) -> Usage | None:
        """What it uses now."""
        told = self._ask("usage")["usage"]
        return None if told is None else Usage(**told)

    def describe(self) -> Description:
        """What it is, and how it is; also of one that is only starting, or whose keeper is gone."""
        try:
            return Description(**self._ask("describe", timeout_s=_DESCRIBE_S)["description"])
        except (FileNotFoundError, ConnectionError, TimeoutError, RuntimeUnavailable) as error:
            starting = isinstance(error, RuntimeUnavailable)
            late = "its keeper does not answer" if isinstance(error, TimeoutError) else _GONE
            state, cause = (_STARTING, "") if starting else (DIED, late)
            return Description(self.id, state, cause, "", "", 0, 0.0, 0.0, "", self.owner.pid, network="")

    def await_cause(self, timeout_s: float) -> Cause | None:
        """Why it died."""
        try:
            told = self._ask("cause", timeout=timeout_s)["cause"]
        except (OSError, RuntimeUnavailable):
            return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, _GONE)
        return (
            None if told is None else Cause(**{**told, "kind": CauseKind(told["kind"]), "owner": Owner(told["owner"])})
        )

    def snapshot(self, name: str | None, replace: bool) -> str:
        """Keep all of it in the store of snapshots."""
        return str(self._ask("snapshot", name=name, replace=replace)["snapshot"])

    def fork(self, names: Sequence[str]) -> list[Access]:
        """Copies of it, each with a keeper of its own."""
        from agentenv.boxes.launch import launch
        from agentenv.boxes.plans import Plan

        # The keeper removes the copy when this connection ends, however it ends.
        with contextlib.closing(self._dial()) as connection:
            send_message(connection, {"op": "copy"})
            plan = Plan.from_record(_answer(receive_message(connection)[0])["plan"])
            return list(launch([plan.named(name) for name in names]))

    def destroy(self) -> None:
        """End it, and its keeper; also one whose keeper is gone."""
        try:
            pidfd = os.pidfd_open(self.owner.pid)
        except ProcessLookupError:
            kept.give_up(self.id, self.owner)
            return
        try:
            if self.owner.alive():
                with contextlib.suppress(FileNotFoundError, ConnectionError):
                    self._ask("destroy")
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                if not poller.poll(int(_END_S * 1000)):
                    raise RuntimeUnavailable(
                        f"sandbox {self.id!r}: its keeper, process {self.owner.pid}, has not ended within {_END_S:g} s",
                        f"kill -9 {self.owner.pid} ends it and the machine",
                    )
        finally:
            os.close(pidfd)
        kept.give_up(self.id, self.owner)

    def _dial(self) -> Any:
        try:
            return kept.dial(self.id)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if not self.owner.alive():
                cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, _GONE)
                raise died(self.id, cause) from error
            raise RuntimeUnavailable(
                f"sandbox {self.id!r} is not up yet", "wait for agentenv sandbox create"
            ) from error

    def _ask(
        self, op: str, fds: Sequence[int] = (), *, timeout_s: float | None = None, **fields: Any
    ) -> Mapping[str, Any]:
        with contextlib.closing(self._dial()) as connection:
            connection.settimeout(timeout_s)
            try:
                send_message(connection, {"op": op, **fields}, fds)
                reply, _ = receive_message(connection)
            except (ControlClosed, ConnectionError) as error:
                if op == "destroy":
                    return {}
                cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, _GONE)
                raise died(self.id, cause) from error
            except TimeoutError:
                raise
            except ValueError as error:
                raise ProtocolError(f"sandbox {self.id!r}: its keeper sent something else: {error}") from error
        return _answer(reply)


def _answer(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(reply.get("error"), dict):
        raise from_record(reply["error"])
    return reply


def connect(name: str) -> RemoteAccess:
    """The sandbox of a name.

    Raises:
        ConfigError: There is none.
    """
    return RemoteAccess(kept.find(name))


def connect_all() -> list[RemoteAccess]:
    """All that have a keeper, by name."""
    return [RemoteAccess(found) for found in kept.find_all()]
