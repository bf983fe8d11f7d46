"""The promises of a runtime about the end: of a sandbox, of a run, of the host, of many."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap

from agentenv.errors import SandboxDied
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.sandbox.contract import Sandbox
from agentenv.testing.leftovers import Stock, assert_stock_returns, take_stock
from agentenv.testing.runtime_ground import TIMEOUT_S, OpenFleet, RuntimeGround, call, fails
from agentenv.wire.slot import Op
from agentenv.wire.values import encode

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


class RuntimeEnds(RuntimeGround):
    """See the module; part of ``RuntimeSuite``."""

    def test_destroy_leaves_nothing_and_may_be_repeated(self, context: RunContext, open_fleet: OpenFleet) -> None:
        open_fleet().close()
        before = take_stock(context.run_id)
        for misdeed in ("nothing", "orphans", "death"):
            fleet = open_fleet(2)
            if misdeed == "death":
                fails(fleet, SandboxDied, "exit", 1)
            elif misdeed == "orphans":
                call(fleet, "leave_children", 3)
            _destroy(fleet.sandboxes)
            fleet.close()
            _destroy(fleet.sandboxes)
            assert_stock_returns(before, context.run_id)

    def test_the_host_killed_takes_its_sandboxes_with_it(self) -> None:
        script = textwrap.dedent(_HOST).format(config=self.table(3))
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdout is not None
            run_id, *pids = host.stdout.readline().split()
            watched = [os.pidfd_open(int(pid)) for pid in pids]
            try:
                # Three environments, their first processes, at least one zygote and two orphans to be; or three
                # monitors, and who starts them.
                assert len(watched) >= (9 if self.own_processes else 4)
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
        script = textwrap.dedent(_MANY).format(config=self.table(self.many), soft=1024)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=False)
        assert (done.returncode, done.stdout.split()) == (0, [str(self.many), str(6.0 * self.many)]), done.stderr


def _destroy(sandboxes: list[Sandbox]) -> None:
    for sandbox in sandboxes:
        sandbox.destroy()


def _ends(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(int(TIMEOUT_S * 1000)))
