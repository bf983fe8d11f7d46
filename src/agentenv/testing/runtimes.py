"""The promises of ``agentenv.sandbox.contract``, as a class of tests: subclass it and name the runtime.

    class TestMyRuntime(RuntimeSuite):
        settings = {"runtime": "mine"}

What is broken here is an environment or a process, never the machine; escapes are the attack suite's.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import psutil
import pytest

from agentenv.config import Config, load_config
from agentenv.errors import CauseKind, ClosedError, EnvError, Owner, SandboxDied, SandboxError, StepTimeout
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.sandbox.contract import Sandbox
from agentenv.testing.leftovers import Stock, assert_stock_returns, becomes_true, take_stock
from agentenv.testing.samples import PATIENT
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

TIMEOUT_S = 20.0
OpenFleet = Callable[..., Fleet]

# A host that starts sandboxes, says which processes it has, and waits to be killed.
_HOST = """
import sys
from agentenv.config import load_config
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.testing.leftovers import descendants
from agentenv.wire.slot import Op

config = load_config({config!r})
context = RunContext(config, config.expand(), record=False)
fleet = Fleet(context, config.expand())
fleet.call(Op.CALL, ["leave_children", [2], {{}}], [0], 20)
print(context.run_id, *descendants(), flush=True)
sys.stdin.read()
"""

# Many environments under the soft limit of descriptors that systems come with.
_MANY = """
import os, resource
from agentenv.config import load_config
from agentenv.envs.vector import AgentVectorEnv

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, hard))
config = load_config({config!r})
vec = AgentVectorEnv(config)
vec.reset(seed=1)
total = 0.0
for _ in range(3):
    total += vec.step(vec.action_space.sample() * 0)[1].sum()
