"""Ctrl-C while the first machine of its kind is booted: nothing is left at any moment, and the next run works."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentenv.images.store import Store
from cli_watch import groups, poll, running
from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)
CONFIG = 'id = "a"\nenv = "misbehaving:Fine"\nepisodes = 2\nmemory_mb = 256\nstart_timeout_s = 120.0'


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that holds kernels and images and no template, and a directory for what is temporary."""
    store = Store.default().root
    made = tmp_path_factory.mktemp("place")  # not the project's directory, which machines get a copy of
    cache, temporary = made / "cache", made / "temporary"
    cache.mkdir(mode=0o700)
    temporary.mkdir()
    for name in ("objects", "keys", "names"):
        # Nothing in there is ever written again.
        subprocess.run(["cp", "-a", "--reflink=auto", "-l", str(store / name), str(cache / name)], check=True)
    monkeypatch.setenv("AGENTENV_CACHE", str(cache))
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield made
    assert list(temporary.iterdir()) == []


def monitors(process: subprocess.Popen[str]) -> list[float]:
    """Processor time of each monitor below a process, seconds. They come and go while we look."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "qemu" in one.name():
                    found.append(sum(one.cpu_times()[:2]))
    return found


def seconds(process: subprocess.Popen[str], least: float) -> bool:
    """Whether a monitor has used so much processor time: how far a boot is, whatever else runs here."""
    return any(used >= least for used in monitors(process))


def test_at_any_moment_of_the_first_boot(command, place: Path) -> None:
    config = command.config(CONFIG, global_='runtime = "qemu"')
    draw = random.Random(7)
    templates = place / "cache/machines"
    moments: list[Callable[[subprocess.Popen[str]], bool]] = [
        lambda process: bool(psutil.Process(process.pid).children()),
        lambda process: bool(monitors(process)),
        lambda process: seconds(process, draw.uniform(0.5, 2.0)),
        lambda process: seconds(process, draw.uniform(2.0, 4.0)),
        lambda process: any(templates.glob(".*/.partial")),
    ]
    for number, moment in enumerate(moments):
        _interrupt(command, config, moment, str(number))
        assert [path for path in templates.glob("*") if path.is_dir()] == [], number
        assert list((place / "temporary").iterdir()) == [], number
    summary = command.run(config)
    assert summary["environments"][0]["episodes"] == 2
    assert len([path for path in templates.iterdir() if path.is_dir()]) == 1


def _interrupt(command, config: str, moment: Callable[[subprocess.Popen[str]], bool], name: str) -> None:
    """Start a run, and press Ctrl-C when the moment has come."""
    process = command.start("run", config, "-q")
    poll(lambda: process.poll() is not None or moment(process), f"moment {name}", 120)
    assert process.poll() is None, process.communicate()
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, (name, stderr)
    assert "Traceback" not in stderr
    assert running(below) == []
    assert groups(f"agentenv.{process.pid}-") == []
