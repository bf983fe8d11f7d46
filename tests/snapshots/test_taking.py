"""Memory on its way into the store: what a killed process left of it goes with whoever looks next."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.sandbox.sweep import sweep
from agentenv.sandbox.taking import sweep_taking, taking_ground, taking_place
from agentenv.snapshots.store import SnapshotStore
from snapshots.making import FULL, make

_TAKER = (
    "import sys\nfrom pathlib import Path\nfrom agentenv.sandbox.taking import taking_ground\n"
    "with taking_ground(Path(sys.argv[1])) as place:\n"
    "    (place / 'memory').write_bytes(bytes(1_000_000))\n"
    "    print(place, flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of what this user keeps."""
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def taker(data: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that takes a snapshot, and where."""
    SnapshotStore.default()
    argv = [sys.executable, "-c", _TAKER, str(data)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def by_gc(_data: Path, left: Path) -> None:
    done = SnapshotStore.default().gc()
    assert (done.swept, done.removed) == (1, 0)
    assert done.freed_bytes >= 1_000_000


def by_sweep(_data: Path, left: Path) -> None:
    assert left.name in sweep()
    assert left.name not in sweep()


def by_the_next_snapshot(data: Path, left: Path) -> None:
    with taking_ground(data) as place:
        assert list(taking_place(data).iterdir()) == [place]


def by_adding(data: Path, left: Path) -> None:
    SnapshotStore.default().add(make(data.parent / "source", FULL))


@pytest.mark.parametrize("go", [by_gc, by_sweep, by_the_next_snapshot, by_adding])
def test_what_a_killed_process_left_goes(
    data: Path, taker: tuple[subprocess.Popen[str], Path], go: Callable[[Path, Path], None]
) -> None:
    process, left = taker
    before = SnapshotStore.default().disk_bytes()[0]
    assert before >= 1_000_000, "what is being taken counts"
    assert left.name not in sweep_taking()
    assert SnapshotStore.default().gc(now=True).swept == 0
    assert (left / "memory").exists(), "its process lives"
    process.kill()
    process.wait()
    go(data, left)
    assert not left.exists()
    assert list(taking_place(data).iterdir()) == []


def test_one_that_lives_unseen_is_spared(data: Path, taker: tuple[subprocess.Popen[str], Path]) -> None:
    """In a container, and on another host with the same disk, its number means nothing or somebody else."""
    process, left = taker
    assert sweep_taking(is_alive=lambda _run: False) == ()
    assert left.exists()
    process.kill()
    process.wait()
    assert sweep_taking(is_alive=lambda _run: False) == (left.name,)


def test_what_is_not_ours_stays(data: Path) -> None:
    assert sweep_taking() == (), "there is no such directory yet"
    (taking_place(data) / "notes").mkdir(parents=True)
    assert sweep_taking(is_alive=lambda _run: False) == ()
    assert (taking_place(data) / "notes").is_dir()


def test_nothing_is_left_of_one_that_failed(data: Path) -> None:
    SnapshotStore.default()

    def take() -> None:
        with taking_ground(data) as place:
            assert place.stat().st_mode & 0o777 == 0o700
            (place / "memory").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take()
    assert list(taking_place(data).iterdir()) == []
