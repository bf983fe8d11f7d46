"""A cpio archive as Linux unpacks it for its first file system (format "newc").

The kernel's Documentation/driver-api/early-userspace/buffer-format.rst describes it. Archives may follow one another:
what is the same for every boot is made once, what is not is put behind it.
"""

from __future__ import annotations

_REGULAR, _DIRECTORY = 0o100000, 0o040000


def archive(files: dict[str, bytes], executable: frozenset[str] = frozenset()) -> bytes:
    """An archive of these files and the directories above them, owned by root.

    Args:
        files: Content by path, relative to the root.
        executable: The paths that are programs.
    """
    parts: list[bytes] = []
    made: set[str] = set()
    for path, content in sorted(files.items()):
        names = path.split("/")
        for depth in range(1, len(names)):
            directory = "/".join(names[:depth])
            if directory not in made:
                made.add(directory)
                parts.append(_entry(directory, _DIRECTORY | 0o755, b"", len(parts) + 1))
        mode = 0o755 if path in executable else 0o644
        parts.append(_entry(path, _REGULAR | mode, content, len(parts) + 1))
    parts.append(_entry("TRAILER!!!", 0, b"", 0))
    return _padded(b"".join(parts), 512)


def _entry(name: str, mode: int, content: bytes, inode: int) -> bytes:
    encoded = name.encode() + b"\0"
    links, owner, group, time, major, minor = 1, 0, 0, 0, 0, 0
    fields = (inode, mode, owner, group, links, time, len(content), major, minor, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(head + encoded, 4) + _padded(content, 4)


def _padded(data: bytes, to: int) -> bytes:
    return data + bytes(-len(data) % to)
