"""Kernels from the packages of this system: the one a metapackage stands for is fetched and unpacked, not installed."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.programs import find_program, need_program, run
from agentenv.images.progress import Report

_VERSIONED = re.compile(r"linux-(?:image|image-unsigned|modules)-(\d[\w.+~-]*)")
# Debian's kernel for clouds comes last: emulated by QEMU as a microvm it finds no timer, and stops.
_DEFAULTS = ("linux-image-amd64", "linux-image-virtual", "linux-image-generic", "linux-image-cloud-amd64")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A kernel's packages, unpacked.

    Attributes:
        root: Where they lie.
        image: The bzImage.
        version: As ``uname -r`` will say.
        package: What was fetched, with its version.
    """

    root: Path
    image: Path
    version: str
    package: str


def find_package(wanted: str | None) -> str:
    """The versioned package a name stands for.

    Args:
        wanted: A package of this system, which may be a metapackage; None is the usual one for virtual machines.

    Raises:
        RuntimeUnavailable: There is none, or this system has no such packages.
    """
    if find_program("apt-get") is None:
        raise RuntimeUnavailable(
            "expected apt-get to fetch a kernel from, and this system has none",
            "agentenv kernel fetch --from PATH (a vmlinux or bzImage with virtio, overlay and ext4 built in)",
        )
    if platform.machine() != "x86_64":
        raise RuntimeUnavailable(f"expected an x86-64 machine to fetch a kernel for, got {platform.machine()}")
    for name in (wanted,) if wanted else _DEFAULTS:
        found = name
        for _ in range(4):
            if _VERSIONED.fullmatch(found):
                return found
            below = [one for one in _dependencies(found) if one.startswith("linux-")]
            better = [one for one in below if _VERSIONED.fullmatch(one) and "modules" not in one]
            if not better and not below:
                break
            found = (better or below)[0]
    raise RuntimeUnavailable(
        f"expected a package of a kernel, and apt knows none as {wanted or ', '.join(_DEFAULTS)}",
        "sudo apt-get update, or name one: agentenv kernel fetch --package linux-image-...",
    )


def fetch_package(package: str, work: Path, report: Report) -> Unpacked:
    """Fetch a versioned package, with its modules where they are one of their own, and unpack it.

    Raises:
        RuntimeUnavailable: It cannot be fetched, or is no kernel.
    """
    match = _VERSIONED.fullmatch(package)
    assert match is not None, "find_package returns versioned ones"
    beside = [one for one in _dependencies(package) if one == f"linux-modules-{match[1]}"]
    debs, root = work / "debs", work / "unpacked"
    debs.mkdir()
    root.mkdir()
    argv = [need_program("apt-get", "to fetch a kernel"), "download", "-q", *_as_root(), package, *beside]
    with report.task(f"fetching {package}"):
        run(
            argv,
            purpose=f"fetching {package}",
            remedy="sudo apt-get update: the list of packages may be older than the packages",
            directory=debs,
        )
    with report.task(f"unpacking {package}"):
        for deb in sorted(debs.iterdir()):
            unpack_deb(deb, root)
    image = next(debs.glob("linux-image*"), debs / package)
    return find_in(root, image.name.removesuffix(".deb"))


def unpack_deb(deb: Path, root: Path) -> None:
    """Unpack one package."""
    argv = [need_program("dpkg-deb", "to unpack a package"), "-x", str(deb), str(root)]
    run(argv, purpose=f"unpacking {deb.name}", directory=root)


def find_in(root: Path, package: str) -> Unpacked:
    """What an unpacked package has.

    Raises:
        RuntimeUnavailable: It is no kernel with modules.
    """
    found = (root / "boot").glob("vmlinuz-*")
    images = sorted(path for path in found if path.is_file() and not path.is_symlink())
    if not (root / "lib").exists() and (root / "usr/lib/modules").is_dir():
        (root / "lib").symlink_to("usr/lib")
    version = images[0].name.removeprefix("vmlinuz-") if images else ""
    if not images or not (root / "lib/modules" / version).is_dir():
        raise RuntimeUnavailable(f"expected a kernel and its modules in the package {package}, and they are not there")
    return Unpacked(root, images[0], version, package)


def _dependencies(package: str) -> list[str]:
    """What a package needs, in the version that would be installed."""
    argv = [need_program("apt-cache", "to look up a kernel"), "show", "--no-all-versions", package]
    try:
        shown = run(argv, purpose=f"looking up {package}").text
    except RuntimeUnavailable:
        return []
    needed = re.search(r"^Depends: (.*)$", shown, re.M)
    return [] if needed is None else [re.split(r"[ (|]", one.strip())[0] for one in needed[1].split(",")]


def _as_root() -> list[str]:
    # Where root runs it, apt would fetch as a user that cannot write into our directory.
    return ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
