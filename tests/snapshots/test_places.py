"""Locks of directories that are removed while somebody waits for them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agentenv.snapshots.places import Places, disk_bytes
from cli_watch import poll


def is_awaited(path: Path) -> bool:
    """Whether somebody waits for the lock of a directory."""
    inode = f":{path.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize("again", [True, False])
def test_who_waits_for_what_is_removed_does_not_hold_it(tmp_path: Path, again: bool) -> None:
    places = Places(tmp_path / "store")
    path = places.copies / "one"
    path.mkdir()
    held: list[object] = []

    def hold() -> None:
        try:
            held.append(places.hold(path))
        except FileNotFoundError as error:
            held.append(error)

    fd = places.claim(path)
    assert fd is not None
    assert places.claim(path) is None
    waiter = threading.Thread(target=hold)
    waiter.start()
    poll(lambda: is_awaited(path), "somebody who waits for it")
    gone = places.take_out(path, fd)
    if again:
        path.mkdir()
    places.drop(gone, fd)
    waiter.join(timeout=20)
    (found,) = held
    if again:
        assert isinstance(found, int)
        assert os.path.samestat(os.fstat(found), path.stat())
        assert places.claim(path) is None
        os.close(found)
    else:
        assert isinstance(found, FileNotFoundError)


def test_what_cannot_be_taken_out_is_claimed_no_longer(tmp_path: Path) -> None:
    places = Places(tmp_path / "store")
    path = places.copies / "one"
    path.mkdir()
    before = os.listdir("/proc/self/fd")
    fd = places.claim(path)
    assert fd is not None
    (places.tmp / f"gone-one-{os.getpid()}-{fd}").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        places.take_out(path, fd)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    os.close(places.hold(path))


def test_what_is_worked_on_is_not_swept_and_is_gone_afterwards(tmp_path: Path) -> None:
    places = Places(tmp_path / "store")
    with places.work() as one, places.work() as two:
        (one / "file").write_bytes(bytes(100_000))
        with places.changing():
            assert Places(tmp_path / "store").sweep() == 0
        assert disk_bytes(places.tmp) >= 100_000
        assert sorted(places.tmp.iterdir()) == sorted([one, two])
    assert list(places.tmp.iterdir()) == []
