"""The machine that has KVM: two boots, and what can be said without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_watch import descendants, poll, running
from kvmlab_parts.assets import cache_home
from kvmlab_parts.cpio import archive
from kvmlab_parts.errors import LabError
from kvmlab_parts.job import hidden
from kvmlab_parts.kernel import NEEDED, load_order
from kvmlab_parts.stream import Stream

ROOT = Path(__file__).resolve().parents[2]
KVMLAB = [sys.executable, str(ROOT / "tools" / "kvmlab")]
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "dpkg-deb": "dpkg"}
UP_S = 240
"""Emulated, beside all else that a machine does: far more than the 4 s that a boot takes alone."""


def call(*arguments: str, **given: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*KVMLAB, *arguments], capture_output=True, timeout=UP_S, check=False, **given)


@pytest.fixture(scope="module")
def fetched() -> None:
    """What a machine is made of."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install --no-install-recommends {package}")
    done = call("fetch")
    if b"could not" in done.stderr:
        pytest.skip(done.stderr.decode())
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def started(fetched: None) -> Iterator[subprocess.Popen[bytes]]:
    """A machine whose command says "ready", and "caught" at every signal."""
    script = "trap 'echo caught' INT TERM; echo ready; while :; do sleep 0.1; done"
    command = [*KVMLAB, "run", "--", "sh", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def emulator(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The machine's process, once it is there."""
    poll(lambda: any("qemu" in one.name() for one in descendants(process.pid)), "an emulator")
    return descendants(process.pid)


@pytest.mark.timeout(UP_S)
def test_what_a_command_finds_and_what_comes_back(fetched: None, tmp_path: Path) -> None:
    probe = f"{sys.executable} -I -S tests/tools/kvmlab_probe.py"
    every_byte = "".join(f"\\{byte:03o}" for byte in range(256))
    script = f"printf '{every_byte}' >&2; printf data >{tmp_path}/out; sleep 1000 & {probe}; exit 7"
    options = ["--env", "PROBE=a b'c", "--write", str(tmp_path)]
    done = call("run", *options, "--", "sh", "-c", script, input="äöü\n".encode(), cwd=ROOT)
    assert done.returncode == 7, done.stderr.decode(errors="replace")
    assert done.stderr == bytes(range(256))
    assert (tmp_path / "out").read_bytes() == b"data"
    found = json.loads(done.stdout)
    assert found.pop("first_line").count("Linux version 6.") == 1
    assert set(found.pop("controllers")) >= {"cpuset", "cpu", "io", "memory", "pids"}
    inside = found.pop("tmp")
    assert found == {
        "vsock": True,
        "directory": str(ROOT),
        "variable": "a b'c",
        "input": "äöü\n",
        "virtual_processor": True,
        "tap": True,
        "loopback": True,
        "user_namespace": True,
        "limited_group": str(1 << 20),
        "version": "Firecracker v1.12.1",
    }
    # Its own /tmp has nothing of this one but what was asked for, and what it cannot do without.
    visible = {path.parts[2] for path in (tmp_path, ROOT, cache_home()) if path.parts[1] == "tmp"}
    assert set(inside) == visible


@pytest.mark.timeout(UP_S)
def test_one_signal_is_for_the_command_and_a_second_ends_the_machine(started: subprocess.Popen[bytes]) -> None:
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    below = emulator(started)
    started.send_signal(signal.SIGINT)
    assert started.stdout.readline() == b"caught\n"
    assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=20) == 128 + signal.SIGTERM
    assert running(below) == []


@pytest.mark.timeout(UP_S)
def test_it_does_not_outlive_who_started_it(started: subprocess.Popen[bytes]) -> None:
    below = emulator(started)
    started.kill()
    started.wait(timeout=20)
    poll(lambda: running(below) == [], "the emulator to end")


@pytest.mark.timeout(UP_S)
def test_a_machine_that_stands_still_is_given_up(fetched: None) -> None:
    command = [*KVMLAB, "run", "--still", "20", "--", "sh", "-c", "echo ready; sleep 30; echo done; sleep 1000"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"ready\n", b"done\n"]
        for one in emulator(process):
            one.suspend()
        _, said = process.communicate(timeout=UP_S)
    assert process.returncode == 125
    assert b"expected a sign of life of the machine every 20 s, it stands still" in said


@pytest.mark.timeout(UP_S)
def test_a_timeout_is_124(fetched: None) -> None:
    done = call("run", "--timeout", "0.5", "--", "sleep", "1000")
    assert (done.returncode, done.stdout, done.stderr) == (124, b"", b"")


@pytest.mark.timeout(UP_S)
def test_a_machine_that_cannot_be_made_shows_what_the_emulator_said(fetched: None) -> None:
    done = call("run", "--cpus", "100000", "--", "true")
    assert done.returncode == 125
    assert b"Invalid SMP CPUs 100000" in done.stderr


def test_a_shell_wants_a_terminal(fetched: None) -> None:
    done = call("shell", stdin=subprocess.DEVNULL)
    assert done.returncode == 125
    assert b"expected a terminal for the shell" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--colour", "--", "true"], "unrecognized arguments: --colour"),
        (["run"], "the following arguments are required: COMMAND"),
        (["jump"], "invalid choice: 'jump'"),
        (["run", "--timeout", "-1", "--", "true"], "expected a number of seconds above 0, got '-1'"),
        (["run", "--memory", "x", "--", "true"], "expected a whole number above 0, got 'x'"),
        (["run", "--write", "/none", "--", "true"], "expected a directory that exists, got '/none'; make it first"),
        (["run", "--write", "/", "--", "true"], "expected a directory below /, the machine needs its own there"),
    ],
)
def test_wrong_usage_is_2(arguments: list[str], told: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert told in done.stderr.decode()


def test_what_is_missing_comes_with_the_command_that_installs_it(tmp_path: Path) -> None:
    given = {**os.environ, "PATH": str(tmp_path), "AGENTENV_CACHE": str(tmp_path / "cache")}
    done = call("run", "--", "true", env=given)
    assert done.returncode == 125
    assert "apt-get install --no-install-recommends busybox-static" in done.stderr.decode()


TOKEN = b"\4end"


@given(st.lists(st.sampled_from([b"a", TOKEN[:1], TOKEN[:2], TOKEN[:3], b"end", b"\0"])), st.integers(1, 7))
def test_a_stream_is_passed_on_to_its_token_however_it_is_cut(parts: list[bytes], size: int) -> None:
    content = b"".join(parts)
    whole = content + TOKEN + b"beyond"
    end = whole.index(TOKEN)
    stream, out = Stream(TOKEN), b""
    for at in range(0, len(whole), size):
        out += stream.feed(whole[at : at + size])
        # At most the beginning of a token is held back.
        assert stream.ended or len(out) > min(at + size, len(whole)) - len(TOKEN)
    assert (out, stream.ended) == (whole[:end], True)


def test_a_token_must_be_one_that_cannot_overlap_itself() -> None:
    with pytest.raises(ValueError, match="first byte"):
        Stream(b"abca")


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is not installed: apt-get install busybox-static")
def test_an_archive_unpacks_to_what_went_in(tmp_path: Path) -> None:
    files = {"init": b"#!", "a/b/c": bytes(range(256)), "a/d": b""}
    packed = archive(files, frozenset({"init"}))
    subprocess.run(["busybox", "cpio", "-i"], input=packed, cwd=tmp_path, check=True, capture_output=True)
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a" / "d").stat().st_mode & 0o777 == 0o644


def test_modules_are_loaded_after_what_they_need(tmp_path: Path) -> None:
    (tmp_path / "modules.builtin").write_text("kernel/fs/overlay.ko\n")
    lines = [f"m/{name}.ko:" for name in NEEDED if name not in ("overlay", "kvm-amd")]
    (tmp_path / "modules.dep").write_text("\n".join([*lines, "m/kvm-amd.ko: m/kvm.ko m/late.ko m/irqbypass.ko"]))
    order = load_order(tmp_path)
    assert order.index("m/kvm-amd.ko") > order.index("m/late.ko")
    assert order.index("m/late.ko") > order.index("m/irqbypass.ko")
    assert len(order) == len(set(order)) == len(NEEDED)
    (tmp_path / "modules.builtin").write_text("")
    with pytest.raises(LabError, match="module overlay"):
        load_order(tmp_path)


def test_only_what_would_be_hidden_is_brought_along() -> None:
    paths = [Path(text) for text in ("/srv/a", "/tmp/b/c", "/tmp/b", "/run/x", "/tmp/bb", "/dev/shm/y")]
    assert hidden(paths) == [Path(text) for text in ("/dev/shm/y", "/run/x", "/tmp/b", "/tmp/bb")]
