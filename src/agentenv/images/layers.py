"""Applies a layer of an OCI image, or any archive of a root file system, to a tree.

Layers come from strangers: names that lead outside are refused, links are followed only within the tree, sizes are
bounded. The rules are those of the OCI image specification (layer.md): entries replace what was there, ``.wh.NAME``
removes it, ``.wh..wh..opq`` removes all that came from the layers below.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from agentenv.archives import Archive, DamagedArchive, Member
from agentenv.errors import ProtocolError
from agentenv.images.files import remove_tree
from agentenv.images.inside import make_parents, parts_of, resolve
from agentenv.images.trees import Meta, Tree, disk_mode, keeps

MAX_BYTES = 64 << 30
MAX_ENTRIES = 2_000_000
_WHITEOUT, _OPAQUE, _RESERVED = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_NAMES = 1 << 30
# Beside its text, what keeping a name or an attribute takes.
_NAME = 100
# What lies in an entry alone, not in this host: names too long, links to nothing or to one file too often.
_SENSELESS = {errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ELOOP}
_SENSELESS |= {errno.EMLINK, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY}
# An image's inodes have 32 bits for it, and what was made before 1970 is as old as that.
_LATEST = (1 << 31) - 1


@dataclass(slots=True)
class Bounds:
    """What all layers of an image together may take.

    Attributes:
        bytes_left: Of content.
        entries_left: Files, directories, links.
        names_left: Bytes of names and attributes, which are kept in memory.
    """

    bytes_left: int = MAX_BYTES
    entries_left: int = MAX_ENTRIES
    names_left: int = MAX_NAMES

    def take(self, size: int = 0, *, entries: int = 1, names: int = 0) -> None:
        """Count entries.

        Raises:
            ProtocolError: It is too much.
        """
        self.bytes_left -= size
        self.entries_left -= entries
        self.names_left -= names
        if self.bytes_left < 0 or self.entries_left < 0 or self.names_left < 0:
            most = f"at most {MAX_BYTES >> 30} GiB and {MAX_ENTRIES:,} files with {MAX_NAMES >> 20} MiB of names"
            raise ProtocolError(f"expected an image of {most}, got a larger one")


@dataclass(slots=True)
class Layer:
    """One layer on its way into a tree.

    Attributes:
        tree: The result of the layers below.
        bounds: What it may take.
        notes: What was left out, in sentences.
    """

    tree: Tree
    bounds: Bounds = field(default_factory=Bounds)
    notes: list[str] = field(default_factory=list)
    _own: set[str] = field(default_factory=set)
    _above_own: set[str] = field(default_factory=set)
    _cleared: set[str] = field(default_factory=set)  # directories in which nothing is left from the layers below

    def apply(self, stream: IO[bytes]) -> None:
        """Unpack an archive that is not compressed.

        Raises:
            ProtocolError: It is damaged, or wants out of the tree; the tree is of no use any more.
            ResourceLimit: The disk is full.
        """
        try:
            archive = Archive(stream)
            for member in archive:
                self.bounds.take(member.size if member.kind == "file" else 0, names=_weight(member))
                with _named(member.name):
                    self._enter(archive, member)
        except DamagedArchive as error:
            raise ProtocolError(f"expected a tar archive as layer, got a damaged one: {error}") from error

    def _enter(self, archive: Archive, member: Member) -> None:
        parts = parts_of(member.name)
        if not parts:
            return
        if parts[-1].startswith(_WHITEOUT):
            self._white_out(parts)
            return
        path = resolve(self.tree.root, parts)
        if not path:
            return
        self._clear(path, keep_directory=member.kind == "directory")
        self.bounds.take(entries=make_parents(self.tree.root, path), names=len(path))
        if self._create(archive, member, path):
            self._keep(path)

    def _keep(self, path: str) -> None:
        """Note that this layer has brought a path."""
        self._own.add(path)
        while path:
            path = path.rpartition("/")[0]
            if path in self._above_own:
                break
            self._above_own.add(path)

    def _white_out(self, parts: list[str]) -> None:
        name = parts[-1]
        folder = resolve(self.tree.root, [*parts[:-1], "x"])[:-1].rstrip("/")
        if name == _OPAQUE:
            hidden = self._to_clear(folder)
        elif name.startswith(_RESERVED):
            return  # the books of another storage driver
        else:
            hidden = [name[len(_WHITEOUT) :]]
            if hidden[0] in ("", ".", ".."):
                raise ProtocolError(f"expected a whiteout of a file, got {'/'.join(parts)!r}")
        for one in hidden:
            self._hide(f"{folder}/{one}" if folder else one)

    def _hide(self, path: str) -> None:
        """Remove what came from the layers below, and keep what this layer has put there."""
        if path not in self._own and path not in self._above_own:
            self._remove(path)
            return
        for name in self._to_clear(path):
            self._hide(f"{path}/{name}")

    def _to_clear(self, path: str) -> list[str]:
        """The names in a directory; none the second time, and none of what is no directory."""
        place = self.tree.root / path
        if path in self._cleared or not place.is_dir() or place.is_symlink():
            return []
        self._cleared.add(path)
        return sorted({*os.listdir(place), *self.tree.table.names_in(path)})  # devices are on no disk

    def _remove(self, path: str) -> None:
        place = self.tree.root / path
        if os.path.lexists(place):
            remove_tree(place)
            self.tree.forget(path)
        self.tree.table.pop(path, None)

    def _clear(self, path: str, *, keep_directory: bool) -> None:
        place = self.tree.root / path
        if not (keep_directory and place.is_dir() and not place.is_symlink()):
            self._remove(path)

    def _create(self, archive: Archive, member: Member, path: str) -> bool:
        place, kind = self.tree.root / path, member.kind
        if kind == "hard link":
            return self._link(member, path)
        mode = member.mode
        device = None
        on_disk = disk_mode(mode, directory=kind == "directory")
        if kind == "directory":
            place.mkdir(exist_ok=True)
        elif kind == "link":
            mode = on_disk = 0o777
            os.symlink(member.leads, place)
        elif kind == "file":
            with open(place, "xb") as file:
                for piece in archive.content():
                    file.write(piece)
        elif kind == "pipe":
            os.mkfifo(place)
        elif kind.endswith("device"):
            device = (kind[0], *member.device)
        else:
            self.notes.append(f"/{path} is of a kind that tar calls {member.type!r} and was left out")
            return False
        xattrs = {name: value for name, value in member.xattrs.items() if keeps(name)}
        if device is None:
            if kind != "link":
                place.chmod(on_disk)
            if kind != "directory":
                when = min(max(0, int(member.mtime)), _LATEST)
                os.utime(place, (when, when), follow_symlinks=False)
        self.tree.note(path, Meta(mode, member.uid, member.gid, xattrs, device), on_disk)
        return True

    def _link(self, member: Member, path: str) -> bool:
        target = resolve(self.tree.root, parts_of(member.leads))
        place = self.tree.root / target
        if not target or not (place.is_symlink() or place.is_file() or place.is_fifo()):
            if target in self.tree.table:
                self.tree.table[path] = self.tree.table[target]
                return True
            raise ProtocolError(f"expected a hard link to a file of the image, got /{path} to {member.leads[:200]!r}")
        os.link(place, self.tree.root / path, follow_symlinks=False)
        if target in self.tree.table:
            self.tree.table[path] = self.tree.table[target]
        return True


def _weight(member: Member) -> int:
    """What is kept of an entry in memory, while the tree is made and in its table."""
    texts = (member.name, member.leads, *member.xattrs.keys())
    return sum(len(text) + _NAME for text in texts) + sum(map(len, member.xattrs.values()))


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Say of an error of the file system which entry it was, where it is the entry's."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SENSELESS:
            raise
        raise ProtocolError(f"expected entries that fit together, got {name[:200]!r}: {error.strerror}") from error
