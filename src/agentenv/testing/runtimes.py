"""The promises of ``agentenv.sandbox.contract``, as a class of tests: subclass it and name the runtime.

    class TestMyRuntime(RuntimeSuite):
        settings = {"runtime": "mine"}

What is broken here is an environment or a process, never the machine; escapes are the attack suite's.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil
import pytest

from agentenv.config import load_config
from agentenv.errors import CauseKind, ClosedError, EnvError, Owner, SandboxDied, SandboxError, StepTimeout
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.testing.leftovers import assert_stock_returns, becomes_true, take_stock
from agentenv.testing.runtime_ends import RuntimeEnds
from agentenv.testing.runtime_ground import TIMEOUT_S, OpenFleet, call, fails, needs
from agentenv.testing.samples import PATIENT


class RuntimeSuite(RuntimeEnds):
    """See the module; the attributes to set are those of ``RuntimeGround``."""

    # -- create

    def test_create_builds_the_environments(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet(3, envs_per_sandbox=2)
        assert [len(sandbox.introductions) for sandbox in fleet.sandboxes] == [2, 1]
        assert all(sandbox.alive() and psutil.pid_exists(sandbox.pid) for sandbox in fleet.sandboxes)
        assert call(fleet, "echo", [1, {"a": None}]) == [[1, {"a": None}]] * 3

    @pytest.mark.parametrize(
        ("build", "kind", "error"),
        [
            (["raises", "no assets"], CauseKind.START_FAILED, EnvError),
            (["exit", 9], CauseKind.EXIT, SandboxDied),
            (["die", int(signal.SIGSEGV)], CauseKind.SIGNAL, SandboxDied),
            (["hang"], CauseKind.TIMEOUT, StepTimeout),
        ],
    )
    def test_create_makes_all_or_none(
        self, context: RunContext, open_fleet: OpenFleet, build: list[Any], kind: CauseKind, error: type[SandboxError]
    ) -> None:
        """One of three cannot be built: it is named, and nothing of the other two is left."""
        open_fleet().close()
        before = take_stock(context.run_id)
        table = self.table(2)
        # Late enough for an interpreter to start, early enough for a test.
        broken = {"id": "broken", "env": PATIENT, "env_kwargs": {"build": build}, "start_timeout_s": self.start_s}
        table["environments"].append(broken)
        members = load_config(table).expand()
        with pytest.raises(error) as caught:
            Fleet(context, members, in_vector=True)
        assert (caught.value.env_id, caught.value.cause.kind) == ("broken", kind)
        assert_stock_returns(before, context.run_id)
        assert call(open_fleet(), "echo", 1) == [1]

    def test_create_after_close_is_refused(self, context: RunContext) -> None:
        spec = context.spec("env", self.config().expand())
        context.runtime.close()
        context.runtime.close()
        with pytest.raises(ClosedError):
            context.runtime.create([spec], context.output)

    # -- cause

    @pytest.mark.parametrize(
        ("method", "arguments", "kind", "detail"),
        [
            ("exit", [3], CauseKind.EXIT, "status 3"),
            ("leave", [5], CauseKind.EXIT, "status 5"),
            ("exit", [0], CauseKind.EXIT, "status 0 before it was asked"),
            ("die", [int(signal.SIGSEGV)], CauseKind.SIGNAL, "SIGSEGV"),
            ("die", [int(signal.SIGKILL)], CauseKind.SIGNAL, "SIGKILL"),
        ],
    )
    def test_a_death_is_told_with_its_cause_and_spares_the_sibling(
        self, open_fleet: OpenFleet, method: str, arguments: list[Any], kind: CauseKind, detail: str
    ) -> None:
        fleet = open_fleet(2)
        call(fleet, "say", "last words", members=[0])
        error = fails(fleet, SandboxDied, method, *arguments)
        assert (error.cause.kind, error.cause.owner, error.index) == (kind, Owner.ENVIRONMENT, 0)
        assert detail in error.cause.detail
        assert "last words" in error.output
        assert call(fleet, "echo", 1, members=[1]) == [1]

    def test_a_kill_of_the_environment_from_outside_is_a_signal(self, open_fleet: OpenFleet) -> None:
        if not self.own_processes:
            pytest.skip("nothing outside can reach a process inside")
        fleet = open_fleet()
        first = psutil.Process(fleet.sandboxes[0].pid)
        (environment,) = first.children()
        environment.kill()
        assert becomes_true(lambda: not fleet.sandboxes[0].alive(), TIMEOUT_S)
        cause = fleet.sandboxes[0].cause()
        assert (cause.kind, cause.signal) == (CauseKind.SIGNAL, signal.SIGKILL)

    def test_a_kill_of_the_whole_sandbox_is_not_the_environments_fault(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet(2)
        os.kill(fleet.sandboxes[0].pid, signal.SIGKILL)
        assert becomes_true(lambda: not fleet.sandboxes[0].alive(), TIMEOUT_S)
        error = fails(fleet, SandboxDied, "echo", 1)
        assert (error.cause.kind, error.cause.owner) == (CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE)
        assert call(fleet, "echo", 1, members=[1]) == [1]

    @pytest.mark.parametrize(("method", "how"), [("hang", "blocked"), ("spin", "busy")])
    def test_a_timeout_ends_it_and_says_what_it_did(self, open_fleet: OpenFleet, method: str, how: str) -> None:
        fleet = open_fleet(2)
        error = fails(fleet, StepTimeout, method, timeout_s=0.5)
        assert error.cause.kind is CauseKind.TIMEOUT
        assert how in error.cause.detail
        assert not fleet.sandboxes[0].alive()
        assert call(fleet, "echo", 1, members=[1]) == [1]

    def test_an_exception_kills_nothing(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        error = fails(fleet, EnvError, "raises", "on purpose")
        assert isinstance(error, EnvError)
        assert (error.type_name, error.message, error.cause.kind) == ("ValueError", "on purpose", CauseKind.EXCEPTION)
        assert "in raises" in error.traceback_text
        assert fleet.sandboxes[0].alive()

    def test_output_is_captured_from_both_streams(self, context: RunContext, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        call(fleet, "say", "to stdout")
        call(fleet, "say", "to stderr", True)
        sandbox = fleet.sandboxes[0]
        sandbox.destroy()
        tail = context.output.tail(sandbox.spec.id)
        assert "to stdout" in tail
        assert "to stderr" in tail

    def test_variables_are_those_that_were_asked_for(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet(env_vars={"AGENT_TYPE": "dqn"})
        variables = call(fleet, "variables")[0]
        assert variables["AGENT_TYPE"] == "dqn"
        assert variables["AGENTENV_ID"] == "env"

    # -- limits

    def test_memory_past_the_limit_is_typed(self, context: RunContext, open_fleet: OpenFleet) -> None:
        needs(context, "memory", "cgroup")
        fleet = open_fleet(2, memory_mb=self.tight_mb)
        error = fails(fleet, SandboxDied, "allocate", 400)
        assert (error.cause.kind, error.cause.owner) == (CauseKind.OUT_OF_MEMORY, Owner.RESOURCES)
        assert f"{self.tight_mb} MB" in error.cause.detail
        assert call(fleet, "allocate", 10, members=[1]) == [10 << 20]

    def test_processes_past_the_limit_are_refused(self, context: RunContext, open_fleet: OpenFleet) -> None:
        needs(context, "pids", "cgroup")
        fleet = open_fleet(pids=20)
        started = call(fleet, "spawn_until_refused", 100)[0]
        assert 10 <= started < 20

    def test_the_disk_past_the_limit_is_full(self, context: RunContext, open_fleet: OpenFleet) -> None:
        needs(context, "disk", "tmpfs")
        fleet = open_fleet(2, disk_mb=8)
        for place in ("/tmp", "/dev/shm"):
            assert call(fleet, "fill", place, 6, members=[1]) == ["written"]
            (said,) = call(fleet, "fill", place, 12, members=[0])
            assert "No space left" in said

    def test_usage_is_plausible_while_alive_and_none_afterwards(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        (usage,) = fleet.usage()
        assert usage is not None
        assert usage.cpu_s > 0
        assert 1 << 20 < usage.memory_bytes < 256 << 20
        assert 1 <= usage.processes <= (4 if self.own_processes else 16)
        fleet.sandboxes[0].destroy()
        assert fleet.sandboxes[0].usage() is None
