"""The attempts from a program of its own (``command``), and what it may leave in /out."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentenv.errors import CauseKind
from agentenv.fleet.output import SandboxOutput
from agentenv.sandbox.contract import Runtime, RuntimeOptions, Sandbox, SandboxSpec
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.testing import traces
from conformance.attacks_ground import SOURCES, bait, canary

_ENDS_S = 60.0
_SPECIAL_FILES = """
import os, socket
os.symlink("/etc/shadow", "/out/link")
os.mkfifo("/out/fifo")
socket.socket(socket.AF_UNIX).bind("/out/socket")
with open("/out/sparse", "wb") as stream:
    stream.truncate(16 << 20)
for number in range(3000):
    open(f"/out/file-{number}", "wb").close()
for path in ("/out/../escape", "/run/agentenv/out/escape"):
    try:
        open(path, "wb")
    except OSError:
        continue
    raise SystemExit(9)
"""


class Bench:
    """A runtime with an /out for each command, and a way to run one to its end."""

    def __init__(self, nested: str, root: Path, *paths: str) -> None:
        for directory in (root, *root.parents[:3]):
            if ~directory.stat().st_mode & 0o055:
                directory.chmod(directory.stat().st_mode | 0o055)
        self.root = root
        self.output = SandboxOutput(lambda name: root / name)
        self.runtime: Runtime = open_runtime(
            "bubblewrap",
            RuntimeOptions(
                new_run_id(),
                (*(path for path in sys.path if path), SOURCES, *paths),
                out_root=root,
                settings={"nested": nested},
            ),
        )

    def start(self, *commands: list[str]) -> list[Sandbox]:
        specs = []
        for number, command in enumerate(commands):
            (self.root / f"c{number}" / "out").mkdir(parents=True, exist_ok=True)
            specs.append(
                SandboxSpec(
                    f"c{number}", command=tuple(command), variables={"SECRET": canary()}, memory_mb=256, pids=32,
                    disk_mb=16, out=self.root / f"c{number}" / "out",
                )
            )  # fmt: skip
        return self.runtime.create(specs, self.output)


def _end(sandbox: Sandbox) -> tuple[CauseKind, int | None]:
    assert select.select([sandbox.pidfd], [], [], _ENDS_S)[0], "the command did not end"
    cause = sandbox.cause()
    return cause.kind, cause.exit_code


@pytest.fixture(params=["auto", "never"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    before = traces.take()
    bench = Bench(request.param, tmp_path)
    try:
        yield bench
    finally:
        bench.runtime.close()
        bench.output.close()
    assert traces.take().left_since(before) == []


def test_nothing_is_reached(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> None:
    with bait(tmp_path_factory.mktemp("outside"), ["c0", "c1"]) as hints:
        command = [sys.executable, "-m", "agentenv.testing.hostile.program", json.dumps({**hints, "directory": "/out"})]
        sandboxes = bench.start(command, command)
        assert [_end(sandbox) for sandbox in sandboxes] == [(CauseKind.EXIT, 0)] * 2
        for sandbox in sandboxes:
            sandbox.destroy()
    for number in range(2):
        found = json.loads((bench.root / f"c{number}" / "stdout.log").read_text())
        assert {name: reached for name, reached in found.items() if reached} == {}
        assert (bench.root / f"c{number}" / "out").is_dir()
        assert len(list((bench.root / f"c{number}" / "out").iterdir())) == 1  # the canary it left in its own


@pytest.mark.skipif(os.geteuid() != 0, reason="about what only root may read")
def test_nor_where_something_is_private_to_root(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    bench = Bench("auto", tmp_path, str(private))
    with closing(bench.runtime), closing(bench.output), bait(tmp_path_factory.mktemp("outside"), ["c0"]) as hints:
        command = [sys.executable, "-m", "agentenv.testing.hostile.program", json.dumps({**hints, "directory": "/out"})]
        (sandbox,) = bench.start(command)
        assert _end(sandbox) == (CauseKind.EXIT, 0)
        sandbox.destroy()
    found = json.loads((bench.root / "c0" / "stdout.log").read_text())
    assert {name: reached for name, reached in found.items() if reached} == {}


def test_what_lies_in_out_afterwards_harms_nobody(bench: Bench) -> None:
    (sandbox,) = bench.start([sys.executable, "-c", _SPECIAL_FILES])
    assert _end(sandbox) == (CauseKind.EXIT, 0)
    sandbox.destroy()
    out = bench.root / "c0" / "out"
    assert len(list(out.iterdir())) == 3004
    assert os.stat(out / "sparse").st_size == 16 << 20
    assert not (bench.root / "escape").exists()
    assert not (bench.root / "c0" / "escape").exists()


def test_a_daemon_does_not_outlive_its_command(bench: Bench) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(1e6)\n os._exit(0)\n"
    (sandbox,) = bench.start([sys.executable, "-c", daemon + "os.wait()"])
    namespaces = traces.pid_namespaces({sandbox.pid})
    assert _end(sandbox) == (CauseKind.EXIT, 0)
    sandbox.destroy()
    assert traces.inhabitants(namespaces, within_s=5.0) == []
