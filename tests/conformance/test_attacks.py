"""The attack suite over every runtime this machine has, and what is left behind afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import CauseKind
from agentenv.testing import traces
from agentenv.testing.attacks import (
    ATTACKS,
    ATTEMPT_NAMES,
    LIMITS,
    SUBJECT,
    Arena,
    Attack,
    attacks_for,
    run_apart,
)
from agentenv.testing.hostile.env import ATTEMPTS, DEEDS
from agentenv.wire.slot import Op
from conformance.attacks_ground import bait, canary

RUNTIMES = [
    pytest.param(("bubblewrap", "auto"), id="bubblewrap"),
    pytest.param(("bubblewrap", "never"), id="bubblewrap-flat"),
    pytest.param(("process", "auto"), id="process"),
]
WALLED = RUNTIMES[:2]
# With a bubblewrap for each environment the walls are the same ones; what differs is who kills and reaps.
_FLAT = {
    "die_by_SIGKILL", "exit_3", "raise", "hang", "stop_itself", "fork_bomb", "allocate", "fill_shm", "leave_orphans",
    "outlive", "garbage_everywhere", "silent_answer", "steal_rings", "close_everything", "fill_control", "forged_exit",
}  # fmt: skip


def _names(attacks: list[Attack]) -> list[str]:
    return list(dict.fromkeys(f"{attack.moment}-{attack.name}" for attack in attacks))


def _attack(name: str, isolation: str) -> Attack:
    moment, _, deed = name.partition("-")
    for attack in attacks_for(isolation, moment):
        if attack.name == deed:
            return attack
    pytest.skip(f"{isolation} isolation does not claim to hold against {deed}")


def _isolation(runtime: tuple[str, str]) -> str:
    return "process" if runtime[0] == "process" else "sandbox"


@pytest.fixture(scope="module", params=RUNTIMES)
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    runtime, nested = request.param
    before = traces.take()
    arena = Arena(runtime, nested=nested)
    try:
        arena.runtime = request.param  # type: ignore[attr-defined]  # for the tests
        yield arena
        namespaces = traces.pid_namespaces(set(traces.take().children))
    finally:
        arena.close()
    assert traces.take().left_since(before) == []
    assert traces.inhabitants(namespaces, within_s=5.0) == []


@pytest.mark.parametrize("name", _names([a for a in ATTACKS if a.moment in ("step", "reset")]))
def test_while_it_is_stepped(arena: Arena, name: str) -> None:
    runtime = arena.runtime  # type: ignore[attr-defined]  # set by the fixture
    attack = _attack(name, _isolation(runtime))
    if runtime[1] == "never" and attack.name not in _FLAT:
        pytest.skip("run over nested cells; a bubblewrap for each environment runs a selection")
    outcome = arena.run(attack)
    info = outcome.info
    if attack.name in ("fill_tmp", "fill_shm"):
        assert 0 < info["written_mb"] <= LIMITS["disk_mb"]
    if attack.name in ("use_up_descriptors", "fork_bomb", "many_threads") and None in outcome.kinds:
        assert 0 < info["refused_after"] <= 4096
    if attack.name == "resize_memory":
        assert info["resized"] == 0
    assert not Path("/tmp/agentenv-pickle-bomb").exists()


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", _names([a for a in ATTACKS if a.moment in ("construct", "close")]))
def test_before_and_after(runtime: tuple[str, str], name: str) -> None:
    attack = _attack(name, _isolation(runtime))
    if runtime != ("bubblewrap", "auto") and attack.name not in _FLAT:
        pytest.skip("the introduction is read by the same code whatever the runtime; run over nested cells")
    before = traces.take()
    run_apart(attack, runtime[0], nested=runtime[1])
    assert traces.take().left_since(before) == []


def test_every_deed_and_attempt_is_in_the_suite() -> None:
    assert {attack.name for attack in ATTACKS} | {"flood_stdout", "never_read_bell"} == set(DEEDS)
    assert set(ATTEMPT_NAMES) == set(ATTEMPTS)


@pytest.fixture(scope="module", params=WALLED)
def prison(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[AgentVectorEnv, dict[str, str]]]:
    """Three environments with a secret each, in a project directory with a run and the configuration in it."""
    runtime, nested = request.param
    project = tmp_path_factory.mktemp("project")
    project.chmod(0o755)
    names = [f"prisoner-{number}" for number in range(3)]
    # A parked copy of an environment is its own, and may be seen by it (docs/security.md). Without copies, whatever
    # process is seen is somebody else's.
    tables = [
        f'[[environments]]\nid = "{name}"\nenv = "{SUBJECT}"\nenv_vars = {{ SECRET = "{canary()}" }}\n'
        'checkpoint_every = "never"\n'
        for name in names
    ]
    runs = project / "runs" / "another-run"
    runs.mkdir(parents=True)
    (runs / "stdout.log").write_text(canary())
    config = project / "config.toml"
    config.write_text(
        f'[global]\nruntime = "{runtime}"\nrun_dir = "{project}/runs"\n[bubblewrap]\nnested = "{nested}"\n'
        + "\n".join(tables)
    )
    outside = tmp_path_factory.mktemp("outside")
    os.environ["SECRET_OF_THE_HOST"] = canary()
    with bait(outside, names) as hints:
        vector = AgentVectorEnv(config)
        try:
            vector.reset()
            vector.call("plant")
            yield vector, {**hints, "config": str(config), "directory": str(project)}
        finally:
            vector.close()
            del os.environ["SECRET_OF_THE_HOST"]


@pytest.mark.parametrize("name", ATTEMPT_NAMES)
def test_nothing_is_reached(prison: tuple[AgentVectorEnv, dict[str, str]], name: str) -> None:
    vector, hints = prison
    assert vector.call("attempt", name, hints) == ([], [], [])


def test_the_bait_can_be_taken_without_isolation(tmp_path: Path) -> None:
    """The attempts are not blind: over no isolation they reach what they say they look for."""
    with bait(tmp_path, []) as hints:
        env = AgentENV.from_env(SUBJECT, runtime="process", env_vars={"SECRET": canary()})
        try:
            env.reset()
            for name in ("host_files", "processes", "tcp_to_host", "udp_to_host", "interprocess", "signals"):
                assert env.call("attempt", name, hints), name
        finally:
            env.close()


def test_a_flood_of_output_is_capped_and_neighbours_go_on(tmp_path: Path) -> None:
    red = AgentENV.from_env(SUBJECT, step_timeout_s=60.0)
    blue = AgentVectorEnv.from_env(SUBJECT, num_envs=2)
    try:
        red.reset()
        blue.reset()
        red.set_attr("deed", "step:flood_stdout")
        fleet = red._fleet
        fleet.post(Op.STEP, timeout_s=60.0)  # Op.STEP, without waiting for the answer
        for step in range(1, 301):
            observations, *_ = blue.step(np.zeros(2, np.int64))
            assert observations.tolist() == [step, step]
        fleet.wait()
        assert len(fleet.context.output.tail("env")) < 1 << 20
    finally:
        blue.close()
        red.close()


def test_a_bell_that_is_never_read_does_not_block_the_host() -> None:
    """A pipe holds 8192 rings; the host must not stop at that."""
    env = AgentENV.from_env(SUBJECT, step_timeout_s=20.0)
    try:
        env.reset()
        env.set_attr("deed", "step:never_read_bell")
        for _ in range(9000):
            env.step(0)
    finally:
        env.close()


def test_a_dead_environment_does_not_answer() -> None:
    """What lies in its memory is the past; to return it as a step would be a silent lie."""
    env = AgentENV.from_env(SUBJECT, on_crash="raise")
    try:
        env.reset()
        env.set_attr("deed", "step:exit_3")
        causes = []
        for use in (
            lambda: env.step(0),
            lambda: env.step(0),
            lambda: env.call("pid"),
            lambda: env.set_attr("deed", ""),
        ):
            with pytest.raises(ConnectionError) as caught:
                use()
            causes.append((caught.value.cause.kind, caught.value.cause.exit_code))  # type: ignore[attr-defined]  # typed
        assert causes == [(CauseKind.EXIT, 3)] * 4
        env.reset()
        assert env.step(0)[0] == 1
    finally:
        env.close()


def test_no_mount_of_a_sandbox_is_seen_on_the_host() -> None:
    env = AgentENV.from_env(SUBJECT, on_crash="raise")
    try:
        env.reset()
        mounts = subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True, text=True, check=True).stdout
        assert "newroot" not in mounts
    finally:
        env.close()


def test_what_the_dead_leave_behind_holds_up_nobody() -> None:
    """Where a copy is parked, the sandbox outlives the environment's process, and so do processes it has forked."""
    keys = {"step_timeout_s": 2.0, "checkpoint_every": 2, "restart_backoff_s": 0.0, "runtime": "bubblewrap"}
    with AgentVectorEnv.from_env(SUBJECT, num_envs=3, **{**LIMITS, **keys}) as vector:
        vector.reset(seed=1)
        actions = np.zeros(3, np.int64)
        for _ in range(5):
            vector.step(actions)
        vector.set_attr("deed", ["", "step:steal_as_an_orphan", ""])
        observations, _, _, truncated, _ = vector.step(actions)
        assert truncated.tolist() == [False, True, False]
        assert observations[[0, 2]].tolist() == [6, 6]
        observations, _, _, truncated, _ = vector.step(actions)
        assert not truncated.any()
        assert observations[[0, 2]].tolist() == [7, 7]
