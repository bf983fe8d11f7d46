"""The drive with what a machine runs of ours: an interpreter of its own, and this package.

It works in an image that has neither Python nor a C library. Inside, it is mounted read-only as ``/.agentenv``:

    bin/agent       starts the agent            lib/        shared libraries, their loader, the standard library
    bin/python      starts the interpreter      packages/   agentenv
    bin/busybox     a shell that needs nothing
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.content import key_of
from agentenv.images.copying import Changed, Copier
from agentenv.images.ext4 import make_ext4
from agentenv.images.files import digest_file
from agentenv.images.initramfs import find_busybox
from agentenv.images.interpreter import base_interpreter, compile_packages, copy_interpreter
from agentenv.images.progress import LINES, Report
from agentenv.images.store import Store

_FORMAT = 2
_FILE = "tools.ext4"
_ATTEMPTS = 5


def tools_drive(store: Store, report: Report = LINES, *, source: Path | None = None) -> Path:
    """The drive for this host's Python and this version of the package; made once for both.

    Args:
        store: Where it is kept.
        report: Whom to tell.
        source: The directory of the package ``agentenv`` to take; None is this one.

    Raises:
        RuntimeUnavailable: The interpreter cannot be copied, or there is no static busybox.
    """
    busybox, python = find_busybox(), base_interpreter()
    package = source or Path(str(files("agentenv")))
    launcher = files("agentenv.images").joinpath("agent.sh").read_text(encoding="ascii")

    def make() -> Path:
        # The standard library is known by its version: two builds of one version do not differ in it.
        own = Copier("the package").digest(package)
        key = key_of("tools", _FORMAT, [sys.version, digest_file(python), digest_file(busybox), own, launcher])

        def build(out: Path) -> None:
            with store.work() as work, report.task("making the tools drive"):
                _fill(work / "home", package, own, busybox, launcher)
                make_ext4(work / "home", out / _FILE, label="agentenv-tools", keep_times=False)

        return store.once(key, build, what="the tools drive", report=report) / _FILE

    for _ in range(_ATTEMPTS):
        with contextlib.suppress(Changed):
            return make()
    raise RuntimeUnavailable(f"expected the package {package} to stay as it is while it is copied", "try again")


def _fill(home: Path, package: Path, own: str, busybox: Path, launcher: str) -> None:
    loader = copy_interpreter(home)
    # The whole package, since the environments that come with it run there too; the agent imports the guest's.
    Copier("the package").copy(package, home / "packages/agentenv")
    if Copier("the package").digest(home / "packages/agentenv") != own:
        raise Changed
    compile_packages(home / "packages", "/.agentenv/packages")
    shutil.copyfile(busybox, home / "bin/busybox")
    agent = launcher.replace("@LOADER@", loader)
    (home / "bin/agent").write_text(agent, encoding="ascii")
    (home / "bin/python").write_text(agent.replace(" -I -u -m agentenv.guest.agent", ""), encoding="ascii")
    for path in home.rglob("*"):
        program = path.is_dir() or path.parent.name == "bin" or path.name == loader
        path.chmod(0o755 if program else 0o644)
