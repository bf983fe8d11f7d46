"""A directory of a system that runs, packed: what vanishes, what cannot be read, what the kernel makes up."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.guest.agent.packing import pack
from agentenv.sandbox.runtimes._bwrap import find_binary

_LARGE = 1_000_000  # more than a pipe holds
_INSIDE = """
import os, sys
from agentenv.guest.agent.packing import pack
import encodings.idna
os.chroot(sys.argv[1])
os.chdir("/")
pack("/.", 1)
"""


class Packing:
    """Packs in a thread; has listed the directory and begun with its first file when it is there."""

    def __init__(self, path: str) -> None:
        self._ours, theirs = os.pipe()
        self._errors: list[OSError] = []
        self._thread = threading.Thread(target=self._pack, args=(path, theirs), daemon=True)
        self._thread.start()
        self._packed = os.read(self._ours, 4096)

    def _pack(self, path: str, theirs: int) -> None:
        try:
            pack(path, theirs)
        except OSError as error:
            self._errors.append(error)
        finally:
            os.close(theirs)

    def end(self) -> bytes:
        with open(self._ours, "rb") as rest:
            self._packed += rest.read()
        self._thread.join()
        for error in self._errors:
            raise error
        return self._packed


def kinds(packed: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {one.name: one.type for one in archive}


@pytest.fixture
def changing(tmp_path: Path) -> Path:
    (tmp_path / "a").write_bytes(bytes(_LARGE))
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "c/below").mkdir(parents=True)
    return tmp_path


def test_what_vanishes_meanwhile_is_not_there(changing: Path) -> None:
    packing = Packing(f"{changing}/.")
    (changing / "b").unlink()
    shutil.rmtree(changing / "c")
    assert kinds(packing.end()) == {".": tarfile.DIRTYPE, "./a": tarfile.REGTYPE}


def test_what_becomes_shorter_meanwhile_is_named(changing: Path) -> None:
    packing = Packing(f"{changing}/.")
    os.truncate(changing / "a", 1000)
    with pytest.raises(OSError, match=f"{changing}/a: it became shorter") as caught:
        packing.end()
    assert caught.value.errno == errno.EIO


def test_what_is_not_there_at_all_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/none: No such file"):
        pack(f"{tmp_path}/none/.", 1)


def test_what_the_kernel_says_of_a_process_is_read_as_far_as_it_can_be() -> None:
    with _sleeping() as process:
        packed = Packing(f"/proc/{process.pid}").end()
        name = Path(f"/proc/{process.pid}/comm").read_bytes()
    found = kinds(packed)
    assert found["./mem"] == tarfile.FIFOTYPE, "which cannot be read from its beginning"
    assert found["./cwd"] == tarfile.SYMTYPE
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        comm = archive.extractfile("./comm")
        assert comm is not None
        assert comm.read() == name, "though its size is said to be 0"


@contextlib.contextmanager
def _sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_what_the_kernel_makes_up_below_is_not_gone_through(tmp_path: Path) -> None:
    try:
        bwrap = find_binary(None)
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    for name in ("proc", "run", "sys", "tmp", ".agentenv"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("x")
    argv = [bwrap, "--bind", "/", "/", "--proc", f"{tmp_path}/proc", "--tmpfs", f"{tmp_path}/run"]
    argv += ["--bind", "/sys", f"{tmp_path}/sys", "--tmpfs", f"{tmp_path}/tmp", "--dir", f"{tmp_path}/tmp/kept"]
    argv += [
        "--dir",
        f"{tmp_path}/run/lock",
        "--tmpfs",
        f"{tmp_path}/.agentenv",
        "--unshare-user",
        "--cap-add",
        "CAP_SYS_CHROOT",
    ]
    done = subprocess.run(
        [*argv, "--", sys.executable, "-c", _INSIDE, str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    directories = dict.fromkeys(
        (".", "./proc", "./run", "./sys", "./tmp", "./tmp/kept", "./.agentenv"), tarfile.DIRTYPE
    )
    left_out = dict.fromkeys(("./proc/*", "./run/*", "./sys/*", "./.agentenv/*"), tarfile.FIFOTYPE)
    assert kinds(done.stdout) == {**directories, **left_out, "./file": tarfile.REGTYPE}
