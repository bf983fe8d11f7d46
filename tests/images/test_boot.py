"""A machine boots from what is made here: with an image that has nothing at all, and the tools' own interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.images.drives import directory_drive, scratch_template
from agentenv.images.initramfs import find_busybox, initramfs_for
from agentenv.images.kernels import Kernel
from agentenv.images.programs import need_program
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from agentenv.images.tools import tools_drive
from agentenv.sandbox.runtimes._vm.files import copy_sparsely

# Stands in for the agent: says what it sees, and ends the machine.
AGENT = """
import os, sys, ctypes
def say(*words): print("agent:", *words, flush=True)
say("pid", os.getpid(), sys.executable, "isolated", sys.flags.isolated)
for line in open("/proc/self/mounts"):
    say("mount", *line.split()[:4])
say("root", *sorted(os.listdir("/")))
say("drives", *sorted(name for name in os.listdir("/dev") if name.startswith("vd")))
def refuses(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
say("tools", refuses("/.agentenv/new"))
open("/bin/new", "w").write("kept")
say("wrote", open("/bin/new").read(), os.path.exists("/bin/busybox"))
say("tmp", oct(os.stat("/tmp").st_mode), os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize >> 20)
os.sync()
ctypes.CDLL(None).reboot(0x1234567)
"""


@pytest.fixture(scope="module")
def machine(distribution_kernel: Kernel, dear_store: Store, tmp_path_factory: pytest.TempPathFactory, need) -> Callable:
    need("qemu-system-x86_64", "busybox", "mkfs.ext4", "ldd")
    place = tmp_path_factory.mktemp("machine")
    source = place / "agentenv"
    (source / "guest/agent").mkdir(parents=True)
    for package in ("guest", "guest/agent"):
        (source / package / "__init__.py").write_text("")
    (source / "guest/agent/__main__.py").write_text(AGENT)
    (place / "root/bin").mkdir(parents=True)
    shutil.copy(find_busybox(), place / "root/bin/busybox")
    os.symlink("bin", place / "root/tmp")
    image = build_image("nothing", Recipe(str(place / "root")), dear_store).path
    tools = tools_drive(dear_store, source=source)
    scratch = place / "scratch"
    copy_sparsely(scratch_template(64, dear_store), scratch)
    scratch.chmod(0o600)
    more, _ = directory_drive([source], dear_store)
    first = initramfs_for(distribution_kernel, dear_store)

    def boot(*parameters: str, drives: int = 4, root: Path = image) -> list[str]:
        argv = [need_program("qemu-system-x86_64", "to boot"), "-M", "q35,smbus=off,sata=off,usb=off"]
        argv += ["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "256", "-smp", "1"]
        argv += ["-kernel", str(distribution_kernel.path), "-initrd", str(first)]
        argv += ["-append", " ".join(["console=ttyS0 reboot=t panic=-1 quiet", *parameters])]
        argv += ["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot"]
        # Faster by a second than the usual firmware, and enough to start a kernel that is given.
        argv += ["-bios", "qboot.rom"] if Path("/usr/share/qemu/qboot.rom").exists() else []
        for number, path in enumerate((root, tools, scratch, more)[:drives]):
            readonly = "off" if path == scratch else "on"
            argv += ["-drive", f"id=d{number},file={path},format=raw,if=none,readonly={readonly}"]
            argv += ["-device", f"virtio-blk-pci,drive=d{number}"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=110)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode(errors="replace").replace("\r", "").splitlines()

    boot.directory = place / "root"  # type: ignore[attr-defined]  # for the next test
    return boot


def test_from_the_drives_to_the_agent(machine: Callable) -> None:
    console = machine("agentenv.tmp_mb=16")
    said = [line.partition("agent: ")[2] for line in console if "agent: " in line]
    assert said, "\n".join(console[-20:])
    assert said[0] == "pid 1 /.agentenv/bin/python3 isolated 1"
    mounts = {line.split()[2]: line.split()[1:] for line in said if line.startswith("mount ")}
    assert mounts["/"][0] == "root"
    assert mounts["/"][2] == "overlay"
    assert mounts["/"][3].startswith("rw,")
    assert mounts["/.agentenv"][:3] == ["/dev/vdb", "/.agentenv", "ext4"]
    assert mounts["/.agentenv"][3].startswith("ro,")
    assert {path: mounts[path][2] for path in ("/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/run", "/tmp")} == {
        "/proc": "proc",
        "/sys": "sysfs",
        "/dev": "devtmpfs",
        "/dev/pts": "devpts",
        "/dev/shm": "tmpfs",
        "/run": "tmpfs",
        "/tmp": "tmpfs",
    }
    assert "root .agentenv bin dev proc run sys tmp" in said
    assert "drives vda vdb vdc vdd" in said
    assert "tools Read-only file system" in said
    assert "wrote kept True" in said
    assert "tmp 0o41777 16" in said


def test_a_squashfs_and_nothing_to_write_on_but_memory(machine: Callable, tmp_path: Path, need) -> None:
    need("mksquashfs")
    directory: Path = machine.directory  # type: ignore[attr-defined]  # set by the fixture
    argv = [need_program("mksquashfs", "to test"), str(directory), str(tmp_path / "root"), "-quiet"]
    subprocess.run(argv, check=True, capture_output=True)
    console = machine("agentenv.scratch_mb=24", drives=2, root=tmp_path / "root")
    said = [line.partition("agent: ")[2] for line in console if "agent: " in line]
    assert "wrote kept True" in said, "\n".join(console[-20:])
    assert "drives vda vdb" in said


def test_what_fails_is_the_last_word_of_the_console(machine: Callable) -> None:
    console = machine("agentenv.wait_s=1", drives=1)
    lines = [line for line in console if line.startswith("agentenv: ")]
    assert lines == ["agentenv: init: waiting for /dev/vdb: it did not appear within 1 s"]
