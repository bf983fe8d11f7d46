"""Kernels: fetched or taken from a file, kept with the modules they need, and found again by name."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.content import key_of
from agentenv.images.debs import Unpacked, fetch_package, find_in, find_package, unpack_deb
from agentenv.images.files import digest_file
from agentenv.images.modules import find_modules, store_modules
from agentenv.images.progress import LINES, Report
from agentenv.images.source import why_not
from agentenv.images.store import Named, Store, check_name, instead, shown
from agentenv.images.vmlinux import check_bootable, read_kernel

KIND = "kernel"
_FORMAT = 1
_MODULES = "modules"
_FILE = "vmlinux"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that can be booted.

    Attributes:
        path: The uncompressed kernel.
        modules: Its modules, each after those it needs.
        version: As ``uname -r`` will say.
        digest: SHA-256 of the kernel, or of it with its modules.
        name: In the store; "" for a file that is not from it.
        source: Where it came from.
        fetched: When, as ISO 8601; "" where it is not known.
        number: Counts what was fetched: the order of times is not that of events where the clock is set back.
    """

    path: Path
    modules: tuple[Path, ...]
    version: str
    digest: str
    name: str = ""
    source: str = ""
    fetched: str = ""
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        """For people and programs: what is known of it."""
        return {
            "name": self.name,
            "version": self.version,
            "digest": self.digest,
            "path": str(self.path),
            "modules": [path.name for path in self.modules],
            "source": self.source,
            "fetched": self.fetched,
        }


def fetch_kernel(
    store: Store, *, package: str | None = None, name: str | None = None, report: Report = LINES, fresh: bool = False
) -> Kernel:
    """Fetch a kernel from this system's packages.

    Args:
        store: Where it is kept.
        package: Which, None for the usual one for virtual machines.
        name: What to call it; None takes its version.
        report: Whom to tell.
        fresh: Whether it is fetched even if it is there.

    Raises:
        ConfigError: The name is not fit for a file.
        RuntimeUnavailable: It cannot be fetched, or cannot boot a machine; says why.
    """
    _check_name(name)
    found = find_package(package)

    def build(out: Path) -> None:
        with store.work() as work:
            _fill(fetch_package(found, work, report), out, report)

    key = key_of("deb", _FORMAT, found)
    return _name(store, store.once(key, build, what="the same kernel", report=report, again=fresh), found, name)


def take_kernel(
    store: Store, path: Path, *, name: str | None = None, report: Report = LINES, source: str = ""
) -> Kernel:
    """Take a kernel from a file: a vmlinux or a bzImage, which then has no modules, or a .deb, which has.

    Raises:
        ConfigError: It is no such file.
        RuntimeUnavailable: It cannot boot a machine.
    """
    if not os.path.isfile(path):
        raise ConfigError(
            [Problem("command line", "--from", f"expected a file, got {str(path)[:200]!r}{why_not(path)}")]
        )
    _check_name(name)
    name = name or (None if path.suffix == ".deb" else _nameable(path.name))
    return _name(store, _from_file(store, path.absolute(), report), source or str(path.absolute()), name)


def download_kernel(store: Store, url: str, sha256: str, *, name: str | None = None, report: Report = LINES) -> Kernel:
    """Take a kernel from the network; it must be the very file that was meant.

    Raises:
        ConfigError: It is another file, or no kernel.
        RuntimeUnavailable: It cannot be fetched, or cannot boot a machine.
    """
    _check_name(name)
    with store.work() as work:
        place = work / (_nameable(url.rpartition("/")[2].partition("?")[0]) or "kernel")
        try:
            with urllib.request.urlopen(url, timeout=60) as answer, open(place, "wb") as file:
                length = answer.headers.get("Content-Length")
                with report.task(f"fetching {url}", int(length) if length else None) as task:
                    while chunk := answer.read(1 << 18):
                        file.write(chunk)
                        task.advance(len(chunk))
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError) as error:
            raise RuntimeUnavailable(
                f"expected to fetch a kernel from {url}, got: {error}", "check address and proxy"
            ) from error
        found = digest_file(place)
        if found != sha256.lower():
            message = f"expected a file with SHA-256 {sha256}, got {found} from {url}"
            raise ConfigError([Problem("command line", "--sha256", message, "do not use this file")])
        return take_kernel(store, place, name=name, report=report, source=url)


