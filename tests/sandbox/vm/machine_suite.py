"""What every machine must do, whatever runs it; the test modules of the monitors inherit it.

Everything is done to real machines: booted, paused, kept, brought back several times, killed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Drive, Hypervisor, Machine, MachineSpec, Rate
from cli_watch import poll
from sandbox.vm.assets import ask, digest, unshared_mb

MEMORY_MB = 256
BOOT_S = 100.0
MAC = "06:00:c0:a8:00:02"


class Kept:
    """A snapshot with its drive."""

    def __init__(self, machine: Machine, path: Path) -> None:
        """Pause a machine and keep it."""
        path.mkdir()
        self.path = path
        machine.pause()
        machine.snapshot(path)
        self.drive = path / "own.img"
        shutil.copy(machine.home / "own.img", self.drive)


def make_home(directory: Path, name: str, own: Path | None = None) -> Path:
    """A home with its own drive, behind a path longer than the address of a socket may be."""
    home = directory / ("long" * 30) / name
    home.mkdir(parents=True)
    if own is None:
        (home / "own.img").write_bytes(b"fresh".ljust(2 << 20, b"\0"))
    else:
        shutil.copy(own, home / "own.img")
    return home


def elsewhere(spec: MachineSpec, number: int = 1) -> MachineSpec:
    """The same machine with another TAP device, since one of them has the first."""
    moved = [dataclasses.replace(interface, tap=interface.tap[:-1] + str(number)) for interface in spec.interfaces]
    return dataclasses.replace(spec, interfaces=tuple(moved))


def await_end(machine: Machine, timeout_s: float) -> None:
    """Wait for the end of its monitor."""
    poll(lambda: not machine.alive(), "the end of the monitor", timeout_s)


def await_console(machine: Machine, text: str, timeout_s: float = 20.0) -> None:
    """Wait until the last lines of the console have this text."""
    poll(lambda: text in machine.console(3), f"{text!r} on the console", timeout_s)


class MachineSuite:
    """The module has a fixture ``hypervisor`` of scope "module"; the others are in conftest.py."""

    def test_what_was_asked_for_is_there(self, booted: Machine) -> None:
        with booted.connect(BOOT_S) as stream:
            assert ask(stream, "drives") == "vda:2048:1 vdb:4096:0 vdc:2048:1 vdd:2048:1"
            assert ask(stream, "read vda") == "the shared image"
            assert ask(stream, "read vdb").startswith("fresh")
            assert ask(stream, "write vdc nothing").startswith("refused")
            assert ask(stream, "processors") == "2"
            assert ask(stream, "interfaces") == " ".join(interface.mac for interface in booted.spec.interfaces)
            assert 0.7 * MEMORY_MB < int(ask(stream, "memory")) / 1024 < MEMORY_MB
            assert "agentenv.test=1" in ask(stream, "command_line")
            assert len(ask(stream, "hardware_random")) == 32
        assert booted.alive()

    def test_a_stream_closed_is_followed_by_another(self, booted: Machine) -> None:
        for number in range(5):
            with booted.connect(BOOT_S) as stream:
                assert ask(stream, f"echo {number}") == str(number)

    def test_much_passes_through_the_stream(self, booted: Machine) -> None:
        text = "x" * 1_000_000
        with booted.connect(BOOT_S) as stream:
            assert ask(stream, f"echo {text}") == text

    def test_paused_it_stands_still(self, booted: Machine) -> None:
        with booted.connect(BOOT_S) as stream:
            booted.pause()
            stream.sendall(b"echo at last\n")
            stream.settimeout(0.5)
            with pytest.raises(TimeoutError):
                stream.recv(1)
            booted.resume()
            stream.settimeout(10)
            assert stream.recv(100) == b"at last\n"

    def test_the_console_keeps_the_end_and_no_more_than_it_may(self, booted: Machine) -> None:
        with booted.connect(BOOT_S) as stream:
            assert ask(stream, "flood 12", BOOT_S) == "ok"
            assert ask(stream, "shout \x1b[31mthe last words\x1b]0;title\x07") == "ok"
        await_console(booted, "the last words")
        assert booted.console(1) == "the last words]0;title"
        assert (booted.home / "console.log").stat().st_size <= booted.spec.console_bytes

    def test_a_running_machine_is_not_kept(self, booted: Machine, tmp_path: Path) -> None:
        with pytest.raises(RuntimeUnavailable, match="pause it first"):
            booted.snapshot(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_snapshot_is_small_and_its_machine_goes_on(self, booted: Machine, kept: Kept) -> None:
        assert {path.name for path in kept.path.iterdir()} == {"memory", "state", "machine.json", "own.img"}
        memory = (kept.path / "memory").stat()
        assert memory.st_size == MEMORY_MB << 20
        assert memory.st_blocks * 512 < memory.st_size * 0.7
        booted.resume()
        with booted.connect(BOOT_S) as stream:
            assert ask(stream, "recall where") == "booted"

    def test_two_brought_back_at_once_are_apart(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        before = digest(kept.path / "memory")
        machines = [
            hypervisor.restore(elsewhere(spec, number), make_home(directory, f"back-{number}", kept.drive), kept.path)
            for number in (1, 2)
        ]
        first, second = machines
        try:
            assert unshared_mb(first.pid) < MEMORY_MB / 4
            for machine in machines:
                machine.resume()
            with first.connect(BOOT_S) as one, second.connect(BOOT_S) as two:
                assert ask(one, "recall where") == ask(two, "recall where") == "booted"
                assert ask(one, "interfaces") == " ".join(interface.mac for interface in spec.interfaces)
                assert ask(one, "read vdb").startswith("before the snaps")
                assert ask(one, "remember where first") == "ok"
                assert ask(one, "write vdb only the first") == "ok"
                assert ask(one, "fill 20 7") == "ok"
                assert ask(two, "recall where") == "booted"
                assert ask(two, "read vdb").startswith("before the snaps")
            assert digest(kept.path / "memory") == before
            self._is_kept_again(hypervisor, spec, directory, first)
            assert digest(kept.path / "memory") == before
            with first.connect(BOOT_S) as one:
                assert ask(one, "recall where") == "first"
        finally:
            for machine in machines:
                machine.close()

    def _is_kept_again(self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, brought_back: Machine) -> None:
        """A machine that was brought back has memory that is in no file; a snapshot of it must be as good."""
        again = Kept(brought_back, directory / "again")
        brought_back.resume()
        third = hypervisor.restore(elsewhere(spec, 3), make_home(directory, "third", again.drive), again.path)
        try:
            third.resume()
            with third.connect(BOOT_S) as stream:
                assert ask(stream, "recall where") == "first"
                assert ask(stream, "ballast") == f"{20 << 20} {7 * (20 << 20) % (1 << 32)}"
                assert ask(stream, "read vdb").startswith("only the first")
                assert ask(stream, "shout here again") == "ok"
            await_console(third, "here again")
        finally:
            third.close()

    def test_limits_of_throughput_are_those_of_now_and_not_of_the_snapshot(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        """The only test that measures: so many operations at so many a second cannot take less, on any host."""
        per_s, count = 10, 60
        drives = (*spec.drives[:1], dataclasses.replace(spec.drives[1], rate=Rate(ops_per_s=per_s)), *spec.drives[2:])
        limited = dataclasses.replace(elsewhere(spec), drives=drives)
        machine = hypervisor.restore(limited, make_home(directory, "limited", kept.drive), kept.path)
        try:
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                began = time.monotonic()
                assert ask(stream, f"pull vdb {count}", BOOT_S) == "0"
                # The first second's worth may come at once, and some before the clock here began.
                assert time.monotonic() - began > (count - 2 * per_s) / per_s
        finally:
            machine.close()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"memory_mb": 128}, "its memory_mb is 256, here 128"),
            ({"vcpu_count": 1}, "its vcpu_count is 2, here 1"),
            ({"drives": ()}, "its drives is"),
            ({"drives": (Drive("/dev/null", mark="another"),) * 4}, "its drives is .*here .*another"),
            ({"balloon_mb": 64}, "its balloon_mb is 0, here 64"),
            ({"huge_pages": True}, "its huge_pages is False, here True"),
        ],
    )
    def test_another_machine_than_it_was_is_refused(
        self,
        hypervisor: Hypervisor,
        spec: MachineSpec,
        tmp_path: Path,
        kept: Kept,
        change: dict[str, object],
        words: str,
    ) -> None:
        with pytest.raises(RuntimeUnavailable, match=words):
            hypervisor.restore(dataclasses.replace(spec, **change), tmp_path, kept.path)
        assert not list(tmp_path.iterdir())

    def test_a_damaged_state_is_refused(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept, tmp_path: Path
    ) -> None:
        for name in ("memory", "machine.json"):
            os.link(kept.path / name, tmp_path / name)
        state = (kept.path / "state").read_bytes()
        (tmp_path / "state").write_bytes(state[: len(state) // 2])
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RuntimeUnavailable, match=r"(?s)was not brought back|refused"):
            hypervisor.restore(elsewhere(spec), make_home(directory, "damaged", kept.drive), tmp_path)
        assert len(os.listdir("/proc/self/fd")) == descriptors

    def test_a_full_disk_leaves_no_part_of_a_snapshot(self, booted: Machine, small_disk: Path) -> None:
        target = small_disk / "kept"
        target.mkdir()
        booted.pause()
        with pytest.raises(OSError, match="No space left"):
            booted.snapshot(target)
        assert not list(target.iterdir())
        booted.resume()
        with booted.connect(BOOT_S) as stream:
            assert ask(stream, "echo alive") == "alive"

    def test_a_full_disk_for_a_machine_brought_back(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept, small_disk: Path
    ) -> None:
        machine = hypervisor.restore(elsewhere(spec), make_home(directory, "full", kept.drive), kept.path)
        try:
            target = small_disk / "kept"
            target.mkdir()
            with pytest.raises(OSError, match="No space left"):
                machine.snapshot(target)
            assert not list(target.iterdir())
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                assert ask(stream, "recall where") == "booted"
        finally:
            machine.close()

    def test_a_full_disk_under_a_drive_is_an_error_inside(
        self, hypervisor: Hypervisor, spec: MachineSpec, kept: Kept, small_disk: Path
    ) -> None:
        with open(small_disk / "own.img", "wb") as own:
            own.truncate(2 << 20)
        machine = hypervisor.restore(elsewhere(spec), small_disk, kept.path)
        try:
            free = os.statvfs(small_disk)
            (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - (1 << 20)))
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                assert ask(stream, "overwrite vdb", BOOT_S) == "1"
                assert ask(stream, "recall where") == "booted"
        finally:
            machine.close()

    def test_killed_from_outside_every_call_says_so(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        machine = hypervisor.restore(elsewhere(spec), make_home(directory, "killed", kept.drive), kept.path)
        os.kill(machine.pid, signal.SIGKILL)
        await_end(machine, 10)
        for call in (machine.pause, machine.resume, lambda: machine.connect(5)):
            with pytest.raises(ConnectionError, match="'one': its monitor ended"):
                call()
        for _ in range(2):
            machine.kill()
            machine.close()
        assert machine.pidfd == -1
        assert not machine.alive()
        assert machine.console() == ""
        assert sorted(path.name for path in machine.home.iterdir()) == ["console.log", "own.img"]
        assert len(os.listdir("/proc/self/fd")) == descriptors

    def test_a_guest_that_ends_itself_ends_its_monitor(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        machine = hypervisor.restore(elsewhere(spec), make_home(directory, "ending", kept.drive), kept.path)
        try:
            machine.resume()
            with machine.connect(BOOT_S) as stream:
                stream.sendall(b"end\n")
                await_end(machine, 20)
            assert "reboot" in machine.console().lower()
        finally:
            machine.close()

    def test_nobody_listening_is_a_timeout(
        self, hypervisor: Hypervisor, spec: MachineSpec, directory: Path, kept: Kept
    ) -> None:
        machine = hypervisor.boot(
            dataclasses.replace(elsewhere(spec), initramfs=None, boot_args="panic=0"), make_home(directory, "deaf")
        )
        try:
            with pytest.raises(TimeoutError, match=r"no agent .* within 0\.3 s"):
                machine.connect(0.3)
        finally:
            machine.close()

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"kernel": Path("/nowhere/vmlinux")}, "kernel /nowhere/vmlinux: expected a readable kernel image"),
            ({"drives": (Drive("absent.img"),)}, "absent.img: expected a file to read, there is none"),
            ({"memory_mb": 1 << 30}, "this host has"),
            ({"memory_mb": 1}, "was not started|refused"),
            ({"vcpu_count": 1000}, "vcpu_count = 1000: expected 1 to"),
            ({"drives": (Drive("own.img"),) * 30}, "places for 21|refused"),
        ],
    )
    def test_what_cannot_be_booted_says_why_and_leaves_nothing(
        self,
        hypervisor: Hypervisor,
        spec: MachineSpec,
        directory: Path,
        tmp_path: Path,
        change: dict[str, object],
        words: str,
    ) -> None:
        (tmp_path / "own.img").write_bytes(bytes(4096))
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RuntimeUnavailable, match=words):
            hypervisor.boot(dataclasses.replace(elsewhere(spec), **change), tmp_path)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert {path.name for path in tmp_path.iterdir()} <= {"own.img", "console.log"}
