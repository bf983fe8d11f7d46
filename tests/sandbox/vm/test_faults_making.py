"""The machine that others are brought back from is killed while it is made: another one is, and nobody is bothered."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from agentenv import AgentVectorEnv, load_config
from agentenv.errors import RuntimeUnavailable
from agentenv.fleet import machines as machines_module
from agentenv.testing import traces
from machines_ground import need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


class Killer(threading.Thread):
    """Kills the first monitors that this process has below it."""

    def __init__(self, most: int) -> None:
        super().__init__(daemon=True)
        self.most, self.killed = most, set[int]()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02) and len(self.killed) < self.most:
            for process in psutil.Process().children(recursive=True):
                try:
                    booting = process.name().startswith("qemu") and process.cpu_times().user > 0.2
                    if booting and process.pid not in self.killed and len(self.killed) < self.most:
                        process.kill()
                        self.killed.add(process.pid)
                except psutil.NoSuchProcess:
                    continue


def play(most: int) -> int:
    table = {"id": "a", "env": "CartPole-v1", "memory_mb": 192, "start_timeout_s": 200.0}
    killer = Killer(most)
    killer.start()
    try:
        vec = AgentVectorEnv(load_config({"global": {"runtime": "qemu"}, "environments": [table]}))
        killer.over.set()
        vec.reset(seed=1)
        vec.close()
    finally:
        killer.over.set()
        killer.join()
    return len(killer.killed)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_machines()
    (tmp_path / "homes").mkdir()
    monkeypatch.setattr(machines_module, "_TEMPLATES", str(tmp_path / "templates"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "homes"))


def test_another_one_is_booted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = traces.take()
    assert play(1) == 1
    assert "booting another one" in caplog.text
    assert traces.take().left_since(before) == []
    assert list((tmp_path / "homes").iterdir()) == []


def test_but_not_for_ever(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="could not be prepared"):
        play(100)
    assert list((tmp_path / "homes").iterdir()) == []
