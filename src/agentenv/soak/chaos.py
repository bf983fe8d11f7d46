"""Killing processes of sandboxes at random moments, as the kernel's out-of-memory killer or a colleague would.

The moments are a Poisson process and do not know what the stepping thread does, so kills fall into steps, resets and
restarts alike. A process is killed through a pidfd, after a look that it still belongs to a sandbox: a stranger who was
given its number is never hit. What starts the sandboxes is not among the victims.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Sequence

from agentenv.errors import ClosedError
from agentenv.sandbox.contract import Sandbox
from agentenv.soak.counts import tree


class Chaos:
    """A thread that kills, from ``start`` to ``stop``.

    Attributes:
        kills: Processes killed so far.
    """

    def __init__(self, sandboxes: Callable[[], Sequence[Sandbox]], kills_per_minute: float, seed: int) -> None:
        """Prepare.

        Args:
            sandboxes: Gives those that may be hit, at any moment.
            kills_per_minute: On average; more than 0.
            seed: Of the moments and the choice.

        Raises:
            ValueError: A rate that is not more than 0.
        """
        if not kills_per_minute > 0:
            raise ValueError(f"expected more than 0 kills a minute, got {kills_per_minute}")
        self.kills = 0
        self._sandboxes = sandboxes
        self._mean_s = 60.0 / kills_per_minute
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentenv-chaos", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Kill no more; returns when the last kill is done."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._random.expovariate(1.0 / self._mean_s)):
            self.kill_one()

    def kill_one(self) -> bool:
        """Kill a random process of a random sandbox; returns whether one was there."""
        try:
            living = [sandbox.pid for sandbox in self._sandboxes() if sandbox.pid > 0 and sandbox.alive()]
        except ClosedError:
            return False
        if not living:
            return False
        root = self._random.choice(living)
        family = tree(root)
        if not family:
            return False
        victim = self._random.choice(family)
        try:
            pidfd = os.pidfd_open(victim)
        except OSError:
            return False
        try:
            if victim not in tree(root):
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except OSError:
            return False
        finally:
            os.close(pidfd)
        self.kills += 1
        return True
