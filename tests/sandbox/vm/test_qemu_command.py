"""QEMU's command line, and what is understood of its complaints."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.machine import Drive, Interface, MachineSpec, Rate
from agentenv.sandbox.runtimes._vm.runtime import _MONITOR_MB
from agentenv.sandbox.runtimes.qemu.clock import counter_khz
from agentenv.sandbox.runtimes.qemu.command import build_arguments
from agentenv.sandbox.runtimes.qemu.hypervisor import _explain

_SPEC = MachineSpec(
    "one",
    Path("/k/vmlinux"),
    Path("/k/initramfs"),
    (Drive("/i/a,b.img"), Drive("own.img", readonly=False, rate=Rate(1000, 50))),
    256,
    2,
    boot_args="quiet",
    interfaces=(Interface("tap0", "06:00:00:00:00:01"),),
)


def _build(
    spec: MachineSpec = _SPEC,
    accelerator: str = "kvm",
    *,
    restore: bool = False,
    vsock: tuple[int, int] | None = None,
) -> list[str]:
    return build_arguments(
        "qemu",
        spec,
        accelerator=accelerator,
        control=7,
        memory="/m,1",
        shared=not restore,
        restore=restore,
        vsock=vsock,
    )


def _options(arguments: list[str], name: str) -> list[str]:
    return [value for option, value in itertools.pairwise(arguments) if option == name]


def test_what_is_given_up_and_what_is_not_looked_for() -> None:
    arguments = _build()
    assert "-nodefaults" in arguments
    assert "-no-user-config" in arguments
    (sandbox,) = _options(arguments, "-sandbox")
    assert sandbox == "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def test_drives_are_in_order_and_only_their_own_is_written_to() -> None:
    shared, own = _options(_build(), "-drive")
    assert "file.filename=/i/a,,b.img" in shared
    assert "readonly=on" in shared
    assert "locking=off" in shared
    assert "throttling" not in shared
    assert "file.filename=own.img" in own
    assert "readonly=off" in own
    assert "throttling.bps-total=1000,throttling.iops-total=50" in own
    places = [value for value in _options(_build(), "-device") if value.startswith("virtio-blk")]
    assert all("werror=report" in place for place in places)
    assert [place.rpartition("=")[2] for place in places] == ["virtio-mmio-bus.21", "virtio-mmio-bus.20"]


def test_ram_is_shared_with_the_file_or_copied_on_write() -> None:
    assert _options(_build(), "-object")[0] == "memory-backend-file,id=ram,size=256M,mem-path=/m,,1,share=on"
    assert _options(_build(restore=True), "-object")[0].endswith("share=off")


def test_a_machine_brought_back_waits_and_has_no_kernel() -> None:
    arguments = _build(restore=True)
    assert arguments[-3:] == ["-S", "-incoming", "defer"]
    assert "-kernel" not in arguments
    assert "-append" not in arguments


def test_the_kernel_is_told_the_clock_where_it_is_emulated() -> None:
    (emulated,), (real,) = _options(_build(accelerator="tcg"), "-append"), _options(_build(), "-append")
    assert real == "console=ttyS0 reboot=t panic=-1 quiet"
    assert emulated.startswith("console=ttyS0 reboot=t panic=-1 mitigations=off")
    assert emulated.endswith("quiet")
    if counter_khz() is not None:
        assert f"tsc_early_khz={counter_khz()}" in emulated


def test_what_an_emulated_machine_has_translated_fits_beside_its_ram() -> None:
    (emulated,), (real,) = _options(_build(accelerator="tcg"), "-accel"), _options(_build(), "-accel")
    assert real == "kvm"
    kind, _, translated = emulated.partition(",tb-size=")
    assert kind == "tcg,thread=multi"
    assert int(translated) <= _MONITOR_MB // 2  # the rest is QEMU's own


def test_the_counter_is_measured_the_same_each_time() -> None:
    first = counter_khz()
    if first is None:
        pytest.skip("expected an x86-64 host that allows programs to make code")
    counter_khz.cache_clear()
    second = counter_khz()
    assert second is not None
    assert abs(first - second) < first * 2e-4


def test_vsock_stands_in_the_place_of_the_serial_port() -> None:
    serial, vsock = _build(), _build(vsock=(77777, 9))
    assert _options(serial, "-device")[0] == "virtio-serial-device,max_ports=2,bus=virtio-mmio-bus.23"
    assert _options(vsock, "-device")[0] == "vhost-vsock-device,guest-cid=77777,vhostfd=9,bus=virtio-mmio-bus.23"
    assert _options(vsock, "-device")[1:] == _options(serial, "-device")[2:]
    assert not any("agent.sock" in word or "virtserialport" in word for word in vsock)
    assert any("agent.sock" in word for word in serial)
    # The agent is told to call, and to listen to nobody; one brought back knows.
    ((words,), (without,)) = _options(vsock, "-append"), _options(serial, "-append")
    assert words.split()[-2:] == ["agentenv.port=call", "quiet"]
    assert "agentenv.port" not in without
    assert _options(_build(vsock=(77777, 9), restore=True), "-append") == []


def test_what_qemu_cannot_limit_is_refused() -> None:
    limited = dataclasses.replace(_SPEC.interfaces[0], send=Rate(bytes_per_s=1))
    with pytest.raises(RuntimeUnavailable, match="cannot limit what an interface carries"):
        _build(dataclasses.replace(_SPEC, interfaces=(limited,)))


def test_more_devices_than_places_are_refused() -> None:
    with pytest.raises(RuntimeUnavailable, match="30 drives and 1 interfaces; QEMU has places for 21"):
        _build(dataclasses.replace(_SPEC, drives=(Drive("x"),) * 30))


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Could not access KVM kernel module: Permission denied\nqemu: failed to initialize kvm", "usermod -aG kvm"),
        ("qemu: cannot set up guest memory 'ram': Cannot allocate memory", "lower memory_mb"),
        ("could not configure /dev/net/tun (tap0): Device or resource busy", "give each its own"),
        ("could not configure /dev/net/tun (tap0): Operation not permitted", "TAP device for this user"),
        ('Failed to get "write" lock\nIs another process using the image [own.img]?', "another program has this drive"),
        ("Could not open '/i/a.img': Permission denied", "rights"),
        ("qemu: -device vhost-vsock-device: 'vhost-vsock-device' is not a valid device model name", "without vhost"),
        ("load of migration failed: Invalid argument", "make the snapshot anew"),
        ("something nobody has seen", ""),
    ],
)
def test_remedies(said: str, remedy: str) -> None:
    found = _explain(said)
    assert remedy in found
    assert bool(found) == bool(remedy)
