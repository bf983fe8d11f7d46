"""However a jailed machine or what started it ends, nothing of it is left: the kernel sees to it, not we."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Command, Drive, Machine, MachineSpec
from agentenv.sandbox.runtimes._vm.relay import RelayProcess
from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor
from agentenv.sandbox.runtimes.firecracker.jail import JailOptions
from agentenv.testing import traces
from cli_watch import poll
from sandbox.vm.assets import Assets

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/kvm"), reason="expected /dev/kvm, and to be root"
)
_NOBODY = 65534
# Firecracker starts wherever /dev/kvm opens; whether a guest comes to life does not matter here.
_HOST = """
    import sys
    from pathlib import Path
    from agentenv.sandbox.runtimes._vm.machine import Drive, MachineSpec
    from agentenv.sandbox.runtimes._vm.relay import RelayProcess
    from agentenv.sandbox.runtimes.firecracker.hypervisor import FirecrackerHypervisor
    from agentenv.sandbox.runtimes.firecracker.jail import JailOptions
    homes, bin, kernel = map(Path, sys.argv[1:])
    relay = RelayProcess(sys.path, homes)
    jail = JailOptions(str(bin / "jailer"), 65534, 65534)
    hypervisor = FirecrackerHypervisor(relay.spawn, binary=str(bin / "firecracker"), jail=jail, probe=False)
    drives = (Drive("own.img", readonly=False),)
    machine = hypervisor.boot(MachineSpec("one", kernel, None, drives, 128, 1), homes / "one")
    print(relay._process.pid, machine.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    (tmp_path / "homes" / "one").mkdir(parents=True)
    (tmp_path / "homes" / "one" / "own.img").write_bytes(bytes(1 << 20))
    return tmp_path / "homes"


@pytest.fixture
def relay(homes: Path) -> Iterator[RelayProcess]:
    made = RelayProcess(sys.path, homes)
    yield made
    made.close()


@pytest.fixture
def machine(relay: RelayProcess, homes: Path, machine_assets: Assets) -> Iterator[Machine]:
    jail = JailOptions(str(machine_assets.bin / "jailer"), _NOBODY, _NOBODY)
    binary = str(machine_assets.bin / "firecracker")
    hypervisor = FirecrackerHypervisor(relay.spawn, binary=binary, jail=jail, probe=False)
    spec = MachineSpec("one", machine_assets.kernel, None, (Drive("own.img", readonly=False),), 128, 1)
    made = hypervisor.boot(spec, homes / "one")
    yield made
    made.close()
    hypervisor.close()


def namespace_of(pid: int) -> frozenset[str]:
    """The pid namespace of a process, which must not be ours."""
    found = traces.pid_namespaces({pid})
    assert len(found) == 1
    return found


def stage_of(pid: int) -> int:
    """The first process of a jail."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().split("\n") if line.startswith("PPid:")]
    return int(line.split()[1])


def assert_gone(pid: int, namespace: frozenset[str]) -> None:
    """Firecracker at once; the first process of its jail as soon as whoever inherits it has looked at it."""
    assert not os.path.exists(f"/proc/{pid}")
    assert traces.inhabitants(namespace, within_s=10) == []


def test_it_is_firecracker_that_is_told_and_it_is_nobody(machine: Machine) -> None:
    assert os.path.basename(os.readlink(f"/proc/{machine.pid}/exe")) == "firecracker"
    status = Path(f"/proc/{machine.pid}/status").read_text()
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    inside = next(line for line in status.split("\n") if line.startswith("NSpid:"))
    assert inside.split()[1:] == [str(machine.pid), "2"]


@pytest.mark.parametrize("who", ["Firecracker", "the stage"])
def test_killed_from_outside(machine: Machine, who: str) -> None:
    namespace = namespace_of(machine.pid)
    os.kill(machine.pid if who == "Firecracker" else stage_of(machine.pid), signal.SIGKILL)
    poll(lambda: not machine.alive(), "the end of the machine", 10)
    assert_gone(machine.pid, namespace)
    with pytest.raises(ConnectionError, match="its monitor ended"):
        machine.pause()
    machine.close()
    assert sorted(path.name for path in machine.home.iterdir()) == ["console.log", "own.img"]


def test_a_kill_of_ours_returns_when_all_of_it_is_gone(machine: Machine) -> None:
    namespace = namespace_of(machine.pid)
    machine.kill()
    assert_gone(machine.pid, namespace)


def test_the_relay_is_killed(machine: Machine, relay: RelayProcess) -> None:
    namespace = namespace_of(machine.pid)
    os.kill(relay._process.pid, signal.SIGKILL)
    poll(lambda: not machine.alive(), "the end of the machine", 10)
    assert_gone(machine.pid, namespace)


@pytest.mark.parametrize("both", [False, True], ids=["the host", "the host and the relay"])
def test_the_host_is_killed(homes: Path, machine_assets: Assets, both: bool) -> None:
    arguments = [str(homes), str(machine_assets.bin), str(machine_assets.kernel)]
    command = [sys.executable, "-c", textwrap.dedent(_HOST), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        relay, monitor = map(int, host.stdout.readline().split())
        namespace = namespace_of(monitor)
        if both:
            os.kill(host.pid, signal.SIGSTOP)  # or it would find the relay gone, and end it all in order
            os.kill(relay, signal.SIGKILL)
        host.kill()
    assert traces.inhabitants(namespace, within_s=10) == []
    if not both:  # the directories of a run that died with its relay are removed by the next sweep
        poll(lambda: not homes.exists(), "the end of the homes", 10)


def test_what_changes_its_user_ends_with_the_relay(relay: RelayProcess, tmp_path: Path) -> None:
    """The kernel forgets to kill those; so this would fail if the namespace did not."""
    null = os.open(os.devnull, os.O_WRONLY)
    words = "setpriv --reuid=65534 --clear-groups sleep 1000 & wait"
    started = relay.spawn(Command(["/bin/sh", "-c", words], tmp_path, dict(os.environ), output=null, apart=True))
    os.close(null)
    namespace = namespace_of(started.pid)
    poll(lambda: any("sleep" in one for one in traces.inhabitants(namespace)), "the sleep", 10)
    os.kill(relay._process.pid, signal.SIGKILL)
    assert traces.inhabitants(namespace, within_s=10) == []
    os.close(started.pidfd)
    with pytest.raises(RuntimeUnavailable):
        relay.spawn(Command(["/bin/true"], tmp_path))


def test_a_directory_without_devices_and_programs(homes: Path, relay: RelayProcess, machine_assets: Assets) -> None:
    """As /tmp is mounted on many distributions."""
    home = homes / "one"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nosuid,nodev,noexec,size=64m", "none", home], check=True)
    try:
        binary, jailer = str(machine_assets.bin / "firecracker"), str(machine_assets.bin / "jailer")
        jail = JailOptions(jailer, _NOBODY, _NOBODY)
        hypervisor = FirecrackerHypervisor(relay.spawn, binary=binary, jail=jail, probe=False)
        machine = hypervisor.boot(MachineSpec("one", machine_assets.kernel, None, (), 128, 1), home)
        assert machine.alive()
        machine.close()
        hypervisor.close()
        assert [path.name for path in home.iterdir()] == ["console.log"]
    finally:
        subprocess.run(["umount", home], check=True)
