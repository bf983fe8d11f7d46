"""Disks that take nothing more, for tests: one that shows an error and is read-only from then on, and some that are."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


class FailingDisk:
    """A mounted file system, which becomes read-only by itself, as ext4 does, whoever has files open there.

    Attributes:
        path: Where it is mounted.
    """

    def __init__(self, path: Path, image: Path, device: str) -> None:
        self.path = path
        self._image, self._device = image, device

    def fail(self) -> None:
        """Have it find an error, with what was written before on it."""
        _run("sync", "-f", self.path)
        Path(f"/sys/fs/ext4/{os.path.basename(self._device)}/trigger_fs_error").write_text("planted")
        try:
            (self.path / "probe").touch()
        except OSError:
            return
        pytest.fail("the disk can be written all the same")

    def repair(self) -> None:
        """Have it checked and mounted again, when nobody uses it."""
        _unmount(self.path)
        # A copy: mount namespaces made meanwhile hold the disk as it was, and the kernel would mount that again.
        copy = self._image.with_suffix(".copy")
        shutil.copyfile(self._image, copy)
        subprocess.run([_program("fsck.ext4"), "-fy", copy], check=False, capture_output=True)
        os.replace(copy, self._image)
        _run("mount", "-o", "loop,errors=remount-ro", self._image, self.path)


@contextmanager
def failing_disk(path: Path, size_mb: int = 64) -> Iterator[FailingDisk]:
    """A disk at an empty directory, which is made; gone after the block. Skips where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("a file system cannot be mounted: be root")
    image = path.with_name(f"{path.name}.ext4")
    with open(image, "wb") as file:
        file.truncate(size_mb << 20)
    path.mkdir()
    _run(_program("mkfs.ext4"), "-q", "-F", image)
    if subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, path], check=False).returncode:
        pytest.skip("a file cannot be mounted as a disk here")
    try:
        device = _run("findmnt", "-no", "SOURCE", path).strip()
        if not os.path.exists(f"/sys/fs/ext4/{os.path.basename(device)}/trigger_fs_error"):
            pytest.skip("this kernel's ext4 cannot be told to find an error")
        yield FailingDisk(path, image, device)
    finally:
        _unmount(path)
        image.unlink()


def read_only(argv: Sequence[str], *paths: Path) -> list[str]:
    """The command line that runs a program which sees directories on disks that are read-only; nobody else does."""
    if os.geteuid() != 0:
        pytest.skip("a file system cannot be mounted: be root")
    script = ""
    for path in paths:
        script += f'mount --bind "{path}" "{path}" && mount -o remount,bind,ro "{path}" && '
    return ["unshare", "-m", "sh", "-c", f'{script}exec "$@"', "sh", *argv]


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if found is None:
        pytest.skip(f"no {name} here: apt-get install e2fsprogs")
    return found


def _unmount(path: Path, within_s: float = 60.0) -> None:
    """Unmount a disk as soon as those that just ended have let go of it."""
    ends = time.monotonic() + within_s
    while (done := subprocess.run(["umount", path], check=False, capture_output=True, text=True)).returncode:
        if time.monotonic() > ends:
            subprocess.run(["umount", "-l", path], check=True)
            pytest.fail(done.stderr)
        time.sleep(0.05)


def _run(*argv: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, capture_output=True, text=True).stdout
