"""A program that kills itself at every step of what a store does, one after another, and looks at what is left.

Each attempt is made in a forked process that counts what it asks of the file system, and ends by SIGKILL before the
N-th of these; N goes up until the work is done before. Writing and syncing are not counted: between two counted steps
they change only what is not yet, or no longer, in its place.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from agentenv.snapshots import adding, whole  # noqa: F401 (before anything is counted)
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, contents, follow, make, opened

COUNTED = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.link",
    "os.remove",
    "os.rmdir",
    "os.utime",
    "os.truncate",
    "fcntl.flock",
)


def attempt(work: Callable[[], object], step: int) -> bool:
    """Do it, but for what comes from a step on; whether it came to its end."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: object) -> None:
            nonlocal left
            if event in COUNTED:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"step {step}: status {status}"
    return status == 0


class Trial:
    """A store in which one thing is done again and again, ended a step later each time.

    Args:
        root: An empty directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = SnapshotStore(root / "store")
        self.start = contents(make(root / "start", FULL, drive=FULL))
        self.parent = self.store.add(root / "start", name="base")
        self.known = {self.parent.id: self.start}

    def source(self, step: int) -> Path:
        """Files that differ a little from the first ones, and from those of other steps."""
        return follow(self.root, f"source-{step}", self.start, {number: f"{step}".encode() for number in (0, 7)})

    def adding(self, step: int, name: str, *, full: bool = False) -> bool:
        """Add one; it is there or not, and then its files are where they were."""
        source = self.source(step)
        expected = contents(source)
        before = self._names()
        parent = None if full else self.parent
        done = attempt(lambda: self.store.add(source, name=name, parent=parent, replace=True), step)
        found = self._names()
        if found.get(name) != before.get(name):
            assert opened(self.store, name) == expected
        else:
            assert contents(source) == expected, "nothing of the source may be gone"
            assert found == before, "the name is as before"
            assert not done
        return done

    def leaving(self, step: int, action: str) -> bool:
        """Put one together, collect it or remove it."""
        source = self.source(step)
        expected = contents(source)
        made = self.store.add(source, parent=self.parent, name="child" if action == "open" else None, replace=True)
        self.known[made.id] = expected
        if action == "open":
            self.store.gc(now=True)
            done = attempt(lambda: opened(self.store, made), step)
            assert opened(self.store, made) == expected
        elif action == "gc":
            done = attempt(lambda: self.store.gc(now=True), step)
        else:
            done = attempt(lambda: self.store.remove(made), step)
        return done

    def check(self) -> None:
        """Everything that is there can be given back."""
        for one in self.store.list():
            assert not one.damage, one
            self.store.verify(one)
            assert one.id not in self.known or opened(self.store, one) == self.known[one.id]
        assert self.store.find("base").id == self.parent.id

    def clear(self) -> None:
        """Remove all but the first one; nothing else may be left."""
        for name in self._names():
            if name != "base":
                self.store.remove(name)
        self.store.gc(now=True)
        left = [one.id for one in self.store.list()]
        assert left == [self.parent.id]
        folders = {folder: sorted(os.listdir(self.store.root / folder)) for folder in ("tmp", "copies", "checked")}
        assert folders == {"tmp": [], "copies": [], "checked": [f"{id}.json" for id in left]}

    def _names(self) -> dict[str, str]:
        named = [(one.name, one.id) for one in self.store.list() if one.name]
        assert len(dict(named)) == len(named), "a name means one snapshot"
        return dict(named)


def main(action: str, root: Path) -> None:
    trial = Trial(root)
    step, done = 0, False
    while not done:
        step += 1
        if action in ("add", "full", "replace"):
            done = trial.adding(step, "same" if action == "replace" else f"n{step}", full=action == "full")
        else:
            done = trial.leaving(step, action)
        trial.check()
        if step % 5 == 0 or done:
            trial.clear()
    print(step)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
