"""A root file system as it lies in the store: plain files of the caller, and beside them what only root could set.

Owners, set-user bits, extended attributes and devices are kept in a table, and written straight into the image. So a
build needs no root, gives the same image whoever runs it, and leaves no set-user programs on the host.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentenv.errors import ConfigError, Problem, ProtocolError, RuntimeUnavailable
from agentenv.images.inside import DEEPEST, LONGEST
from agentenv.images.programs import run

_XATTR = re.compile(r"(user|security|trusted)\.[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, slots=True)
class Meta:
    """What a file is in the image, where that is not root's file with the permissions it has on the disk.

    Attributes:
        mode: Permissions, with the special bits.
        uid: Owner.
        gid: Group.
        xattrs: Extended attributes.
        device: ("c" or "b", major, minor) of a device, which is not on the disk at all.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    device: tuple[str, int, int] | None = None

    def is_plain(self, disk_mode: int) -> bool:
        """Whether the file on the disk says all of it already."""
        return (self.mode, self.uid, self.gid) == (disk_mode, 0, 0) and not self.xattrs and self.device is None


class Table(dict[str, Meta]):
    """What files are, by path, of which those below a directory are found without looking at all others."""

    def __init__(self, entries: Mapping[str, Meta] | None = None) -> None:
        """With these entries."""
        super().__init__()
        # By directory; of names that are gone some may still be there.
        self._names: dict[str, set[str]] = {}
        for path, meta in (entries or {}).items():
            self[path] = meta

    def __setitem__(self, path: str, meta: Meta) -> None:
        """Keep what a file is."""
        super().__setitem__(path, meta)
        while path:
            folder, _, name = path.rpartition("/")
            names = self._names.setdefault(folder, set())
            if name in names:
                break
            names.add(name)
            path = folder

    def names_in(self, folder: str) -> Collection[str]:
        """The names in a directory that lead to something here, and some that did."""
        return self._names.get(folder, ())

    def drop_below(self, path: str) -> None:
        """Forget everything below a directory."""
        pending = [path]
        while pending:
            folder = pending.pop()
            for name in self._names.pop(folder, ()):
                self.pop(f"{folder}/{name}", None)
                pending.append(f"{folder}/{name}")


@dataclass(slots=True)
class Tree:
    """A root file system on the disk.

    Attributes:
        root: Its top directory.
        table: Paths relative to it, without a leading slash, that are not what they seem.
    """

    root: Path
    table: Table = field(default_factory=Table)

    @classmethod
    def make(cls, place: Path) -> Tree:
        """An empty one in an existing directory."""
        (place / "root").mkdir()
        (place / "root").chmod(0o755)
        return cls(place / "root")

    @classmethod
    def load(cls, place: Path) -> Tree:
        """The one that was saved in a directory.

        Raises:
            RuntimeUnavailable: It is damaged.
        """
        try:
            table = json.loads((place / "table.json").read_bytes())
            return cls(place / "root", Table({path: _from_json(entry) for path, entry in table.items()}))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged_step(place / "table.json", error) from error

    def save(self) -> None:
        """Write the table beside the root."""
        text = json.dumps({path: _to_json(meta) for path, meta in sorted(self.table.items())})
        (self.root.parent / "table.json").write_text(text, encoding="utf-8")

    def copy(self, place: Path) -> Tree:
        """A copy in an existing directory; shares blocks where the file system can."""
        root = place / "root"
        argv = ["cp", "-a", "--reflink=auto", str(self.root), str(root)]
        run(argv, purpose="copying a file system tree", directory=place)
        return Tree(root, Table(self.table))

    def note(self, path: str, meta: Meta, disk_mode: int) -> None:
        """Keep what a file is, if that needs keeping."""
        if meta.is_plain(disk_mode):
            self.table.pop(path, None)
        else:
            self.table[path] = meta

    def take_back(self) -> None:
        """Keep here what a program that ran in the tree has set on the disk and only its own system's root may: bits
        that make a program another user's, attributes that give it rights, and permissions that shut us out.
        """
        for path, status in walk(self.root):
            if stat.S_ISLNK(status.st_mode):
                continue
            place, mode = self.root / path, stat.S_IMODE(status.st_mode)
            on_disk = disk_mode(mode, directory=stat.S_ISDIR(status.st_mode))
            if mode != on_disk:
                place.chmod(on_disk)
            xattrs = {name: os.getxattr(place, name) for name in _xattrs(place)}
            for name in xattrs:
                os.removexattr(place, name)
            if mode != on_disk or xattrs:
                known = self.table.get(path, Meta(mode))
                kept = mode if mode != on_disk else known.mode
                self.note(path, replace(known, mode=kept, xattrs={**known.xattrs, **xattrs}), on_disk)

    def forget(self, path: str) -> None:
        """Drop what is kept of a path and everything below it."""
        self.table.pop(path, None)
        self.table.drop_below(path)


def damaged_step(path: Path, error: Exception) -> RuntimeUnavailable:
    """The error that says that a file of a finished step is not what was written, and what helps."""
    return RuntimeUnavailable(
        f"expected the finished step of a build in {path.parent}, and {path.name} is damaged: {error}",
        "build it again with --fresh",
    )


def disk_mode(mode: int, *, directory: bool) -> int:
    """The permissions a file gets on the disk: ours to read and write, and nothing special."""
    return (mode & 0o777) | (0o700 if directory else 0o600)


