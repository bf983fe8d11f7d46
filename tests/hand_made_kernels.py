"""Files that are just enough of a kernel to be taken for one."""

from __future__ import annotations

import struct


def elf(*, machine: int = 62, pvh: bool = True, version: str = "6.9.9-test") -> bytes:
    """The least that is a kernel to us: an ELF header, a note with the PVH entry, a banner."""
    note = struct.pack("<III", 4, 4, 1) + b"GNU\0" + b"\0" * 4
    note += struct.pack("<III", 4, 8, 18 if pvh else 17) + b"Xen\0" + struct.pack("<Q", 0x1000000)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    program = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    return header + program + note + b"Linux version " + version.encode() + b" (x@y)\n" + bytes(range(256)) * 40
