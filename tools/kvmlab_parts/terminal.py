"""Our terminal, while the one in a machine takes its place."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Iterator

from .errors import LabError


@contextlib.contextmanager
def raw(descriptor: int | None) -> Iterator[None]:
    """Pass every key on as it is; what the terminal was set to comes back at the end. Nothing for None.

    Raises:
        LabError: It is no terminal.
    """
    if descriptor is None:
        yield
        return
    if not (os.isatty(descriptor) and os.isatty(1)):
        raise LabError("expected a terminal for the shell, got something else; pipe commands to: kvmlab run -- bash")
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
