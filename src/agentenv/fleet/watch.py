"""One thread that notices deaths and missed deadlines, so that the step path has to do neither.

It sleeps on the pidfds of all sandboxes and wakes ten times a second to look at the deadlines of running waits. What it
does is always the same: have the sandbox killed if it is late, then wake whoever waits for it. It touches no result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from dataclasses import dataclass

from agentenv.channel.shm import ShmChannel
from agentenv.errors import AgentEnvError, Cause, CauseKind, Owner
from agentenv.sandbox.contract import Sandbox

logger = logging.getLogger("agentenv.fleet")

_TICK_S = 0.1


@dataclass(slots=True)
class Watched:
    """A sandbox, and which group of which channel it is."""

    sandbox: Sandbox
    channel: ShmChannel
    group: int


class Watch:
    """Watches any number of sandboxes; starts its thread with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._epoll = select.epoll()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, sandbox: Sandbox, channel: ShmChannel, group: int) -> None:
        """Watch a sandbox from now on."""
        with self._lock:
            self._watched[sandbox.pidfd] = Watched(sandbox, channel, group)
            self._epoll.register(sandbox.pidfd, select.EPOLLIN | select.EPOLLONESHOT)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentenv-watch", daemon=True)
                self._thread.start()

    def remove(self, sandbox: Sandbox) -> None:
        """Watch it no longer. Call before its descriptors are closed; when this returns, the thread is done with it."""
        with self._lock:
            if self._watched.pop(sandbox.pidfd, None) is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(sandbox.pidfd)

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watched.clear()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._epoll.close()

    def _run(self) -> None:
        while True:
            events = self._epoll.poll(_TICK_S)
            with self._lock:
                if self._closed:
                    return
                for fd, _ in events:
                    watched = self._watched.get(fd)
                    if watched is not None:
                        watched.channel.interrupt(watched.group)
                now = time.monotonic()
                late: list[Watched] = []
                for watched in self._watched.values():
                    deadline = watched.channel.deadline
                    if deadline is not None and now > deadline and watched.group in watched.channel.late():
                        late.append(watched)
            for watched in late:
                self._end(watched)

    def _end(self, watched: Watched) -> None:
        busy = _is_busy(watched.sandbox)
        how = "busy computing" if busy else "blocked, using no CPU"
        try:
            watched.sandbox.kill(
                Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, f"did not answer before its deadline; it was {how}")
            )
        except AgentEnvError as error:
            logger.error("%s", error)
        finally:
            with self._lock:
                # By now the group may belong to the sandbox that was started in place of this one.
                if any(other is watched for other in self._watched.values()):
                    watched.channel.interrupt(watched.group, timed_out=True)


def _is_busy(sandbox: Sandbox) -> bool:
    """Whether it used CPU during the next few milliseconds."""
    before = sandbox.usage()
    threading.Event().wait(0.05)
    after = sandbox.usage()
    return before is not None and after is not None and after.cpu_s - before.cpu_s > 0.01


def raise_descriptor_limit(needed: int) -> int:
    """Raise this process's soft limit of open files if ``needed`` more would not fit; returns the limit in force."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 64
    wanted = used + needed + 64
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
