"""Debian's kernel package, taken apart: the uncompressed kernel, and the modules that a machine may want."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from .errors import LabError
from .tools import call, dies_with_us, find

NEEDED = (
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "irqbypass",
    "kvm",
    "ccp",
    "kvm-amd",
    "tun",
    "vhost_vsock",
)
"""Loaded at every boot. The others are loaded when the kernel or a command asks for one."""

_LEFT_OUT = frozenset(
    {"ata", "bluetooth", "comedi", "ethernet", "gpu", "hid", "hwmon", "iio", "infiniband", "input", "isdn", "media"}
    | {"mmc", "mtd", "nvme", "scsi", "sound", "staging", "usb", "video", "wireless"}
)
"""Drivers of devices that no such machine has: most of the package."""
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"


def unpack_kernel(deb: Path, to: Path, dpkg_deb: str) -> None:
    """Make a directory with ``vmlinux`` and ``modules/VERSION``.

    Raises:
        LabError: The package is not what it was when this was written.
    """
    to.mkdir()
    compressed = _unpack(deb, to, dpkg_deb)
    versions = [path.name for path in (to / "modules").glob("*")]
    if compressed is None or len(versions) != 1:
        raise LabError(f"{deb.name}: expected one boot/vmlinuz-VERSION and lib/modules/VERSION, got {versions}")
    vmlinux = uncompressed(compressed)
    (to / "vmlinux").write_bytes(vmlinux)
    (depmod,) = find("depmod")
    (to / "lib").symlink_to(".")  # depmod looks for lib/modules
    call([depmod, "-b", to, versions[0]], "could not list the kernel's modules")


def uncompressed(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage that is compressed with xz, as those of Debian's ``linux-image-amd64`` are.

    Raises:
        LabError: There is none in it.
    """
    at = image.find(_XZ)
    if at < 0:
        raise LabError("expected a kernel compressed with xz, as Debian's are; it has no such part")
    try:
        kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[at:])  # what follows is the end of the image
    except lzma.LZMAError as error:
        raise LabError(f"expected a kernel compressed with xz, it cannot be decompressed: {error}") from error
    if not kernel.startswith(_ELF):
        raise LabError(f"expected an ELF kernel in it, got {kernel[:8]!r}")
    return kernel


def _unpack(deb: Path, to: Path, dpkg_deb: str) -> bytes | None:
    """Write the modules; returns the compressed kernel."""
    kernel = None
    command = [dpkg_deb, "--fsys-tarfile", str(deb)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=dies_with_us())
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts
            if not member.isfile() or (content := archive.extractfile(member)) is None:
                continue
            if parts[0] == "boot" and parts[1].startswith("vmlinuz-"):
                kernel = content.read()
            elif "modules" in parts[:3] and not _LEFT_OUT & set(parts):
                target = to.joinpath(*parts[parts.index("modules") :])
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "wb") as file:
                    shutil.copyfileobj(content, file)
    if process.returncode:
        raise LabError(f"could not unpack {deb.name}: {' '.join(command)} exited with {process.returncode}")
    return kernel


def load_order(modules: Path) -> list[str]:
    """The files of the modules that are loaded at boot, relative to this directory, dependencies first.

    Raises:
        LabError: The kernel lacks one.
    """
    files = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, needs = line.partition(":")
        files[_name(file)] = [*reversed(needs.split()), file]  # depmod writes what is needed first last
    builtin = {_name(line) for line in (modules / "modules.builtin").read_text().splitlines()}
    order: dict[str, None] = {}
    for module in map(_name, NEEDED):
        if module not in files and module not in builtin:
            raise LabError(f"expected a module {module} of kernel {modules.name}, it has none; kvmlab fetch --again")
        order.update(dict.fromkeys(files.get(module, [])))
    return list(order)


def _name(file: str) -> str:
    return PurePosixPath(file).name.partition(".")[0].replace("-", "_")
