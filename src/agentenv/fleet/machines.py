"""From a configuration to the files of machines: kernel, image, drives, and the project's own code.

What is not there yet but can be made on this host is made, and kept; what has to be fetched or built by the user is
asked for, with the command that does it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.drives import directory_drive, scratch_template
from agentenv.images.image import Image, list_images, resolve_image
from agentenv.images.initramfs import initramfs_for
from agentenv.images.kernels import resolve_kernel
from agentenv.images.progress import LINES, Report
from agentenv.images.recognized import check_root
from agentenv.images.store import Store
from agentenv.images.tools import tools_drive
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._view import homes, importable, is_too_wide

DEFAULT_IMAGE = "gymnasium"
_LEAST_SCRATCH_MB = 64
_TEMPLATES = "machines"


def machine_files(
    paths: Sequence[str], hidden: Sequence[str] = (), report: Report = LINES
) -> Callable[[SandboxSpec], MachineFiles]:
    """How the files of a sandbox's machine are found.

    Args:
        paths: ``sys.path``; directories on it that hold no installed packages are shown in the machines.
        hidden: Files and directories that are never shown.
        report: Told of what takes long.
    """
    store = Store.default()
    lock = threading.Lock()
    found: dict[tuple[str | None, str | None, int], MachineFiles] = {}

    def find(spec: SandboxSpec) -> MachineFiles:
        key = spec.kernel, spec.image, max(_LEAST_SCRATCH_MB, spec.disk_mb)
        with lock:
            # What nobody holds yet may be collected meanwhile.
            if key not in found or not all(path.exists() for path in found[key].paths()):
                found[key] = _find(*key, project_places(paths), hidden, store, report)
            return found[key]

    return find


def project_places(paths: Sequence[str]) -> list[Path]:
    """What on a path belongs to a project: not the interpreter's directories, not those of installed packages.

    Of a home, and of other directories that hold more than code, only the modules and packages directly in it.
    """
    protected = homes()
    prefixes = {os.path.realpath(place) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    prefixes |= {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own = os.path.realpath(Path(str(files("agentenv"))).parent)  # comes with the tools
    kept: dict[Path, None] = {}
    for path in paths:
        real = os.path.realpath(path)
        inside = any(real == prefix or real.startswith(prefix + "/") for prefix in prefixes)
        if os.path.isdir(real) and not inside and real != own:
            shown = importable(path) if is_too_wide(path, protected) else [path]
            kept |= dict.fromkeys(Path(one).absolute() for one in shown)
    return list(kept)


def _find(
    kernel_value: str | None,
    image_value: str | None,
    scratch_mb: int,
    project: Sequence[Path],
    hidden: Sequence[str],
    store: Store,
    report: Report,
) -> MachineFiles:
    image = _default_image(store) if image_value is None else resolve_image(image_value, store)
    check_root(image.path)
    kernel = resolve_kernel(kernel_value, store)
    drive: Path | None = None
    places: list[tuple[str, str]] = []
    if project:
        drive, shown = directory_drive(project, store, report, hidden=hidden)
        places = [(inside, str(path)) for path, inside in shown]
    return MachineFiles(
        kernel=kernel.path,
        initramfs=initramfs_for(kernel, store, report),
        root=image.path,
        tools=tools_drive(store, report),
        scratch=scratch_template(scratch_mb, store, report),
        project=drive,
        places=tuple(places),
        variables=tuple(sorted(image.start.env.items())),
        user=image.start.user,
        workdir=image.start.workdir,
        entrypoint=image.start.entrypoint,
        cmd=image.start.cmd,
        image=image.name or str(image.path),
        cache=store.root / _TEMPLATES,
    )


def _default_image(store: Store) -> Image:
    images = {image.name: image for image in list_images(store)}
    if DEFAULT_IMAGE in images:
        return images[DEFAULT_IMAGE]
    there = ", ".join(images) or "none yet"
    raise RuntimeUnavailable(
        f"expected an image named {DEFAULT_IMAGE!r}, or another one by rootfs_image, image= or --image"
        f" (images here: {there})",
        f"agentenv image build {DEFAULT_IMAGE} --from debian:bookworm --pip gymnasium --pip numpy",
    )
