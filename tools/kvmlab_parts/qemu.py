"""One emulated machine: a QEMU process that is gone when this one is, and that leaves no file behind.

What it reads and what it writes are files in memory and sockets that have no name.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .assets import Assets
from .job import Job
from .tools import dies_with_us, find

APPEND = (
    "console=ttyS0",
    "quiet",
    "panic=-1",  # with -no-reboot: the process ends, and we see it
    "mitigations=off",
    "nokaslr",
    "tsc=reliable",  # or else the kernel may choose a clock whose every reading leaves the emulated processor
    "no_timer_check",
    "random.trust_cpu=on",
    "cryptomgr.notests",
    "rcupdate.rcu_expedited=1",
    "audit=0",
    "apparmor=0",
)
# Five levels of page tables make every miss of the emulated TLB dearer: the boot took a quarter longer.
CPU = "max,la57=off"
PORTS = ("stdin", "control", "stdout", "stderr")
"""Their numbers in the machine are their places here, from 1. guest.sh waits for the last."""


class Machine:
    """A machine that was started.

    Args:
        job: What it is for.
        assets: What it is made of.
        memory_mb: Its memory, MiB.
        cpus: Its processors.

    Attributes:
        links: Our ends of the ports, by name.
        process: QEMU.

    Raises:
        LabError: There is no QEMU.
    """

    def __init__(self, job: Job, assets: Assets, memory_mb: int, cpus: int) -> None:
        (program,) = find("qemu-system-x86_64")
        self.links: dict[str, socket.socket] = {}
        self._console = os.memfd_create("kvmlab-console")
        self._errors = os.memfd_create("kvmlab-qemu")
        ends: dict[str, socket.socket] = {}
        initramfs = os.memfd_create("kvmlab-initramfs")
        try:
            with open(initramfs, "wb", closefd=False) as file:
                file.write(job.initramfs(assets))
            for name in PORTS:
                self.links[name], ends[name] = socket.socketpair()
                self.links[name].setblocking(False)
            numbers = {name: end.fileno() for name, end in ends.items()}
            self.process = subprocess.Popen(
                [
                    program,
                    *_board(memory_mb, cpus),
                    *("-kernel", str(assets.vmlinux)),
                    *("-initrd", f"/proc/self/fd/{initramfs}"),
                    *("-append", " ".join(APPEND)),
                    *("-chardev", f"file,id=console,path=/proc/self/fd/{self._console}"),
                    *("-serial", "chardev:console"),
                    *_serial(numbers),
                    *_share("root", Path("/"), readonly=True),
                    *(word for number, path in enumerate(job.write) for word in _share(f"write{number}", path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=(initramfs, self._console, *numbers.values()),
                start_new_session=True,  # the terminal's signals are for the command, not for it
                preexec_fn=dies_with_us(),
            )
        except BaseException:
            for link in self.links.values():
                link.close()
            os.close(self._console)
            os.close(self._errors)
            raise
        finally:
            os.close(initramfs)
            for end in ends.values():
                end.close()

    @property
    def console(self) -> bytes:
        """What the kernel and the first process printed."""
        return os.pread(self._console, os.fstat(self._console).st_size, 0)

    @property
    def complaints(self) -> bytes:
        """What QEMU printed."""
        return os.pread(self._errors, os.fstat(self._errors).st_size, 0)

    def kill(self) -> None:
        """End it, and wait for that. Idempotent; the console can still be read."""
        self.process.kill()
        self.process.wait()
        for link in self.links.values():
            link.close()


def _board(memory_mb: int, cpus: int) -> list[str]:
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35,hpet=off,vmport=off,smbus=off,sata=off"),
        *("-accel", "tcg,thread=multi,tb-size=512"),
        *("-cpu", CPU, "-smp", str(cpus), "-m", str(memory_mb)),
    ]


def _serial(numbers: dict[str, int]) -> list[str]:
    words = ["-device", "virtio-serial-pci,max_ports=8"]
    for name, descriptor in numbers.items():
        words += ["-chardev", f"socket,id={name},fd={descriptor}"]
    for number, name in enumerate(PORTS, start=1):
        words += ["-device", f"virtserialport,nr={number},chardev={name},name=kvmlab.{name}"]
    return words


def _share(tag: str, path: Path, readonly: bool = False) -> Sequence[str]:
    escaped = str(path).replace(",", ",,")
    mode = "on" if readonly else "off"
    return (
        *("-fsdev", f"local,id={tag},path={escaped},security_model=none,multidevs=remap,readonly={mode}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    )
