"""Machines that are brought back before anybody asks for them: they stand still, and are nobody yet.

Starting a monitor and giving it a machine's state is most of what a machine costs until it goes on. A pool does that in
a thread of its own, for every kind of machine that was asked for, and gives one away at once when one of its kind is
asked for again. Who takes it makes it somebody (``guest.agent.personal``), as with any other.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import AgentEnvError
from agentenv.sandbox.runtimes._vm.machine import Machine

logger = logging.getLogger("agentenv.sandbox")


@dataclass(frozen=True, slots=True)
class Warm:
    """A machine that stands still.

    Attributes:
        machine: The machine.
        home: Its directory; goes with it.
    """

    machine: Machine
    home: Path


class WarmPool:
    """Machines by what they were brought back from. May be used by several threads."""

    def __init__(self, size: int, discard: Callable[[Warm], None]) -> None:
        """Keep nothing yet.

        Args:
            size: How many of each kind are kept ready; 0 keeps none.
            discard: Ends one that nobody will take.
        """
        self._size, self._discard = size, discard
        self._changed = threading.Condition()
        self._ready: defaultdict[str, list[Warm]] = defaultdict(list)
        self._makers: dict[str, Callable[[], Warm]] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, kind: str) -> Warm | None:
        """One of a kind, the caller's from now on; None where none is ready."""
        with self._changed:
            while self._ready[kind]:
                warm = self._ready[kind].pop()
                self._changed.notify()
                if warm.machine.alive():
                    return warm
                self._discard(warm)
        return None

    def keep(self, kind: str, make: Callable[[], Warm]) -> None:
        """From now on keep machines of a kind ready.

        Args:
            kind: What they are brought back from.
            make: Brings one back.
        """
        if not self._size:
            return
        with self._changed:
            if self._closed:
                return
            self._makers[kind] = make
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._fill, name="agentenv-warm", daemon=True)
                self._thread.start()

    def ready(self) -> int:
        """How many stand ready."""
        with self._changed:
            return sum(len(warm) for warm in self._ready.values())

    def close(self) -> None:
        """End all that nobody has taken. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        for kept in self._ready.values():
            for warm in kept:
                self._discard(warm)
        self._ready.clear()

    def _fill(self) -> None:
        while (wanted := self._next()) is not None:
            kind, make = wanted
            try:
                warm = make()
            except (AgentEnvError, OSError) as error:
                # Nobody has asked for it: whoever will ask meets the same and is told.
                logger.debug("a machine could not be kept ready: %s", error)
                with self._changed:
                    self._makers.pop(kind, None)
                continue
            with self._changed:
                if not self._closed:
                    self._ready[kind].append(warm)
                    continue
            self._discard(warm)

    def _next(self) -> tuple[str, Callable[[], Warm]] | None:
        """Wait until one is wanted: its kind and what makes it; None when there is nobody to want any."""
        with self._changed:
            while not self._closed:
                for kind, make in self._makers.items():
                    if len(self._ready[kind]) < self._size:
                        return kind, make
                self._changed.wait()
        return None
