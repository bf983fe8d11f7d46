"""The pipes between this process and a program in a sandbox.

Their far ends go to the relay and become non-blocking; the near ends stay as they are, since both ends of a pipe are
descriptions of their own.
"""

from __future__ import annotations

import os

from agentenv.sandbox.workbench import Stdio


class Pipes:
    """Pipes for one task.

    Attributes:
        stdin: Near end, to write to; -1 for none. So for ``stdout``, ``stderr`` and ``status``, to read from.
        theirs: The far ends.
    """

    def __init__(self, *, stdin: bool, stdout: bool = True, stderr: bool = True) -> None:
        """Make them.

        Args:
            stdin: Whether the program is given anything to read.
            stdout: Whether what it writes is wanted.
            stderr: The same for its standard error.
        """
        self._near: list[int] = []
        self._far: list[int] = []
        try:
            far_in, self.stdin = self._make() if stdin else (-1, -1)
            self.stdout, far_out = self._make() if stdout else (-1, -1)
            self.stderr, far_err = self._make() if stderr else (-1, -1)
            self.status, far_status = self._make()
        except BaseException:
            self.close()
            raise
        self._near = [fd for fd in (self.stdin, self.stdout, self.stderr, self.status) if fd >= 0]
        self._far = [fd for fd in (far_in, far_out, far_err, far_status) if fd >= 0]
        self.theirs = Stdio(far_in, far_out, far_err, far_status)

    def _make(self) -> tuple[int, int]:
        ends = os.pipe()
        self._near += ends
        return ends

    def send_off(self) -> None:
        """Close the far ends: whoever was given them has copies."""
        for fd in self._far:
            os.close(fd)
        self._far = []

    def drop(self, fd: int) -> None:
        """Close a near end before the others."""
        if fd in self._near:
            self._near.remove(fd)
            os.close(fd)

    def release(self, fd: int) -> int:
        """Leave a near end to the caller."""
        self._near.remove(fd)
        return fd

    def close(self) -> None:
        """Close what is still open. Idempotent."""
        for fd in (*self._near, *self._far):
            os.close(fd)
        self._near, self._far = [], []
