"""The modules a kernel needs to see its drives, its network and us, in the order in which they can be loaded."""

from __future__ import annotations

import lzma
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.programs import need_program, run

# Without these no machine gets as far as its agent.
REQUIRED = ("virtio_mmio", "virtio_blk", "overlay", "ext4")
WANTED = (
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "virtio_balloon",
    "vmw_vsock_virtio_transport",
    "squashfs",
    "9pnet_virtio",
    "9p",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What of it there is.

    Attributes:
        paths: Module files, each after those it needs.
        missing: Wanted ones that are neither there nor built in.
    """

    paths: tuple[Path, ...]
    missing: tuple[str, ...]


def find_modules(root: Path, version: str) -> Found:
    """Find them below ``root/lib/modules/version``.

    Raises:
        RuntimeUnavailable: A required one is missing, or kmod is not installed.
    """
    depmod, modprobe = (need_program(name, "to find a kernel's modules") for name in ("depmod", "modprobe"))
    run([depmod, "-b", str(root), version], purpose="listing the kernel's modules")
    empty = root / "etc-modprobe"
    empty.mkdir(exist_ok=True)
    paths: dict[Path, None] = {}
    missing = []
    for name in (*REQUIRED, *WANTED):
        # Without the host's own configuration, which is for the host's own modules.
        argv = [modprobe, "-C", str(empty), "-d", str(root), "-S", version, "--show-depends", name]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            missing.append(name)
        for line in done.stdout.splitlines() if done.returncode == 0 else ():
            word, _, rest = line.strip().partition(" ")
            if word == "insmod":
                paths[Path(rest.split(" ")[0])] = None
    if lacking := [name for name in REQUIRED if name in missing]:
        raise RuntimeUnavailable(
            f"expected a kernel with {', '.join(lacking)}, and {version} has none of it, built in or as module",
            "take another one: agentenv kernel fetch --package linux-image-cloud-amd64",
        )
    return Found(tuple(paths), tuple(missing))


def store_modules(found: Found, folder: Path) -> tuple[str, ...]:
    """Copy modules into a directory, uncompressed and numbered in their order; returns their names there."""
    folder.mkdir()
    names = []
    for number, path in enumerate(found.paths):
        name = path.name
        data = path.read_bytes()
        if name.endswith(".gz"):
            data = zlib.decompress(data, 31)
        elif name.endswith(".xz"):
            data = lzma.decompress(data)
        elif name.endswith(".zst"):
            program = need_program("zstd", "to unpack the kernel's modules")
            data = subprocess.run([program, "-d", "-c", "-q"], input=data, capture_output=True, check=True).stdout
        name = f"{number:02d}-{name.partition('.ko')[0]}.ko"
        (folder / name).write_bytes(data)
        names.append(name)
    return tuple(names)
