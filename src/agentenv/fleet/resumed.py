"""The context of a run that goes on in its old folder."""

from __future__ import annotations

from collections.abc import Sequence

from agentenv.config import Config, EnvironmentConfig
from agentenv.fleet.context import RunContext
from agentenv.fleet.rundir import RunDir
from agentenv.sandbox.contract import RuntimeOptions


class ResumedContext(RunContext):
    """A ``RunContext`` that records into a folder which exists already, under a run id of its own.

    The id is new because control groups carry it, and those of the dead process may not be gone yet.
    """

    def __init__(self, config: Config, environments: Sequence[EnvironmentConfig], run: RunDir) -> None:
        """Open the runtime; see ``RunContext``.

        Args:
            config: The configuration.
            environments: All environments of the run.
            run: Its folder.
        """
        self._folder = run
        super().__init__(config, environments, record=False)

    def _options(self, environments: Sequence[EnvironmentConfig]) -> RuntimeOptions:
        # Before the runtime opens: it must know the folder, for the outputs of commands.
        self.run = RunDir(self._folder.path, self.run_id)
        return super()._options(environments)
