"""An unfinished episode that is caught up with: asked the recorded actions, and every answer compared.

The policy is asked as well, so that its state and its random stream are where they were; what it decides is compared
with the record. Decides only; whoever plays acts.
"""

from __future__ import annotations

from agentenv.fleet.differences import describe, unlike
from agentenv.fleet.digests import INFO, StepDigest
from agentenv.fleet.tracefile import Rows


class Following:
    """The recorded part of an episode, and how far it has been followed.

    Attributes:
        row: The row whose answer comes next.
        noted: What differed without mattering, in words: an info that tells the time, say.
    """

    def __init__(self, names: tuple[str, ...], rows: Rows) -> None:
        """Begin at the reset.

        Args:
            names: Of the parts of the observation.
            rows: At least the reset's.
        """
        self._names, self._rows = names, rows
        self.row = 0
        self.noted = ""

    def answer(self, step: StepDigest) -> str:
        """Compare the answer of the row that comes next, and go on to the one after it.

        Returns:
            What differs, in words; empty where nothing that matters does.
        """
        recorded = self._rows.step(self.row)
        what = unlike(self._names, recorded, step)
        if what == (INFO,):
            self.noted = self.noted or f"the info of step {self.row} differs from the one recorded"
        elif what:
            return f"step {self.row} was answered otherwise than recorded: {describe(what, recorded, step)}"
        self.row += 1
        return ""

    def last(self) -> tuple[bytes, bytes, bytes]:
        """Action, its parts of variable size, and digest of the row that was just compared, as recorded."""
        return *self._rows.action(self.row - 1), self._rows.step(self.row - 1).digest

    @property
    def over(self) -> bool:
        """Whether nothing more is recorded."""
        return self.row >= len(self._rows)

    def action(self, action: bytes, variable: bytes) -> str:
        """Compare what the policy decided for the row that comes next; what differs, or nothing."""
        if (action, variable) == self._rows.action(self.row):
            return ""
        return f"the policy decided otherwise than recorded for step {self.row}"
