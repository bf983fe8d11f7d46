"""What takes its time, off the thread that plays.

An answer that did not fit into shared memory comes over a socket, at the speed the guest chooses. An environment that
died is brought back, one whose state is due to be saved has to give it. Any of these would hold up everybody. Whoever
has not sent everything after a while is ended; how long the rest may take is watched elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from agentenv.errors import AgentEnvError, Cause, CauseKind, Owner
from agentenv.fleet.player import Player

logger = logging.getLogger("agentenv.fleet")

_THREADS = 8
_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Errand:
    """What was done for a player.

    Attributes:
        player: For whom.
        taken: Its answer was taken; else its request was sent.
        error: Why it failed, or None.
    """

    player: Player
    taken: bool
    error: Exception | None


class Errands:
    """Runs errands for players.

    Args:
        notify: Called from another thread when there is something to collect.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        # Threads that outlive each errand: where the kernel ties a child's life to its parent's, it means the thread.
        self._pool = ThreadPoolExecutor(_THREADS, "agentenv-errand")
        self._done: SimpleQueue[Errand] = SimpleQueue()
        self._deadlines: dict[Player, float] = {}

    def take(self, player: Player) -> None:
        """Take this player's answer."""
        if player.spilled():
            self._deadlines[player] = time.monotonic() + _DEADLINE_S
        self._pool.submit(self._run, player, player.take, True)

    def ask(self, player: Player) -> None:
        """Send what this player has held back."""
        self._pool.submit(self._run, player, player.ask, False)

    def collect(self) -> list[Errand]:
        """What was done since the last call."""
        found: list[Errand] = []
        while True:
            try:
                one = self._done.get_nowait()
            except Empty:
                return found
            self._deadlines.pop(one.player, None)
            found.append(one)

    def check(self, now: float) -> None:
        """End those whose answers take too long."""
        for player in [player for player, ends in self._deadlines.items() if now > ends]:
            del self._deadlines[player]
            detail = f"promised a large answer and had not sent it after {_DEADLINE_S:g} s"
            player.sandbox.kill(Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, detail))

    def close(self) -> None:
        """End the threads. Call when no sandbox lives any more, so that nobody waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, player: Player, errand: Callable[[], None], taken: bool) -> None:
        error: Exception | None = None
        try:
            errand()
        except Exception as raised:
            # Nobody would ever hear of this player again: whatever it was ends this one, and no other.
            if not isinstance(raised, (AgentEnvError, OSError)):
                logger.debug("%s: unexpected", player.progress.env_id, exc_info=True)
            error = raised
        self._done.put(Errand(player, taken, error))
        self._notify()
