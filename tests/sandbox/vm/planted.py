"""Machines with something wrong in them: other first file systems than the real one, built of the same parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from agentenv.images.cpio import character_device, directory, file, write_cpio
from agentenv.images.initramfs import find_busybox
from agentenv.images.kernels import Kernel
from agentenv.images.progress import LINES, Report
from agentenv.images.store import Store

TRAITOR = Path(__file__).with_name("traitor.py")
_START = "exec switch_root /root $agent "
_STARTED = "cp /traitor.py /root/run/traitor.py; exec switch_root /root /.agentenv/bin/python -I -u /run/traitor.py "

Initramfs = Callable[[Kernel, Store, Report], Path]


def initramfs(place: Path, *, traitor: bool = False, modules: bool = True, script: str | None = None) -> Initramfs:
    """What takes the place of ``images.initramfs.initramfs_for``.

    Args:
        place: Directory for the file.
        traitor: Have the traitor run in place of the agent.
        modules: Whether the kernel's modules are in it.
        script: In place of ``init.sh``.
    """

    def build(kernel: Kernel, store: Store, report: Report = LINES) -> Path:
        text = script or files("agentenv.images").joinpath("init.sh").read_text(encoding="utf-8")
        if traitor:
            assert _START in text
            text = text.replace(_START, _STARTED)
        entries = [directory(name) for name in ("bin", "dev", "modules")]
        entries.append(character_device("dev/console", 5, 1))
        entries.append(file("bin/busybox", find_busybox().read_bytes(), executable=True))
        entries.append(file("init", text.encode(), executable=True))
        entries.append(file("traitor.py", TRAITOR.read_bytes()))
        if modules:
            entries += [file(f"modules/{path.name}", path.read_bytes()) for path in kernel.modules]
        name = hashlib.sha256(f"{text}{modules}{TRAITOR.read_text()}".encode()).hexdigest()[:16]
        made = place / f"{name}.cpio"
        if not made.exists():
            with open(made, "xb") as archive:
                write_cpio(archive, entries)
        return made

    return build
