"""The directories of a store of snapshots, and who may change them when.

    snapshots/<id>/     one snapshot each; see ``manifest``
    copies/<id>/        the whole files of an incremental one, as long as somebody may want them again
    checked/<id>.json   what was found right or wrong, so that nothing unchanged is read again; see ``checks``
    tmp/                what is being made, and what is being removed
    lock                held by whoever changes what there is
    ../taking/          memory of machines on its way here; see ``sandbox.taking``

Whoever uses a snapshot, a copy or a directory in ``tmp`` has it locked, and the kernel takes the lock back when they
end, however they end. Everything is made in ``tmp`` and renamed into its place, or out of it before it is removed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentenv import locks
from agentenv.disk import UNWRITABLE, Remedy, no_room, room_for
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.taking import sweep_taking, taking_place

_FOLDERS = ("snapshots", "copies", "checked", "tmp")
_WHAT = "snapshots in "
_MAKE_ROOM = Remedy("agentenv snapshot gc, agentenv snapshot rm NAME", "choose another disk with AGENTENV_DATA=DIR")


class Places:
    """The directories of one store.

    Args:
        root: Made if missing; from then on only its owner can read it.

    Raises:
        RuntimeUnavailable: It cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.snapshots, self.copies, self.checked, self.tmp = (self.root / folder for folder in _FOLDERS)
        self.taking = taking_place(self.root.parent)
        try:
            self.root.mkdir(parents=True, mode=0o700, exist_ok=True)
            # Memory of machines: passwords and keys are in it.
            if self.root.stat().st_mode & 0o077:
                self.root.chmod(0o700)
            for folder in (self.snapshots, self.copies, self.checked, self.tmp):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            if error.errno in UNWRITABLE:
                raise no_room(_WHAT, self.root, _MAKE_ROOM, error.errno) from error
            raise RuntimeUnavailable(
                f"expected to write the store of snapshots {self.root}, got: {error.strerror}",
                "choose another directory with AGENTENV_DATA=DIR",
            ) from error

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one who changes what there is; for short, and never within itself.

        Raises:
            ResourceLimit: The disk is full or read-only.
        """
        with self.room(), locks.locked(self.root / "lock"):
            yield

    @contextlib.contextmanager
    def work(self) -> Iterator[Path]:
        """An empty directory on the disk of the store that is gone after the block.

        Raises:
            ResourceLimit: The disk is full or read-only, or became so in the block.
        """
        with self.room():
            with self.changing():
                # A directory in tmp without a lock is a dead process's.
                self.sweep()
                path = Path(tempfile.mkdtemp(dir=self.tmp))
                fd = locks.take(path)
            assert fd is not None
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
                os.close(fd)

    def room(self) -> contextlib.AbstractContextManager[None]:
        """Turn a disk that is full or read-only into words.

        Raises:
            ResourceLimit: It is.
        """
        return room_for(_WHAT, self.root, _MAKE_ROOM)

    def sweep(self) -> int:
        """Remove what dead processes left; returns how many directories. Only while ``changing``."""
        removed = 0
        for path in self.tmp.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (fd := locks.take(path, wait=False)) is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(fd)
                    removed += 1
        return removed + len(sweep_taking(self.root.parent))

    def hold(self, path: Path) -> int:
        """Keep a directory of the store from being removed until the returned descriptor is closed.

        Raises:
            FileNotFoundError: There is none.
        """
        return locks.hold(path)

    def claim(self, path: Path) -> int | None:
        """Have a directory of the store alone, or None if somebody holds it. Only while ``changing``.

        Raises:
            FileNotFoundError: There is none.
        """
        return locks.take(path, wait=False)

    def take_out(self, path: Path, fd: int) -> Path:
        """Take a claimed directory away from its place at once. What it is called now is removed by ``drop``.

        In a lower layer of an overlay, as in a container made with it, it keeps its place: only what is in it can go.

        Raises:
            OSError: It cannot be, and is claimed no longer.
        """
        gone = self.tmp / f"gone-{path.name}-{os.getpid()}-{fd}"
        try:
            os.rename(path, gone)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno == errno.EXDEV:
                return path
            os.close(fd)
            raise
        return gone

    def drop(self, gone: Path, fd: int) -> int:
        """Remove what was taken out; returns how much it took of the disk, in bytes."""
        size = disk_bytes(gone)
        shutil.rmtree(gone, ignore_errors=True)
        os.close(fd)
        return size


def disk_bytes(*paths: Path) -> int:
    """What directories' files take of the disk; what vanishes meanwhile, and second names, count nothing."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in itertools.chain.from_iterable(map(os.walk, paths)):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
