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
    """Copy modules into a directory, uncompressed and numbered in their order; returns their names there.

    Raises:
        RuntimeUnavailable: One is damaged.
    """
    folder.mkdir()
    names = []
    for number, path in enumerate(found.paths):
        name = f"{number:02d}-{path.name.partition('.ko')[0]}.ko"
        try:
            data = _read(path)
        except (zlib.error, lzma.LZMAError, EOFError, subprocess.SubprocessError) as error:
            message = f"expected a whole module, and {path.name} cannot be unpacked: {error}"
            raise RuntimeUnavailable(message, "fetch or copy the kernel's package again") from error
        (folder / name).write_bytes(data)
        names.append(name)
    return tuple(names)


def _read(path: Path) -> bytes:
    """A module, uncompressed."""
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        return zlib.decompress(data, 31)
    if path.name.endswith(".xz"):
        return lzma.decompress(data)
    if path.name.endswith(".zst"):
        program = need_program("zstd", "to unpack the kernel's modules")
        return subprocess.run([program, "-d", "-c", "-q"], input=data, capture_output=True, check=True).stdout
    return data
