"""Finished steps of builds, kept so that a build that was interrupted, or another one, does not do them again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from agentenv import locks
from agentenv.images.files import remove_tree, sync_tree
from agentenv.images.progress import Report
from agentenv.images.store import Store


@contextlib.contextmanager
def step(
    store: Store, key: str, build: Callable[[Path], None], *, what: str, report: Report, again: bool = False
) -> Iterator[Path]:
    """A finished step's directory, which stays as it is during the block.

    Args:
        store: Where it is kept.
        key: Of all its ingredients.
        build: Fills the empty directory it is given.
        what: What is made, for those who wait.
        report: Whom to tell.
        again: Whether it is done again even if it is there.
    """
    place = store.root / "steps" / key
    with store.lock(key, report, what) as fd:
        while True:
            if again or not place.is_dir():
                _do(store, place, build)
            store.touch(place)
            # From here on others may read it, too; who collects may have come in between.
            locks.share(fd)
            if place.is_dir():
                break
        yield place


def _do(store: Store, place: Path, build: Callable[[Path], None]) -> None:
    with store.work() as work:
        out = work / "out"
        out.mkdir()
        build(out)
        sync_tree(out)
        if place.is_dir():
            os.rename(place, work / "old")
        os.rename(out, place)
        remove_tree(work / "old")
