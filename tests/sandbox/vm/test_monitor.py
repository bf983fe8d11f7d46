"""A monitor that is about to end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from agentenv.sandbox.runtimes._vm.console import Consoles
from agentenv.sandbox.runtimes._vm.machine import Spawn
from agentenv.sandbox.runtimes._vm.monitor import Monitor, MonitoredMachine


def test_one_that_hangs_up_is_not_alive_any_more_for_whoever_is_told(spawn: Spawn, tmp_path: Path) -> None:
    consoles = Consoles()
    argv = ["/bin/sleep", "0.3"]
    monitor = Monitor("sleep", argv, spawn=spawn, consoles=consoles, home=tmp_path, console_bytes=1 << 12)
    machine = MonitoredMachine(SimpleNamespace(id="m"), tmp_path, monitor)  # type: ignore[arg-type]  # its name is used
    try:
        assert "its monitor ended" in str(machine._gone())
        assert not machine.alive()
    finally:
        monitor.close()
        consoles.close()
