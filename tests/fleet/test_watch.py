"""The watch tells whoever waits that a sandbox has ended, and never of one that has not."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentenv.fleet.watch import Watch
from agentenv.testing.leftovers import becomes_true


class Channel:
    """Notes who was interrupted; nobody is ever late."""

    deadline = None

    def __init__(self) -> None:
        self.interrupted: list[int] = []

    def interrupt(self, group: int) -> None:
        self.interrupted.append(group)


class Late:
    """An epoll whose events arrive a moment after they were true, as in a thread that got no processor meanwhile."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.held = threading.Event()
        self.let_go = threading.Event()
        self.looked = 0

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = self._real.poll(timeout)
        if events and not self.let_go.is_set():
            self.held.set()
            self.let_go.wait(20)
        self.looked += 1
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Process:
    """As a sandbox, for as long as its standard input is open."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pidfd = os.pidfd_open(self._process.pid)
        self.spec = SimpleNamespace(id="one")

    def end(self) -> None:
        self._process.communicate(b"\n")
        select.select([self.pidfd], [], [], 20)

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.close()


def test_an_end_is_told_once(watch: Watch) -> None:
    channel: Any = Channel()
    sandbox: Any = Process()
    watch.add(sandbox, channel, 3)
    sandbox.end()
    assert becomes_true(lambda: channel.interrupted == [3], 10)
    watch.remove(sandbox)
    sandbox.close()


@pytest.mark.timeout(40)
def test_the_end_of_one_is_not_told_of_the_next_with_the_same_descriptor(watch: Watch) -> None:
    late: Any = Late(watch._epoll)
    watch._epoll = late
    channel: Any = Channel()
    old: Any = Process()
    watch.add(old, channel, 0)
    old.end()
    assert late.held.wait(20)
    number = old.pidfd
    watch.remove(old)
    old.close()
    new: Any = Process()
    if new.pidfd != number:
        os.dup2(new.pidfd, number, inheritable=False)
        new.close()
        new.pidfd = number
    watch.add(new, channel, 0)
    looked = late.looked
    late.let_go.set()
    assert becomes_true(lambda: late.looked > looked + 1, 10)
    assert channel.interrupted == []
    new.end()
    assert becomes_true(lambda: channel.interrupted == [0], 10)
    watch.remove(new)
    new.close()
