"""How long work is reported by those who do it, without knowing whether a terminal, a log or nobody listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

LOGGER = logging.getLogger("agentenv.images")
LONG_S = 2.0


class Task(Protocol):
    """A piece of work that goes on."""

    def advance(self, amount: float) -> None:
        """So much more of its total is done."""


class Report(Protocol):
    """Whoever wants to know."""

    def say(self, text: str) -> None:
        """Something worth one line."""

    def task(self, text: str, total: float | None = None) -> AbstractContextManager[Task]:
        """Work that begins now and ends with the block.

        Args:
            text: What is done, as in "unpacking layer 1 of 3".
            total: How much there is of it, in bytes; None where nobody knows.
        """


class _Quiet:
    def advance(self, amount: float) -> None:
        return None


class Lines:
    """One line for what is done, and another for what took more than two seconds, as log records."""

    def say(self, text: str) -> None:
        """One line."""
        LOGGER.info("%s", text)

    @contextmanager
    def task(self, text: str, total: float | None = None) -> Iterator[Task]:
        """A line at its start, and one at its end if it was long."""
        LOGGER.info("%s", text)
        started = time.monotonic()
        yield _Quiet()
        took = time.monotonic() - started
        if took >= LONG_S:
            LOGGER.info("%s: done in %.1f s", text, took)


LINES = Lines()
