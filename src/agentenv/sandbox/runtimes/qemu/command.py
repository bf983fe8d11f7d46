"""QEMU's command line for a machine.

The machine is "microvm": no PCI, no firmware menus, virtio devices at fixed places that ACPI describes (Debian's kernel
is built without the other way to find them, parameters on its command line). Nothing is taken from QEMU's own
configuration, and it gives up starting programs and changing its rights before the first instruction of the guest.
"""

from __future__ import annotations

from agentenv.errors import RuntimeUnavailable
from agentenv.guest.agent.ports import CALLS
from agentenv.sandbox.runtimes._vm.machine import Drive, Interface, MachineSpec
from agentenv.sandbox.runtimes.qemu.clock import counter_khz

PORT = "agentenv.0"
AGENT_SOCKET = "agent.sock"
AGENT, CONTROL = "agent", "control"
MOST_CPUS = 255
TRANSLATED_MB = 192
"""What an emulated machine's code may take once it is translated. QEMU's own choice is a gigabyte, which many programs,
one after the other, fill: more than the group of its monitor may take besides the machine's RAM.
"""
# Linux finds the last place first. The first one is left out: interrupts of pin 0 of the second controller do not
# arrive (QEMU 7.2).
_PLACES = range(23, 0, -1)
_ARGS = "console=ttyS0 reboot=t panic=-1"


def build_arguments(
    binary: str,
    spec: MachineSpec,
    *,
    accelerator: str,
    control: int,
    memory: str,
    shared: bool,
    restore: bool,
    vsock: tuple[int, int] | None = None,
) -> list[str]:
    """Every argument.

    Args:
        binary: Path of QEMU.
        spec: The machine.
        accelerator: "kvm", "hvf" or "tcg".
        control: Descriptor of the control connection.
        memory: Path of the file that is its RAM.
        shared: Whether what it writes to its RAM goes to that file; else only it sees it.
        restore: Whether its state will be sent; then it is paused, and needs no kernel.
        vsock: Its CID and the descriptor of the vhost device that has it; None for a serial port instead.

    Raises:
        RuntimeUnavailable: It has more devices than there are places for.
    """
    emulated = accelerator == "tcg"
    arguments = [
        binary,
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        *("-display", "none"),
        *("-name", f"agentenv-{spec.id}"),
        *("-M", "microvm,acpi=on,rtc=on,suppress-vmdesc=on,memory-backend=ram"),
        *("-accel", f"tcg,thread=multi,tb-size={TRANSLATED_MB}" if emulated else accelerator),
        *("-cpu", "max" if emulated else "host"),
        *("-smp", str(spec.vcpu_count)),
        *("-m", f"{spec.memory_mb}M"),
        "-object",
        f"memory-backend-file,id=ram,size={spec.memory_mb}M,mem-path={_escape(memory)},share={_on(shared)}",
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-global", "virtio-mmio.force-legacy=false"),
        # States are written without the part that describes the machine; see hypervisor.
        *("-global", "migration.send-configuration=off"),
        *("-chardev", f"socket,id={CONTROL},fd={control}", "-mon", f"chardev={CONTROL},mode=control"),
        *("-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"),
    ]
    devices = [
        _serial() if vsock is None else _vsock(*vsock),
        ["-object", "rng-builtin,id=rng", "-device", "virtio-rng-device,rng=rng"],
        *(_drive(number, drive) for number, drive in enumerate(spec.drives)),
        *(_interface(number, interface) for number, interface in enumerate(spec.interfaces)),
    ]
    if len(devices) > len(_PLACES):
        raise RuntimeUnavailable(
            f"machine {spec.id!r} has {len(spec.drives)} drives and {len(spec.interfaces)} interfaces; QEMU has places"
            f" for {len(_PLACES) - 2}",
            "use fewer",
        )
    for place, device in zip(_PLACES, devices, strict=False):
        at = next(index for index, word in enumerate(device) if word.startswith(("virtio-", "vhost-")))
        arguments += [*device[:at], f"{device[at]},bus=virtio-mmio-bus.{place}", *device[at + 1 :]]
    if restore:
        return [*arguments, "-S", "-incoming", "defer"]
    arguments += ["-kernel", str(spec.kernel)]
    if spec.initramfs is not None:
        arguments += ["-initrd", str(spec.initramfs)]
    words = [_ARGS, *(_emulated_args() if emulated else ()), CALLS if vsock is not None else "", spec.boot_args]
    return [*arguments, "-append", " ".join(word for word in words if word)]


def _emulated_args() -> list[str]:
    # Weaknesses of processors are not emulated, and guarding against them costs.
    khz = counter_khz()
    return ["mitigations=off", *([f"tsc_early_khz={khz}"] if khz is not None else [])]


def _vsock(cid: int, device: int) -> list[str]:
    return ["-device", f"vhost-vsock-device,guest-cid={cid},vhostfd={device}"]


def _serial() -> list[str]:
    return [
        *("-device", "virtio-serial-device,max_ports=2"),
        *("-chardev", f"socket,id={AGENT},path={AGENT_SOCKET},server=on,wait=off"),
        *("-device", f"virtserialport,chardev={AGENT},name={PORT}"),
    ]


def _drive(number: int, drive: Drive) -> list[str]:
    options = [
        "if=none",
        f"id=drive{number}",
        "format=raw",
        "file.driver=file",
        f"file.filename={_escape(drive.path)}",
        f"readonly={_on(drive.readonly)}",
        # What a machine wrote outlives it only in a snapshot, whose maker syncs the file: its own flushes cost for
        # nothing.
        f"cache={'writeback' if drive.readonly else 'unsafe'}",
    ]
    if drive.readonly:
        options.append("file.locking=off")
    else:
        options.append("discard=unmap")
    if drive.rate.bytes_per_s is not None:
        options.append(f"throttling.bps-total={drive.rate.bytes_per_s}")
    if drive.rate.ops_per_s is not None:
        options.append(f"throttling.iops-total={drive.rate.ops_per_s}")
    # A full disk of the host is the machine's I/O error; by default the machine would stand still.
    device = f"virtio-blk-device,drive=drive{number},werror=report,rerror=report"
    return ["-drive", ",".join(options), "-device", device]


def _interface(number: int, interface: Interface) -> list[str]:
    rates = (interface.receive, interface.send)
    if any(rate.bytes_per_s is not None or rate.ops_per_s is not None for rate in rates):
        raise RuntimeUnavailable(
            f"interface {interface.tap}: QEMU cannot limit what an interface carries",
            "limit it on the TAP device (tc qdisc), or use Firecracker",
        )
    return [
        *("-netdev", f"tap,id=net{number},ifname={_escape(interface.tap)},script=no,downscript=no,vhost=off"),
        *("-device", f"virtio-net-device,netdev=net{number},mac={interface.mac}"),
    ]


def _escape(value: str) -> str:
    return value.replace(",", ",,")


def _on(value: bool) -> str:
    return "on" if value else "off"
