"""The process that keeps a sandbox: in a session of its own, without a terminal, until the sandbox is destroyed.

Until it answers, whoever started it listens on a pipe: JSON lines with "say" for what takes long, then one with "ready"
or "error". When nobody listens there any more before that, it gives up and leaves nothing. Afterwards what goes wrong
is in the log beside its record.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from agentenv.fleet.owner import Owner

_BLOCK_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A program takes five while it runs. Beyond this, threads are what is short; and some programs look at every number.
_DESCRIPTORS = 1 << 16

logger = logging.getLogger("agentenv.boxes")


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
    words.tell(owner=Owner.current().as_record())
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
    from agentenv.boxes.keeper_log import KeeperLog
    from agentenv.boxes.plans import Plan

    ours, telling = logging.getLogger("agentenv"), _Log(words)
    ours.addHandler(telling)
    ours.setLevel(logging.INFO)
    plan = Plan.from_record(config["plan"])
    name, me = plan.spec.id, Owner.current()
    fault, where = False, Path("/")

    def end() -> None:
        nonlocal fault
        try:
            access.destroy()
        except Exception:
            fault = True
            logger.exception("sandbox %r could not be ended in order", name)

    def renew() -> socket.socket | None:
        nonlocal where
        where, there = kept.renew(name, where)
        log.follow(where / f"{name}.log")
        return None if there else kept.listen(name)

    with contextlib.ExitStack() as stack:
        try:
            where = kept.claim(name)
            stack.callback(lambda: kept.give_up(name, me, words=not fault))
            (access,) = create([plan], words)
            stack.callback(end)
            keeper = Keeper(access, kept.listen(name), lambda: kept.give_up(name, me), renew)
            stack.callback(keeper.close)
            log = KeeperLog(where / f"{name}.log")
        except Exception as error:
            words.tell(error=to_record(error))
            return
        ours.removeHandler(telling)
        ours.addHandler(log)
        faulthandler.enable()
        over.send(b"x")  # from here on it goes on by itself
        words.tell(ready=True)
        words.close()
        try:
            keeper.serve()
        except Exception:
            fault = True
            logger.exception("the keeper of sandbox %r ends on a fault, and the machine with it", name)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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


def enter(config: Mapping[str, Any]) -> None:
    """Leave whoever started this alone, and keep what it asked for.

    Args:
        config: See ``main``.
    """
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # in place of the pipe on which the configuration came
    os.close(null)
    _raise_descriptor_limit()
    main(config)
    sys.exit(0)
