"""Notices deaths and missed deadlines, so that the step path has to do neither.

One thread sleeps on the pidfds of all sandboxes and wakes ten times a second to look at the deadlines of running
waits. What it does is always the same: have the sandbox ended if it is late, then wake whoever waits for it. It touches
no result. Who is late is looked at first - what it does, where its Python stands - by a thread of its own, because that
takes a moment in which others may die.
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
from agentenv.errors import AgentEnvError
from agentenv.fleet.evidence import Evidence, StackOutput, look, take_stacks
from agentenv.sandbox.cause import Look, classify_late
from agentenv.sandbox.contract import Sandbox

logger = logging.getLogger("agentenv.fleet")

_TICK_S = 0.1
_JOIN_S = 5.0
_KEPT = 4096
_UNSEEN = Look("gone", None, 0.0)


@dataclass(slots=True, eq=False)
class Watched:
    """A sandbox, and which group of which channel it is; ``ending`` once it was found to be late, then ``ended``."""

    sandbox: Sandbox
    channel: ShmChannel
    group: int
    ending: bool = False
    ended: bool = False


class Watch:
    """Watches any number of sandboxes; starts its thread with the first one."""

    def __init__(self, output: StackOutput | None = None) -> None:
        """``output`` is where stacks are read from; None takes none."""
        self._output = output
        self._lock = threading.Lock()
        self._watched: dict[int, Watched] = {}
        self._evidence: dict[str, Evidence] = {}
        self._epoll = select.epoll()
        self._thread: threading.Thread | None = None
        self._enders: list[threading.Thread] = []
        self._closed = False

    def add(self, sandbox: Sandbox, channel: ShmChannel, group: int) -> None:
        """Watch a sandbox from now on."""
        with self._lock:
            self._watched[sandbox.pidfd] = Watched(sandbox, channel, group)
            self._evidence.pop(sandbox.spec.id, None)
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

    def evidence(self, sandbox_id: str) -> Evidence | None:
        """What was seen of a sandbox before it was ended for being late, until it is started again; None otherwise."""
        with self._lock:
            return self._evidence.get(sandbox_id)

    def close(self) -> None:
        """End the threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._watched.clear()
            threads = [*self._enders] if self._thread is None else [self._thread, *self._enders]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout=_JOIN_S)
        self._epoll.close()

    def _run(self) -> None:
        while True:
            events = self._epoll.poll(_TICK_S)
            with self._lock:
                if self._closed:
                    return
                for fd, _ in events:
                    watched = self._watched.get(fd)
                    # Asked once more: what was seen before the lock was held may have been another's descriptor. Who is
                    # ending is left to whoever ends it, who says so, and why.
                    if watched is not None and not watched.ending and _has_ended(fd):
                        watched.channel.interrupt(watched.group)
                late = self._find_late(time.monotonic())
                self._enders = [thread for thread in self._enders if thread.is_alive()]
                if late:
                    ender = threading.Thread(target=self._end, args=(late,), name="agentenv-ender", daemon=True)
                    ender.start()
                    self._enders.append(ender)

    def _find_late(self, now: float) -> list[Watched]:
        """Under the lock: who missed its deadline and was not found before."""
        late = [watched for watched in self._watched.values() if _is_late(watched, now)]
        for watched in late:
            if watched.ended:
                watched.channel.interrupt(watched.group)  # it was, and something it has left behind took the ring
        late = [watched for watched in late if not watched.ending]
        for watched in late:
            watched.ending = True
        return late

    def _end(self, late: list[Watched]) -> None:
        found: list[Evidence | None] = [None] * len(late)
        try:
            looks = look([watched.sandbox for watched in late])
            # Whoever answered meanwhile was just in time. From here on nobody is let off: to be asked for its stack
            # may wake what is blocked.
            kept = [number for number, one in enumerate(late) if self._still_late(one)]
            late, looks = [late[number] for number in kept], [looks[number] for number in kept]
            found = [None] * len(late)
            found = [*self._examine([watched.sandbox for watched in late], looks)]
        except Exception:
            # Whatever could not be found out, nobody may be left waiting for ever.
            logger.exception("environments that were late could not be looked at; they are ended all the same")
        for watched, evidence in zip(late, found, strict=True):
            if evidence is not None:
                self._keep(watched, evidence)
            self._kill(watched, _UNSEEN if evidence is None else evidence.look)

    def _still_late(self, watched: Watched) -> bool:
        with self._lock:
            watched.ending = self._is_watched(watched) and _is_late(watched, time.monotonic())
            return watched.ending

    def _examine(self, sandboxes: list[Sandbox], looks: list[Look]) -> list[Evidence]:
        usages = [sandbox.usage() for sandbox in sandboxes]
        stacks = [""] * len(sandboxes) if self._output is None else take_stacks(sandboxes, self._output)
        return [Evidence(*one) for one in zip(looks, stacks, usages, strict=True)]

    def _keep(self, watched: Watched, evidence: Evidence) -> None:
        with self._lock:
            if self._is_watched(watched):
                self._evidence[watched.sandbox.spec.id] = evidence
                if len(self._evidence) > _KEPT:
                    del self._evidence[next(iter(self._evidence))]

    def _kill(self, watched: Watched, seen: Look) -> None:
        try:
            watched.sandbox.kill(classify_late(seen))
        except AgentEnvError as error:
            logger.error("%s", error)
        finally:
            with self._lock:
                # By now the group may belong to the sandbox that was started in place of this one.
                if self._is_watched(watched):
                    watched.channel.interrupt(watched.group, timed_out=True)
                    watched.ended = True

    def _is_watched(self, watched: Watched) -> bool:
        return any(other is watched for other in self._watched.values())


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _is_late(watched: Watched, now: float) -> bool:
    deadline = watched.channel.deadline
    return deadline is not None and now > deadline and watched.group in watched.channel.late()


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