def walk(root: Path, hidden: Collection[Path] = ()) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory, sorted, parents first: relative path and what ``lstat`` says.

    Args:
        root: The directory.
        hidden: Directories that are passed over with all that is in them, by whatever name they are met.

    Raises:
        ProtocolError: It is deeper than any image may be, or names in it are too long together.
    """
    passed = [path.stat() for path in hidden]
    pending = [""]
    while pending:
        folder = pending.pop()
        if folder.count("/") >= DEEPEST:
            raise _too_deep(root / folder)
        try:
            with os.scandir(root / folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise _too_deep(root / folder) from error
        below = []
        for entry in found:
            path = f"{folder}/{entry.name}" if folder else entry.name
            status = entry.stat(follow_symlinks=False)
            if any(os.path.samestat(status, one) for one in passed):
                continue
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
        pending.extend(reversed(below))


def _too_deep(path: Path) -> ProtocolError:
    most = f"directories at most {DEEPEST} deep, with names of at most {LONGEST} bytes in all"
    return ProtocolError(f"expected {most}, got more: {str(path)[:200]!r}")


def take_in(source: Path, tree: Tree, hidden: Collection[Path] = ()) -> list[str]:
    """Copy a directory as it is into an empty tree; what is the caller's becomes root's.

    Args:
        source: The directory.
        tree: The tree.
        hidden: Directories that are left out, such as the one the tree lies in.

    Returns:
        Notes on what was left out.

    Raises:
        ConfigError: Something in it cannot be read, or was removed meanwhile.
        ProtocolError: It is deeper than any image may be.
    """
    notes: list[str] = []
    links: dict[tuple[int, int], str] = {}
    try:
        for path, status in walk(source, hidden):
            first = path
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                first = links.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                os.link(tree.root / first, tree.root / path)
                if first in tree.table:
                    tree.table[path] = tree.table[first]
            else:
                notes += _take(source / path, tree, path, status)
    except PermissionError as error:
        message = f"expected a directory that can be read, and {error.filename} cannot"
        raise ConfigError([Problem("command line", "--from", message)]) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"expected a directory that stays as it is while it is copied, and {error.filename} was removed"
        raise ConfigError([Problem("command line", "--from", message, "try again")]) from error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise _too_deep(Path(str(error.filename))) from error
    return notes


def _take(origin: Path, tree: Tree, path: str, status: os.stat_result) -> list[str]:
    """Copy one file, or note what it is; returns what is to be said of it."""
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
    uid = 0 if status.st_uid == os.geteuid() else status.st_uid
    gid = 0 if status.st_gid == os.getegid() else status.st_gid
    copy, on_disk = tree.root / path, disk_mode(mode, directory=kind == stat.S_IFDIR)
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        device = ("c" if kind == stat.S_IFCHR else "b", os.major(status.st_rdev), os.minor(status.st_rdev))
        tree.table[path] = Meta(mode, uid, gid, device=device)
        return []
    if kind == stat.S_IFSOCK:
        return [f"/{path} is a socket and was left out"]
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(origin), copy)
        on_disk = mode
    elif kind == stat.S_IFDIR:
        copy.mkdir()
    elif kind == stat.S_IFIFO:
        os.mkfifo(copy)
    else:
        shutil.copyfile(origin, copy)
    xattrs = {name: os.getxattr(origin, name, follow_symlinks=False) for name in _xattrs(origin)}
    if kind != stat.S_IFLNK:
        copy.chmod(on_disk)
    if kind != stat.S_IFDIR:
        os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns), follow_symlinks=False)
    tree.note(path, Meta(mode, uid, gid, xattrs), on_disk)
    return []


def digest_tree(root: Path, table: Mapping[str, Meta] | None = None, *, times: bool = False) -> str:
    """The SHA-256 over names, kinds, permissions, contents and the table; with modification times if asked."""
    found = hashlib.sha256()
    for path, status in walk(root):
        kind = stat.S_IFMT(status.st_mode)
        content = ""
        if kind == stat.S_IFREG:
            with open(root / path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif kind == stat.S_IFLNK:
            content = os.readlink(root / path)
        when = int(status.st_mtime) if times and kind != stat.S_IFDIR else 0
        line = json.dumps([path, kind, 0 if kind == stat.S_IFLNK else stat.S_IMODE(status.st_mode), content, when])
        found.update(line.encode() + b"\n")
    entries = {path: _to_json(meta) for path, meta in (table or {}).items()}
    found.update(json.dumps(entries, sort_keys=True).encode())
    return found.hexdigest()


def keeps(xattr: str) -> bool:
    """Whether an extended attribute means something in another system: not the labels of this one, or access lists.

    Its name goes into a script, so nothing but a plain one passes.
    """
    return bool(_XATTR.fullmatch(xattr)) and xattr != "security.selinux" and not xattr.startswith("system.")


def _xattrs(path: Path) -> list[str]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []
    return sorted(name for name in names if keeps(name))


def _to_json(meta: Meta) -> dict[str, Any]:
    xattrs = {name: base64.b64encode(value).decode() for name, value in sorted(meta.xattrs.items())}
    device = None if meta.device is None else list(meta.device)
    return {"mode": meta.mode, "uid": meta.uid, "gid": meta.gid, "xattrs": xattrs, "device": device}


def _from_json(entry: Mapping[str, Any]) -> Meta:
    xattrs = {name: base64.b64decode(value) for name, value in entry["xattrs"].items()}
    device = None if entry["device"] is None else tuple(entry["device"])
    return Meta(entry["mode"], entry["uid"], entry["gid"], xattrs, device)
