"""The same done with several things at once, by commands that whoever started them may have enough of."""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], at_once: int) -> list[Result]:
    """What comes of each, in their order.

    An interruption waits for none of them: what was asked for by then goes on without this process.

    Args:
        work: Is called with each, by threads.
        items: The things.
        at_once: How many threads at most.

    Raises:
        BaseException: What it raised for one; the others are not waited for.
    """
    left = collections.deque(enumerate(items))
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()

    def go() -> None:
        while True:
            try:
                index, item = left.popleft()
            except IndexError:
                return
            try:
                done.put((index, work(item), None))
            except BaseException as error:
                done.put((index, None, error))

    found: dict[int, Result] = {}
    try:
        for _ in range(min(at_once, len(items))):
            threading.Thread(target=go, name="agentenv-side-by-side", daemon=True).start()
        for _ in items:
            index, result, error = done.get()
            if error is not None:
                raise error
            found[index] = result  # type: ignore[assignment]  # without an error there is one
    finally:
        left.clear()
    return [found[index] for index in range(len(items))]