vec.close()
print(vec.num_envs, total)
"""


class RuntimeSuite:
    """See the module.

    Attributes:
        settings: Keys of ``[global]`` that choose the runtime.
        nested: As in ``[bubblewrap]``.
        many: How many environments are started at once in the test of many.
        cycles: How many times an environment is made and ended in the test for leaks.
    """

    settings: ClassVar[Mapping[str, Any]] = {}
    nested: ClassVar[str] = "auto"
    many: ClassVar[int] = 200
    cycles: ClassVar[int] = 200

    def config(self, count: int = 1, **keys: Any) -> Config:
        """A configuration of ``count`` patients for this runtime."""
        return load_config(self._table(count, **keys))

    def _table(self, count: int = 1, **keys: Any) -> dict[str, Any]:
        environment = {"id": "env", "env": PATIENT, "count": count, "memory_mb": 256, **keys}
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

    # -- create

    def test_create_builds_the_environments(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet(3, envs_per_sandbox=2)
        assert [len(sandbox.introductions) for sandbox in fleet.sandboxes] == [2, 1]
        assert all(sandbox.alive() and psutil.pid_exists(sandbox.pid) for sandbox in fleet.sandboxes)
        assert _call(fleet, "echo", [1, {"a": None}]) == [[1, {"a": None}]] * 3

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
        table = self._table(2)
        # Late enough for an interpreter to start, early enough for a test.
        broken = {"id": "broken", "env": PATIENT, "env_kwargs": {"build": build}, "start_timeout_s": 3.0}
        table["environments"].append(broken)
        members = load_config(table).expand()
        with pytest.raises(error) as caught:
            Fleet(context, members, in_vector=True)
        assert (caught.value.env_id, caught.value.cause.kind) == ("broken", kind)
        assert_stock_returns(before, context.run_id)
        assert _call(open_fleet(), "echo", 1) == [1]

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
        _call(fleet, "say", "last words", members=[0])
        error = _fails(fleet, SandboxDied, method, *arguments)
        assert (error.cause.kind, error.cause.owner, error.index) == (kind, Owner.ENVIRONMENT, 0)
        assert detail in error.cause.detail
        assert "last words" in error.output
        assert _call(fleet, "echo", 1, members=[1]) == [1]

    def test_a_kill_of_the_environment_from_outside_is_a_signal(self, open_fleet: OpenFleet) -> None:
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
        error = _fails(fleet, SandboxDied, "echo", 1)
        assert (error.cause.kind, error.cause.owner) == (CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE)
        assert _call(fleet, "echo", 1, members=[1]) == [1]

    @pytest.mark.parametrize(("method", "how"), [("hang", "blocked"), ("spin", "busy")])
    def test_a_timeout_ends_it_and_says_what_it_did(self, open_fleet: OpenFleet, method: str, how: str) -> None:
        fleet = open_fleet(2)
        error = _fails(fleet, StepTimeout, method, timeout_s=0.5)
        assert error.cause.kind is CauseKind.TIMEOUT
        assert how in error.cause.detail
        assert not fleet.sandboxes[0].alive()
        assert _call(fleet, "echo", 1, members=[1]) == [1]

    def test_an_exception_kills_nothing(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        error = _fails(fleet, EnvError, "raises", "on purpose")
        assert isinstance(error, EnvError)
        assert (error.type_name, error.message, error.cause.kind) == ("ValueError", "on purpose", CauseKind.EXCEPTION)
        assert "in raises" in error.traceback_text
        assert fleet.sandboxes[0].alive()

    def test_output_is_captured_from_both_streams(self, context: RunContext, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        _call(fleet, "say", "to stdout")
        _call(fleet, "say", "to stderr", True)
        sandbox = fleet.sandboxes[0]
        sandbox.destroy()
        tail = context.output.tail(sandbox.spec.id)
        assert "to stdout" in tail
        assert "to stderr" in tail

    def test_variables_are_those_that_were_asked_for(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet(env_vars={"AGENT_TYPE": "dqn"})
        variables = _call(fleet, "variables")[0]
        assert variables["AGENT_TYPE"] == "dqn"
        assert variables["AGENTENV_ID"] == "env"

    # -- limits

    def test_memory_past_the_limit_is_typed(self, context: RunContext, open_fleet: OpenFleet) -> None:
        _needs(context, "memory", "cgroup")
        fleet = open_fleet(2, memory_mb=96)
        error = _fails(fleet, SandboxDied, "allocate", 400)
        assert (error.cause.kind, error.cause.owner) == (CauseKind.OUT_OF_MEMORY, Owner.RESOURCES)
        assert "96 MB" in error.cause.detail
        assert _call(fleet, "allocate", 10, members=[1]) == [10 << 20]

    def test_processes_past_the_limit_are_refused(self, context: RunContext, open_fleet: OpenFleet) -> None:
        _needs(context, "pids", "cgroup")
        fleet = open_fleet(pids=20)
        started = _call(fleet, "spawn_until_refused", 100)[0]
        assert 10 <= started < 20

    def test_the_disk_past_the_limit_is_full(self, context: RunContext, open_fleet: OpenFleet) -> None:
        _needs(context, "disk", "tmpfs")
        fleet = open_fleet(2, disk_mb=8)
        for place in ("/tmp", "/dev/shm"):
            assert _call(fleet, "fill", place, 6, members=[1]) == ["written"]
            (said,) = _call(fleet, "fill", place, 12, members=[0])
            assert "No space left" in said

    def test_usage_is_plausible_while_alive_and_none_afterwards(self, open_fleet: OpenFleet) -> None:
        fleet = open_fleet()
        (usage,) = fleet.usage()
        assert usage is not None
        assert usage.cpu_s > 0
        assert 1 << 20 < usage.memory_bytes < 256 << 20
        assert 1 <= usage.processes <= 4
        fleet.sandboxes[0].destroy()
        assert fleet.sandboxes[0].usage() is None

    # -- the end

    def test_destroy_leaves_nothing_and_may_be_repeated(self, context: RunContext, open_fleet: OpenFleet) -> None:
        open_fleet().close()
        before = take_stock(context.run_id)
        for misdeed in ("nothing", "orphans", "death"):
            fleet = open_fleet(2)
            if misdeed == "death":
                _fails(fleet, SandboxDied, "exit", 1)
            elif misdeed == "orphans":
                _call(fleet, "leave_children", 3)
            _destroy(fleet.sandboxes)
            fleet.close()
            _destroy(fleet.sandboxes)
            assert_stock_returns(before, context.run_id)

    def test_the_host_killed_takes_its_sandboxes_with_it(self) -> None:
        script = textwrap.dedent(_HOST).format(config=self._table(3))
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdout is not None
            run_id, *pids = host.stdout.readline().split()
            watched = [os.pidfd_open(int(pid)) for pid in pids]
            try:
                # Three environments, their first processes, at least one zygote and two orphans to be.
                assert len(watched) >= 9
                host.kill()
                host.wait()
                assert [pid for pid, fd in zip(pids, watched, strict=True) if not _ends(fd)] == []
            finally:
                for fd in watched:
                    os.close(fd)
        assert take_stock(run_id).files == 0

    def test_many_cycles_leave_nothing(self, context: RunContext, open_fleet: OpenFleet) -> None:
        open_fleet().close()
        before = take_stock(context.run_id)
        members = self.config().expand()
        for _ in range(self.cycles):
            fleet = Fleet(context, members)
            fleet.exchange(Op.RESET, TIMEOUT_S, None, [encode([1, None])])
            fleet.close()
        assert_stock_returns(before, context.run_id)

    def test_runs_opened_and_closed_leave_nothing(self) -> None:
        counts: list[Stock] = []
        for _ in range(4):
            config = self.config(2)
            context = RunContext(config, config.expand(), record=False)
            # The sandboxes are not destroyed: the end of the run is enough.
            Fleet(context, config.expand()).channel.close()
            context.close()
            context.close()
            assert_stock_returns(counts[0] if counts else take_stock(context.run_id), context.run_id)
            counts.append(take_stock(context.run_id))
        assert counts[1:] == counts[:-1]

    def test_many_environments_start_under_the_usual_descriptor_limit(self) -> None:
        script = textwrap.dedent(_MANY).format(config=self._table(self.many), soft=1024)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=False)
        assert (done.returncode, done.stdout.split()) == (0, [str(self.many), str(6.0 * self.many)]), done.stderr


def _call(fleet: Fleet, name: str, *arguments: Any, members: list[int] | None = None) -> list[Any]:
    chosen = list(range(fleet.count)) if members is None else members
    return fleet.call(Op.CALL, [name, list(arguments), {}], chosen, TIMEOUT_S)


def _fails(
    fleet: Fleet, error: type[SandboxError], name: str, *arguments: Any, timeout_s: float = TIMEOUT_S
) -> SandboxError:
    """The error of a call that environment 0 must not survive, or must not like."""
    with pytest.raises(error) as caught:
        fleet.call(Op.CALL, [name, list(arguments), {}], [0], timeout_s)
    return caught.value


def _needs(context: RunContext, limit: str, by: str) -> None:
    enforced = context.runtime.limits()[limit]
    if by not in enforced:
        pytest.skip(
            f"{limit}: {enforced} with runtime {context.runtime_name!r} here; `agentenv runtimes` says what helps"
        )


def _destroy(sandboxes: list[Sandbox]) -> None:
    for sandbox in sandboxes:
        sandbox.destroy()


def _ends(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(TIMEOUT_S * 1000)))
