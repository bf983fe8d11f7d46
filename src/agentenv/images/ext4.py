"""Trees become ext4 images without mounting anything: the same tree is the same bytes, whoever makes it and when.

``mkfs.ext4`` copies the tree, ``debugfs`` sets what only root could have on the disk, and ``settle`` replaces what
depends on the moment. No journal and no checksums: images are read-only, or thrown away with their machine.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.files import remove_tree
from agentenv.images.inodes import EPOCH, settle, stamp
from agentenv.images.programs import need_program, run
from agentenv.images.trees import Meta, keeps, walk

BLOCK = 4096
_MIB = 1 << 20
# Spelt out, so that the configuration of the host's mkfs does not matter.
_FEATURES = "none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize"
# The same for all: nothing here is told apart by it, and what is random could not repeat itself.
_UUID = "61676e74-656e-4076-8000-000000000001"
# What can be numbered by 32 bits.
_MOST_MB = (1 << 32) * BLOCK // _MIB - 1
_ATTEMPTS = 6
_LINE = 250
# Of a name in a line beside what else stands there.
_NAME = 120


@dataclass(frozen=True, slots=True)
class Extent:
    """What a tree needs of a file system.

    Attributes:
        inodes: Files, directories and links.
        blocks: Of data, directories and long links.
    """

    inodes: int
    blocks: int

    @property
    def size_mb(self) -> int:
        """A file system it fits in, with its own books, rounded up."""
        books = self.inodes * 256 // BLOCK + self.blocks // 64 + 256
        return (self.blocks + books) * BLOCK // _MIB + 1


def measure(root: Path, table: Mapping[str, Meta]) -> Extent:
    """What a tree needs; depends on names and sizes only, not on the disk it lies on."""
    inodes, blocks = 32 + len(table), 16
    names: dict[str, int] = {"": 24}
    seen: set[tuple[int, int]] = set()
    for path, status in walk(root):
        folder, _, name = path.rpartition("/")
        names[folder] = names.get(folder, 24) + 12 + len(os.fsencode(name))
        if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        inodes += 1
        if stat.S_ISDIR(status.st_mode):
            names.setdefault(path, 24)
        elif stat.S_ISREG(status.st_mode) or (stat.S_ISLNK(status.st_mode) and status.st_size >= 60):
            blocks += -(-status.st_size // BLOCK)
    blocks += sum(-(-size // (BLOCK - 268)) for size in names.values())
    blocks += sum(1 for meta in table.values() if meta.xattrs)
    return Extent(inodes, blocks)


def make_ext4(
    root: Path,
    out: Path,
    *,
    label: str,
    table: Mapping[str, Meta] | None = None,
    size_mb: int | None = None,
    keep_times: bool = True,
) -> None:
    """Make an image of a tree.

    Args:
        root: The tree's top directory.
        out: The image, which must not exist.
        label: The file system's, at most 16 characters.
        table: What files are beyond what the disk says, by path relative to the root.
        size_mb: Size of the image; None makes it as small as is sure to do.
        keep_times: Whether files keep their modification times; directories never do.

    Raises:
        RuntimeUnavailable: A program is missing, or failed.
        ConfigError: The tree does not fit into ``size_mb``.
        ResourceLimit: The disk is full.
    """
    table = table or {}
    extent = measure(root, table)
    size = size_mb or extent.size_mb
    if size < extent.size_mb - 1 - extent.blocks // 4096:
        raise _too_small(size, extent)
    for _ in range(_ATTEMPTS):
        out.unlink(missing_ok=True)
        try:
            _format(out, size, inodes=extent.inodes + extent.inodes // 16, label=label, root=root)
        except RuntimeUnavailable as error:
            if "ould not allocate" not in str(error) and "while populating" not in str(error):
                raise
            if size_mb is not None:
                raise _too_small(size, extent) from error
            size += 16 + size // 16
            continue
        break
    else:
        raise RuntimeUnavailable(f"mkfs.ext4 does not get {root} into {size} MB", "give more with --size MB")
    settle(out, keep_times=keep_times, uid=os.geteuid(), gid=os.getegid())
    _apply(root, out, table)
    stamp(out)


def make_empty(out: Path, *, size_mb: int, label: str) -> None:
    """Make an image without files, most of it a hole.

    Raises:
        RuntimeUnavailable: A program is missing, or failed.
        ResourceLimit: The disk is full.
    """
    _format(out, size_mb, inodes=None, label=label)
    settle(out, keep_times=False, uid=os.geteuid(), gid=os.getegid())
    stamp(out)


def _format(out: Path, size_mb: int, *, inodes: int | None, label: str, root: Path | None = None) -> None:
    extended = f"hash_seed={_UUID},root_owner=0:0,nodiscard,lazy_itable_init=0"
    argv = [need_program("mkfs.ext4", "to make file systems"), "-q", "-F", "-b", str(BLOCK), "-I", "256", "-m", "0"]
    argv += ["-O", _FEATURES, "-U", _UUID, "-L", label]
    argv += ["-i", "16384"] if inodes is None else ["-N", str(inodes)]
    argv += [] if root is None else ["-d", str(root)]
    with open(out, "xb") as file:
        # A file of zeros is a hole. From 1.47 on, mkfs can be told and leaves it one where it would write zeros.
        try:
            file.truncate(min(size_mb, _MOST_MB) * _MIB)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise _too_large(f"a file that the file system of {out.parent} can hold", size_mb) from error
    if size_mb > _MOST_MB:
        raise _too_large(f"at most {_MOST_MB}", size_mb)
    for prezeroed in (",assume_storage_prezeroed=1", ""):
        try:
            run(
                [*argv, "-E", extended + prezeroed, str(out)],
                purpose=f"making a file system of {size_mb} MB",
                directory=out.parent,
                variables={"E2FSPROGS_FAKE_TIME": str(EPOCH), "MKE2FS_CONFIG": "/dev/null", "MKE2FS_SYNC": "0"},
            )
            return
        except RuntimeUnavailable as error:
            if not prezeroed or "assume_storage_prezeroed" not in str(error):
                raise


def _apply(root: Path, image: Path, table: Mapping[str, Meta]) -> None:
    """Write the table into the image; also take away the directory that only a check of the disk would use."""
    values = image.parent / f".{image.name}.values"
    values.mkdir()
    try:
        script = ["rmdir lost+found"]
        for number, (path, meta) in enumerate(sorted(table.items())):
            script += _commands(root, path, meta, values / str(number))
        # Long lines one by one: how much debugfs reads of a line of a script depends on its version.
        short: list[str] = []
        long: list[str] = []
        for line in script:
            (long if len(os.fsencode(line)) > _LINE else short).append(line)
        commands = values / "commands"
        commands.write_bytes(os.fsencode("\n".join(short) + "\n"))
        for chosen in (["-f", str(commands)], *(["-R", line] for line in long)):
            _debugfs(image, chosen, values)
    finally:
        remove_tree(values)


def _commands(root: Path, path: str, meta: Meta, value: Path) -> list[str]:
    """What sets one entry of the table; [] if it is not there any more."""
    if any(character in path for character in '"\n\r\0'):
        problem = f"the name {path!r} has a quotation mark or a line break, and what it is cannot be kept"
        raise ConfigError([Problem("command line", "--from", problem, "rename it")])
    place, script = _enter(path)
    entered = bool(script)
    if meta.device is not None:
        letter, major, minor = meta.device
        kind = stat.S_IFCHR if letter == "c" else stat.S_IFBLK
        folder, _, name = path.rpartition("/")
        script += [] if entered else [f'cd "/{folder}"']
        script += [f'mknod "{name}" {letter} {major:d} {minor:d}', *([] if entered else ["cd /"])]
    else:
        try:
            kind = stat.S_IFMT((root / path).lstat().st_mode)
        except OSError:
            return []
    if kind != stat.S_IFLNK:
        script.append(f"sif {place} mode 0{kind | meta.mode:o}")
    script += [f"sif {place} uid {meta.uid:d}", f"sif {place} gid {meta.gid:d}"]
    for name, content in sorted(meta.xattrs.items()):
        if not keeps(name):
            continue
        file = value.with_name(f"{value.name}-{len(script)}")
        file.write_bytes(content)
        script.append(f'ea_set -f "{file.name}" {place} {name}')
    return [*script, "cd /"] if entered else script


def _enter(path: str) -> tuple[str, list[str]]:
    """What to call a path in a script, and the commands that go to its directory first where it is long.

    By parts, so that no line becomes long: a program that is started for a single line takes as long as for thousands.
    """
    folder, _, name = path.rpartition("/")
    parts = folder.split("/")
    if len(os.fsencode(path)) <= _NAME or max(len(os.fsencode(part)) for part in (*parts, name)) > _NAME:
        return f'"/{path}"', []
    steps = [""]
    for part in parts:
        if len(os.fsencode(steps[-1])) + len(os.fsencode(part)) > _NAME:
            steps.append("")
        steps[-1] += f"{part}/"
    return f'"./{name}"', [f'cd "{step}"' for step in steps]


def _debugfs(image: Path, chosen: list[str], values: Path) -> None:
    argv = [need_program("debugfs", "to set owners in images"), "-w", *chosen, str(image.absolute())]
    variables = {"E2FSPROGS_FAKE_TIME": str(EPOCH), "DEBUGFS_PAGER": "cat"}
    said = run(argv, purpose="setting owners and permissions in the image", directory=values, variables=variables)
    # It goes on after an error, and ends with 0; its version is the first line.
    faults = [line for line in said.errors.splitlines() if line.strip() and not line.startswith("debugfs ")]
    if faults:
        raise RuntimeUnavailable(f"debugfs cannot set owners and permissions in the image: {'; '.join(faults[:5])}")


def _too_large(expected: str, size_mb: int) -> ConfigError:
    return ConfigError([Problem("file system", "MB", f"expected {expected}, got {size_mb}", "give it less")])


def _too_small(size_mb: int, extent: Extent) -> ConfigError:
    message = f"expected room for {extent.inodes} files, which need about {extent.size_mb} MB, got {size_mb}"
    return ConfigError([Problem("command line", "--size", message, "leave --size out to have it measured")])
