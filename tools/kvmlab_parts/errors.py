"""What ends this program with a message instead of a traceback."""

from __future__ import annotations

FAILED = 125
"""Exit code of what went wrong in the machinery, as of env(1) and timeout(1): commands rarely use it themselves."""
TIMED_OUT = 124


class LabError(Exception):
    """The machine could not be made, or was lost: what was expected, what came, what helps.

    Args:
        message: One or more lines.
        log: Output of what failed; its end is shown below the message.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        lines = self.log.strip().splitlines()[-25:]
        return "\n  | ".join([str(self.args[0]), *lines])
