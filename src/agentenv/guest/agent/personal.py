"""Becoming somebody of one's own: what a machine brought back from a snapshot must not share with the others of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from agentenv.guest import confine

_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207
_HALF_BITS = 4


def identify(request: dict[str, Any]) -> None:
    """Take on a name, the time and new randomness.

    Args:
        request: "hostname", "machine_id" (32 hexadecimal digits), "entropy" (hexadecimal), "time_ns" (since 1970).
    """
    wake(request)
    socket.sethostname(request["hostname"][:63])
    # A root file system that cannot be written is no reason to fail.
    with contextlib.suppress(OSError), open("/etc/machine-id", "w", encoding="ascii") as stream:
        stream.write(request["machine_id"] + "\n")


def wake(request: dict[str, Any]) -> None:
    """Go on after standing still: the time of now, and new randomness.

    Args:
        request: "entropy" (hexadecimal), "time_ns" (since 1970).
    """
    add_entropy(bytes.fromhex(request["entropy"]))
    time.clock_settime_ns(time.CLOCK_REALTIME, request["time_ns"])


def add_entropy(data: bytes) -> None:
    """Have the kernel draw its random numbers from these bytes as well, from now on."""
    with open("/dev/urandom", "wb", buffering=0) as device:
        header = struct.pack("ii", len(data) * _HALF_BITS, len(data))
        fcntl.ioctl(device, _RNDADDENTROPY, header + data)
        fcntl.ioctl(device, _RNDRESEEDCRNG)


def show_directories(device: str, kind: str, places: list[list[str]]) -> None:
    """Mount a drive and show directories and files of it where the host has them.

    Args:
        device: The drive.
        kind: Its file system.
        places: For each, its path in the drive and the absolute path at which it is shown.

    Raises:
        OSError: It cannot be mounted.
    """
    base = f"/run/agentenv/{os.path.basename(device)}"
    os.makedirs(base, exist_ok=True)
    confine.mount(device, base, kind, confine.READ_ONLY)
    for inside, shown in places:
        source = f"{base}/{inside}"
        if os.path.isdir(source):
            os.makedirs(shown, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(shown), exist_ok=True)
            Path(shown).touch()
        confine.bind(source, shown)
