"""What the tests of a runtime stand on: its settings, a run with it, environments in that run, questions to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from agentenv.config import Config, load_config
from agentenv.errors import SandboxError
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.testing.samples import PATIENT
from agentenv.wire.slot import Op

TIMEOUT_S = 20.0
OpenFleet = Callable[..., Fleet]


class RuntimeGround:
    """Subclass and set what chooses the runtime.

    Attributes:
        settings: Keys of ``[global]`` that choose the runtime.
        nested: As in ``[bubblewrap]``.
        many: How many environments are started at once in the test of many.
        cycles: How many times an environment is made and ended in the test for leaks.
        tight_mb: A memory limit that an environment of 400 MB breaks.
        start_s: Time enough to start one, and little enough to wait for one that hangs.
        own_processes: Whether what runs in a sandbox is a process of this host, below its first one.
    """

    settings: ClassVar[Mapping[str, Any]] = {}
    nested: ClassVar[str] = "auto"
    many: ClassVar[int] = 200
    cycles: ClassVar[int] = 200
    tight_mb: ClassVar[int] = 96
    start_s: ClassVar[float] = 3.0
    own_processes: ClassVar[bool] = True

    def config(self, count: int = 1, **keys: Any) -> Config:
        """A configuration of ``count`` patients for this runtime."""
        return load_config(self.table(count, **keys))

    def table(self, count: int = 1, **keys: Any) -> dict[str, Any]:
        environment = {"id": "env", "env": PATIENT, "count": count, "memory_mb": 256, "on_crash": "raise", **keys}
        return {
            "global": dict(self.settings),
            "environments": [environment],
            "bubblewrap": {"nested": self.nested},
        }

    @pytest.fixture
    def context(self) -> Iterator[RunContext]:
        """A run with its runtime open."""
        config = self.config()
        context = RunContext(config, config.expand(), record=False)
        yield context
        context.close()

    @pytest.fixture
    def open_fleet(self, context: RunContext) -> Iterator[OpenFleet]:
        """Starts patients in the run; ends them after the test."""
        fleets: list[Fleet] = []

        def open_one(count: int = 1, *, envs_per_sandbox: int = 1, **keys: Any) -> Fleet:
            members = self.config(count, **keys).expand()
            fleets.append(Fleet(context, members, envs_per_sandbox=envs_per_sandbox, in_vector=True))
            return fleets[-1]

        yield open_one
        for fleet in fleets:
            fleet.close()


def call(fleet: Fleet, name: str, *arguments: Any, members: list[int] | None = None) -> list[Any]:
    """Call a method of some environments, by default all, and return the values."""
    chosen = list(range(fleet.count)) if members is None else members
    return fleet.call(Op.CALL, [name, list(arguments), {}], chosen, TIMEOUT_S)


def fails(
    fleet: Fleet, error: type[SandboxError], name: str, *arguments: Any, timeout_s: float = TIMEOUT_S
) -> SandboxError:
    """The error of a call that environment 0 must not survive, or must not like."""
    with pytest.raises(error) as caught:
        fleet.call(Op.CALL, [name, list(arguments), {}], [0], timeout_s)
    return caught.value


def needs(context: RunContext, limit: str, by: str) -> None:
    """Skip, saying why, where this runtime does not enforce a limit by the means that is tested."""
    enforced = context.runtime.limits()[limit]
    if by not in enforced:
        pytest.skip(
            f"{limit}: {enforced} with runtime {context.runtime_name!r} here; `agentenv runtimes` says what helps"
        )
