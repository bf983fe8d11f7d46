"""Replaces in an ext4 image what depends on when and by whom it was made: times of access and change, the maker's id.

``mkfs.ext4 -d`` copies them from the disk, and ``debugfs`` would take a command for each of tens of thousands of files.
The layout is from the kernel's documentation (filesystems/ext4: super block, group descriptors, inode table); only file
systems without checksums and of 32-bit size are accepted, which are the ones made here.
"""

from __future__ import annotations

import mmap
import stat
import struct
from pathlib import Path

# 2020-01-01: late enough for archives that know no earlier time, and never in the future.
EPOCH = 1_577_836_800

_SUPER = 1024
_MAGIC, _64BIT, _METADATA_CSUM = 0xEF53, 0x80, 0x400


def settle(image: Path, *, keep_times: bool, uid: int, gid: int) -> None:
    """Make every inode's times follow from the tree alone, and what is the maker's root's.

    Args:
        image: An image made without checksums.
        keep_times: Whether files keep their modification times.
        uid: Whose files become root's.
        gid: Which group's files become the group root's.
    """
    with open(image, "r+b") as file, mmap.mmap(file.fileno(), 0) as disk:
        inodes, inodes_per_group, inode_size, block = _geometry(disk)
        for group in range(inodes // inodes_per_group):
            descriptor = (2 if block == 1024 else 1) * block + group * 32
            bitmap, table = struct.unpack_from("<II", disk, descriptor + 4)
            used = disk[bitmap * block : bitmap * block + inodes_per_group // 8]
            for index in range(inodes_per_group):
                if used[index >> 3] >> (index & 7) & 1:
                    _settle(disk, table * block + index * inode_size, keep_times=keep_times, uid=uid, gid=gid)


def stamp(image: Path) -> None:
    """Make the time the file system was last written to a constant."""
    with open(image, "r+b") as file:
        file.seek(_SUPER + 48)
        file.write(struct.pack("<I", EPOCH))


def _geometry(disk: mmap.mmap) -> tuple[int, int, int, int]:
    """How many inodes there are, how many in a group, and the bytes of one and of a block."""
    (inodes,) = struct.unpack_from("<I", disk, _SUPER)
    (log_block,) = struct.unpack_from("<I", disk, _SUPER + 24)
    (inodes_per_group,) = struct.unpack_from("<I", disk, _SUPER + 40)
    (magic,) = struct.unpack_from("<H", disk, _SUPER + 56)
    (inode_size,) = struct.unpack_from("<H", disk, _SUPER + 88)
    incompatible, readonly = struct.unpack_from("<II", disk, _SUPER + 96)
    if magic != _MAGIC or incompatible & _64BIT or readonly & _METADATA_CSUM or inode_size < 160:
        raise ValueError(
            f"expected an ext4 image without checksums and with inodes of 256 bytes, got magic {magic:#x},"
            f" features {incompatible:#x} and {readonly:#x}, inodes of {inode_size} bytes"
        )
    return inodes, inodes_per_group, inode_size, 1024 << log_block


def _settle(disk: mmap.mmap, at: int, *, keep_times: bool, uid: int, gid: int) -> None:
    mode, owner = struct.unpack_from("<HH", disk, at)
    (modified,) = struct.unpack_from("<I", disk, at + 16)
    when = modified if keep_times and mode and not stat.S_ISDIR(mode) else EPOCH
    struct.pack_into("<III", disk, at + 8, when, when, when)
    # Fractions of seconds of change, modification and access, then the time of birth and its fraction.
    struct.pack_into("<IIIII", disk, at + 132, 0, 0, 0, when, 0)
    (group,) = struct.unpack_from("<H", disk, at + 24)
    owner_high, group_high = struct.unpack_from("<HH", disk, at + 120)
    if owner | owner_high << 16 == uid:
        struct.pack_into("<H", disk, at + 2, 0)
        struct.pack_into("<H", disk, at + 120, 0)
    if group | group_high << 16 == gid:
        struct.pack_into("<H", disk, at + 24, 0)
        struct.pack_into("<H", disk, at + 122, 0)
