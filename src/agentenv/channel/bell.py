"""A bell: what somebody sleeps on until somebody else has a reason for looking."""

from __future__ import annotations

import errno
import os
import select
from dataclasses import dataclass

from agentenv.errors import ResourceLimit

RING = (1).to_bytes(8, "little")


@dataclass(slots=True)
class Bell:
    """One direction of waking: an eventfd, or a pipe where there is none.

    Both ends of an eventfd are one description, so a guest can take its rings back, make it look full, or set it
    non-blocking. None of these may hold up the host for longer than a deadline: see ``ShmChannel.late``.
    """

    reader: int
    writer: int

    @classmethod
    def create(cls) -> Bell:
        """A new bell.

        Raises:
            ResourceLimit: No descriptor is left.
        """
        try:
            if hasattr(os, "eventfd"):
                fd = os.eventfd(0, os.EFD_CLOEXEC)
                return cls(fd, fd)
            return cls(*os.pipe())
        except OSError as error:
            raise ResourceLimit(error.errno, f"cannot make a bell: {error.strerror}") from error

    def close(self) -> None:
        """Close what is open. Idempotent."""
        for fd in {self.reader, self.writer} - {-1}:
            os.close(fd)
        self.reader = self.writer = -1

    def close_reader(self) -> None:
        """Leave the reading to the other side, where that is an end of its own."""
        if self.reader != self.writer:
            os.close(self.reader)
            self.reader = -1

    def ring(self) -> None:
        """Ring, unless that would have to wait: then it is full, and rings already."""
        poller = select.poll()
        poller.register(self.writer, select.POLLOUT)
        if poller.poll(0):
            os.write(self.writer, RING)

    def clear(self) -> None:
        """Take out the rings that are in it, without waiting; the other side may take them at the same time."""
        try:
            os.preadv(self.reader, [bytearray(512)], -1, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except (AttributeError, OSError) as error:  # no Linux, or one before 5.8
            if isinstance(error, OSError) and error.errno != errno.EOPNOTSUPP:
                raise
            poller = select.poll()
            poller.register(self.reader, select.POLLIN)
            if poller.poll(0):
                os.read(self.reader, 512)
