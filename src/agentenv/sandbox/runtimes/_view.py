"""What of the host's file system an environment sees: a pure decision from paths to a list of read-only binds.

The rule: what the caller can import, the environment can - the Python installation, the system's libraries, and the
directories on ``sys.path``. Never a whole home directory, and never a directory that contains one; of such a
directory only its modules and packages are shown, one by one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = ("/usr", "/nix/store", "/gnu/store")
_SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "OpenCL",
    "os-release",
    "pki",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
    "vulkan",
)
_NETWORK_ETC = ("gai.conf", "host.conf", "hosts", "nsswitch.conf", "resolv.conf")
_TOO_WIDE = (
    "/",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/run",
    "/srv",
    "/sys",
    "/tmp",
    "/var",
)


@dataclass(frozen=True, slots=True)
class View:
    """What to bind read-only, at the same path.

    Attributes:
        binds: Existing files and directories, parents before children, none inside another.
        links: Symbolic links to recreate: (path, target).
        notes: What was left out, in sentences for the log.
        hidden: Files and directories below the binds to cover with nothing.
    """

    binds: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def homes() -> frozenset[str]:
    """Directories that are somebody's home: the caller's, root's, and all of /home."""
    found = {os.path.expanduser("~"), "/root"}
    with contextlib.suppress(KeyError):
        found.add(pwd.getpwuid(os.geteuid()).pw_dir)
    with contextlib.suppress(OSError):
        found.update(entry.path for entry in os.scandir("/home") if entry.is_dir())
    return frozenset(os.path.realpath(path) for path in found if path and path != "/")


def is_too_wide(path: str, home_directories: Iterable[str]) -> bool:
    """Whether a directory must not be shown whole: a home, a parent of one, or a general directory of the system."""
    real = os.path.realpath(path)
    if real in _TOO_WIDE:
        return True
    prefix = real.rstrip("/") + "/"
    return any(home == real or home.startswith(prefix) for home in home_directories)


def importable(path: str) -> list[str]:
    """The modules and packages directly in a directory; [] where it cannot be read."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    found = [os.path.join(path, name) for name in names if not name.startswith(".")]
    # These tests answer False for a link that leads nowhere or in a circle.
    return [
        entry
        for entry in found
        if (entry.endswith((".py", ".so")) and os.path.isfile(entry))
        or os.path.isfile(os.path.join(entry, "__init__.py"))
    ]


def _interpreter_chain(executable: str) -> list[str]:
    """The directories a chain of symbolic links to the interpreter passes through."""
    found, path = [], executable
    for _ in range(40):
        found.append(os.path.dirname(os.path.abspath(path)))
        if not os.path.islink(path):
            break
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return found


def editable_directories() -> list[str]:
    """Directories that import hooks of editable installs map packages to."""
    found: list[str] = []
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        if module is not None and module.__name__.startswith("__editable__"):
            mapping = getattr(module, "MAPPING", {})
            found.extend(str(path) for path in mapping.values())
    return found


def plan_view(
    paths: Sequence[str],
    *,
    directories: Sequence[str] = (),
    network: bool = False,
    hidden: Sequence[str] = (),
    home_directories: Iterable[str] | None = None,
) -> View:
    """Decide what an environment sees.

    Args:
        paths: The ``sys.path`` it will have.
        directories: Further directories wanted whole, such as the configuration's own.
        network: Whether name resolution must work.
        hidden: Files and directories that must not be seen even where they lie in what is shown.
        home_directories: Homes to protect; None looks for them.
    """
    protected = homes() if home_directories is None else frozenset(home_directories)
    wanted: list[str] = [path for path in _SYSTEM if os.path.isdir(path)]
    links: list[tuple[str, str]] = []
    notes: list[str] = []
    for path in _SYSTEM_LINKS:
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            wanted.append(path)
    for name in _ETC + (_NETWORK_ETC if network else ()):
        if os.path.exists(f"/etc/{name}"):
            wanted.append(f"/etc/{name}")
    wanted.extend((sys.prefix, sys.base_prefix))
    for candidate in (*_interpreter_chain(sys.executable), *paths, *directories, *editable_directories()):
        path = os.path.abspath(candidate)
        if not os.path.exists(path):
            continue
        if not os.path.isdir(path) or not is_too_wide(path, protected):
            wanted.append(path)
            continue
        inside = importable(path)
        wanted.extend(inside)
        notes.append(
            f"{path} is on sys.path and holds more than code (a home or system directory): only the {len(inside)}"
            " modules and packages directly in it are visible to environments; keep projects in folders of their own"
        )
    # Where a path goes through a symbolic link, code may ask for either name.
    wanted.extend([real for path in wanted if (real := os.path.realpath(path)) != path and Path(path).is_dir()])
    binds = _without_nested(wanted)
    covered = []
    for path in dict.fromkeys(os.path.realpath(path) for path in hidden if os.path.exists(path)):
        if any(_within(other, path) for other in wanted):
            notes.append(f"{path} must be visible to environments, because code that they import lies in it")
        elif any(_within(path, bind) for bind in binds):
            covered.append(path)
    return View(binds, tuple(links), tuple(dict.fromkeys(notes)), tuple(covered))


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _without_nested(paths: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(_within(path, other) for other in kept):
            kept.append(path)
    return tuple(kept)
