"""The process that keeps a sandbox: in a session of its own, without a terminal, until the sandbox is destroyed.

Until it answers, whoever started it listens on a pipe: JSON lines with "say" for what takes long, then one with "ready"
or "error". When nobody listens there any more before that, it gives up and leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_BLOCK_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Stopped(BaseException):
    """It is to end now."""


class Words:
    """What is said to whoever started this process; also the report of what takes long."""

    def __init__(self, fd: int) -> None:
        """Say it on a pipe."""
        self._fd = fd
        self._lock = threading.Lock()

    def tell(self, **message: Any) -> None:
        """One line; for nobody, where nobody listens."""
        with self._lock, contextlib.suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, json.dumps(message).encode() + b"\n")

    def say(self, text: str) -> None:
        """Something worth one line."""
        self.tell(say=text)

    @contextmanager
    def task(self, text: str, total: float | None = None) -> Iterator[Words]:
        """Work that begins now."""
        self.say(text)
        yield self

    def advance(self, amount: float) -> None:
        """How far it is is not told."""

    def close(self) -> None:
        """Say nothing any more."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1


class _Log(logging.Handler):
    """Log records for whoever started this."""

    def __init__(self, words: Words) -> None:
        super().__init__(logging.INFO)
        self._words = words

    def emit(self, record: logging.LogRecord) -> None:
        self._words.say(record.getMessage())


def main(config: Mapping[str, Any]) -> None:
    """Keep a sandbox.

    Args:
        config: "fd", the pipe; "plan", what to make; see ``Plan``.
    """
    words = Words(config["fd"])
    words.tell(pid=os.getpid())
    for number in _BLOCK_SIGNALS:
        signal.signal(number, _stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _listened_to(config["fd"]) as over:
            _keep(config, words, over)
    except _Stopped:
        pass


def _keep(config: Mapping[str, Any], words: Words, over: socket.socket) -> None:
    from agentenv.boxes import kept
    from agentenv.boxes.birth import create
    from agentenv.boxes.failures import to_record
    from agentenv.boxes.keeper import Keeper
    from agentenv.boxes.plans import Plan
    from agentenv.fleet.owner import Owner

    logging.getLogger("agentenv").addHandler(_Log(words))
    logging.getLogger("agentenv").setLevel(logging.INFO)
    plan = Plan.from_record(config["plan"])
    name, me = plan.spec.id, Owner.current()
    with contextlib.ExitStack() as stack:
        try:
            kept.claim(name)
            stack.callback(kept.give_up, name, me)
            (access,) = create([plan], words)
            stack.callback(access.destroy)
            keeper = Keeper(access, kept.listen(name), lambda: kept.give_up(name, me))
            stack.callback(keeper.close)
        except Exception as error:
            words.tell(error=to_record(error))
            return
        over.send(b"x")  # from here on it goes on by itself
        words.tell(ready=True)
        words.close()
        keeper.serve()


@contextmanager
def _listened_to(fd: int) -> Iterator[socket.socket]:
    """End this process when nobody listens any more, until something is sent on the socket that is yielded."""
    ours, over = socket.socketpair()

    def watch() -> None:
        poller = select.poll()
        poller.register(fd, 0)  # errors are always told: the other end is gone
        poller.register(ours, select.POLLIN)
        if ours.fileno() not in {one for one, _ in poller.poll()}:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="agentenv-listened-to", daemon=True).start()
    with ours, over:
        yield over


def _stop(_number: int, _frame: FrameType | None) -> None:
    for number in _BLOCK_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # once is enough, and what follows must not be cut short
    raise _Stopped


def enter(text: str) -> None:
    """Leave whoever started this alone, and keep what it asked for.

    Args:
        text: The configuration, as JSON.
    """
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    main(json.loads(text))
    sys.exit(0)
