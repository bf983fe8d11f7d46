"""Reading answers that did not fit into shared memory, off the thread that plays.

Such an answer comes over a socket, at the speed the guest chooses; one that trickles or stops would hold up everybody.
Whoever has not sent everything after a while is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from agentenv.errors import Cause, CauseKind, Owner, SandboxError
from agentenv.fleet.player import Player

_THREADS = 4
_DEADLINE_S = 10.0


class Spills:
    """Takes the answers of players one would have to wait for.

    Args:
        notify: Called from another thread when there is something to collect.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._pool = ThreadPoolExecutor(_THREADS, "agentenv-spill")
        self._done: SimpleQueue[tuple[Player, SandboxError | None]] = SimpleQueue()
        self._deadlines: dict[Player, float] = {}

    def read(self, player: Player) -> None:
        """Take this player's answer."""
        self._deadlines[player] = time.monotonic() + _DEADLINE_S
        self._pool.submit(self._take, player)

    def collect(self) -> list[tuple[Player, SandboxError | None]]:
        """The players whose answer was taken since the last call, or failed to be."""
        found: list[tuple[Player, SandboxError | None]] = []
        while True:
            try:
                one = self._done.get_nowait()
            except Empty:
                return found
            self._deadlines.pop(one[0], None)
            found.append(one)

    def check(self, now: float) -> None:
        """End those that take too long."""
        for player in [player for player, ends in self._deadlines.items() if now > ends]:
            del self._deadlines[player]
            detail = f"promised a large answer and had not sent it after {_DEADLINE_S:g} s"
            player.sandbox.kill(Cause(CauseKind.TIMEOUT, Owner.ENVIRONMENT, detail))

    def close(self) -> None:
        """End the threads. Call when no sandbox lives any more, so that nobody waits."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take(self, player: Player) -> None:
        error: SandboxError | None = None
        try:
            player.take()
        except SandboxError as raised:
            error = raised
        self._done.put((player, error))
        self._notify()
