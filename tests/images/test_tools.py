"""The tools drive: an interpreter that runs where there is nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import agentenv
from agentenv.errors import RuntimeUnavailable
from agentenv.images.programs import need_program
from agentenv.images.store import Store
from agentenv.images.tools import tools_drive
from agentenv.sandbox.runtimes._bwrap import find_binary

CODE = """
import sys, os, json, socket, struct, subprocess, selectors, signal, ctypes, threading, zlib, hashlib, tempfile, random
import select, fcntl, mmap, logging, datetime, traceback, asyncio, multiprocessing.connection, encodings.idna
import agentenv.errors, agentenv.wire, agentenv.wire.frames, agentenv.guest
assert sys.flags.isolated, sys.flags
assert sorted(os.listdir("/")) == [".agentenv", "tmp"], os.listdir("/")
assert sys.prefix == "/.agentenv", sys.prefix
assert all(path.startswith("/.agentenv/") for path in sys.path), sys.path
ctypes.CDLL(None).getpid()
try:
    agentenv.errors.counted("x", "thing")
except ValueError:
    assert "errors.py" in traceback.format_exc(), traceback.format_exc()
print(json.dumps(sys.version_info[:2]), hashlib.sha256(b"").hexdigest()[:8], hashlib.blake2b(b"").hexdigest()[:8])
"""


@pytest.fixture(scope="module")
def drive(dear_store: Store, need) -> Path:
    need("busybox", "mkfs.ext4", "ldd")
    return tools_drive(dear_store)


@pytest.fixture(scope="module")
def inside(drive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is on the drive, as files."""
    place = tmp_path_factory.mktemp("inside")
    argv = [need_program("debugfs", "to look"), "-R", f"rdump / {place}", str(drive)]
    subprocess.run(argv, capture_output=True, check=True)
    return place


def run(inside: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    bwrap = [
        find_binary(None),
        "--unshare-all",
        "--die-with-parent",
        "--clearenv",
        "--ro-bind",
        str(inside),
        "/.agentenv",
    ]
    return subprocess.run([*bwrap, "--tmpfs", "/tmp", "--", *argv], capture_output=True, text=True, timeout=60)


def test_it_is_made_once(drive: Path, dear_store: Store) -> None:
    assert tools_drive(dear_store) == drive


def test_its_python_runs_in_an_empty_system(inside: Path) -> None:
    done = run(inside, "/.agentenv/bin/python", "-I", "-c", CODE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" e3b0c442 786a02f7\n")


def test_the_agent_is_started_by_its_launcher(inside: Path, tmp_path: Path) -> None:
    launcher = inside / "bin/agent"
    assert "-m agentenv.guest.agent" in launcher.read_text()
    # The launcher, the loader and the interpreter are found; the agent then waits for a host, or misses a machine.
    done = run(inside, "/.agentenv/bin/busybox", "timeout", "-s", "KILL", "5", "/.agentenv/bin/agent")
    waits, misses = done.returncode == 137, "the agent failed: " in done.stdout
    assert waits or misses, (done.returncode, done.stdout, done.stderr)


def test_the_systems_own_python_finds_our_packages(tmp_path: Path, need) -> None:
    # Debian's looks elsewhere than all others; this one may be another.
    need("ldd")
    system = "/usr/bin/python3"
    if subprocess.run([system, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip(f"there is no {system}")
    home = tmp_path / "home"
    code = "import sys; from pathlib import Path; from agentenv.images.interpreter import copy_interpreter as copy;"
    made = subprocess.run(
        [system, "-c", f"{code} print(copy(Path(sys.argv[1])))", str(home)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(Path(agentenv.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (home / "packages").mkdir()
    (home / "packages/ours.py").write_text("print('found')\n")
    python = [f"/.agentenv/lib/{made.stdout.strip()}", "--library-path", "/.agentenv/lib", "/.agentenv/bin/python3"]
    done = run(home, *python, "-I", "-c", "import ours")
    assert (done.stdout, done.stderr) == ("found\n", "")


def test_other_code_is_another_drive(dear_store: Store, drive: Path, tmp_path: Path) -> None:
    for name in ("guest", "wire"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("changed = True\n")
    (tmp_path / "errors.py").write_text("")
    other = tools_drive(dear_store, source=tmp_path)
    assert other != drive
    assert other.stat().st_size < 80 << 20


def test_a_static_python_cannot_be_copied(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("agentenv.images.interpreter.find_loader", lambda path: None)
    with pytest.raises(RuntimeUnavailable, match="linked statically"):
        tools_drive(store)