def resolve_kernel(value: str | None, store: Store, asked: str = "kernel_image") -> Kernel:
    """The kernel a configuration's ``kernel_image`` means.

    Args:
        value: A file (a vmlinux is used as it lies there, without modules), a name in the store, or None for the one
            that was fetched last.
        store: Where fetched ones are kept.
        asked: What the user calls it, for messages.

    Raises:
        ConfigError: The file is no kernel.
        RuntimeUnavailable: There is none.
    """
    fetched = list_kernels(store)
    if value is None:
        if not fetched:
            raise RuntimeUnavailable(
                "expected a kernel for virtual machines, and none was fetched yet", "agentenv kernel fetch"
            )
        return max(fetched, key=lambda kernel: (kernel.number, kernel.fetched))
    path = Path(os.path.expanduser(value))
    if os.path.isfile(path):
        with open(path, "rb") as file:
            raw = file.read(4) == b"\x7fELF"
        path = path.absolute()
        if not raw:
            place = _from_file(store, path, LINES)
            modules = tuple(sorted((place / _MODULES).glob("*.ko")))
            return Kernel(place / _FILE, modules, read_kernel(place / _FILE).version, place.name, source=str(path))
        own = read_kernel(path)
        check_bootable(own, path)
        return Kernel(path, (), own.version, digest_file(path), source=str(path))
    for kernel in fetched:
        if kernel.name == value:
            return kernel
    names = [kernel.name for kernel in fetched]
    fetch = f"agentenv kernel fetch, or leave {asked} out to use the one fetched last"
    raise RuntimeUnavailable(
        f"expected a file or the name of a fetched kernel as {asked}, got {value!r} (kernels here: {shown(names)})",
        instead(value, names, fetch),
    )


def list_kernels(store: Store) -> list[Kernel]:
    """All kernels that have a name."""
    return [_of(found, store) for found in store.names(KIND)]


def _fill(unpacked: Unpacked, out: Path, report: Report) -> None:
    kernel = read_kernel(unpacked.image)
    check_bootable(kernel, unpacked.image)
    found = find_modules(unpacked.root, unpacked.version)
    store_modules(found, out / _MODULES)
    (out / _FILE).write_bytes(kernel.data)
    if found.missing:
        report.say(f"{unpacked.version} has no {', '.join(found.missing)}; machines do without")


def _from_file(store: Store, path: Path, report: Report) -> Path:
    """The object of a kernel's file, without a name."""

    def build(out: Path) -> None:
        if path.suffix == ".deb":
            with store.work() as work:
                unpack_deb(path, work)
                _fill(find_in(work, path.name), out, report)
            return
        with report.task(f"reading {path.name}"):
            kernel = read_kernel(path)
            check_bootable(kernel, path)
            (out / _FILE).write_bytes(kernel.data)

    return store.once(key_of("file", _FORMAT, digest_file(path)), build, what="the same kernel", report=report)


def _check_name(name: str | None) -> None:
    """Before anything is fetched for it."""
    if name is not None:
        check_name(name, "--name")


def _nameable(text: str) -> str:
    """The name of a file as a kernel's; "" where nothing of it can be."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text)[-100:].strip("-").lstrip("._+-")


def _name(store: Store, place: Path, source: str, name: str | None) -> Kernel:
    version = read_kernel(place / _FILE).version
    number = 1 + max((kernel.number for kernel in list_kernels(store)), default=0)
    fetched = datetime.now(UTC).isoformat(timespec="microseconds")
    record = {"version": version, "source": source, "fetched": fetched, "number": number}
    return _of(store.name(KIND, name or _nameable(version) or place.name[:12], place.name, record), store)


def _of(found: Named, store: Store) -> Kernel:
    place = store.object_path(found.digest)
    assert place is not None, "a name is not listed without its object"
    version, source, fetched = (str(found.record.get(key) or "") for key in ("version", "source", "fetched"))
    modules = tuple(sorted((place / _MODULES).glob("*.ko")))
    number = found.record.get("number")
    number = number if isinstance(number, int) else 0
    return Kernel(place / _FILE, modules, version, found.digest, found.name, source, fetched, number)
