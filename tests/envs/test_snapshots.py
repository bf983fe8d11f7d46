"""Snapshots: whatever way a moment is kept, going back to it leads to the same future, here and elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv import AgentENV, AgentVectorEnv, Snapshot, SnapshotError, load_snapshot
from agentenv.fleet import repetition
from agentenv.testing import exact, traces

ENDLESS: dict[str, Any] = {"max_restarts": 100_000, "restart_backoff_s": 0.0}
WAYS = {"state": "frail:Stateful", "pickle": "frail:Walk", "fork": "frail:Native", "replay": "frail:Threaded"}
PORTABLE = ["state", "pickle", "replay"]
MODES = ["NextStep", "SameStep", "Disabled"]


def future(env: Any, steps: int = 45) -> list[Any]:
    """All that comes out, over the end of an episode."""
    seen: list[Any] = []
    for number in range(steps):
        seen.append(env.step(number % 3))
        if seen[-1][2] or seen[-1][3]:
            seen.append(env.reset())
    return seen


def begun(env: str, steps: int = 7, seed: int = 3, **keys: Any) -> AgentENV:
    made = AgentENV.from_env(env, **ENDLESS, **keys)
    made.reset(seed=seed)
    for number in range(steps):
        made.step(number % 2)
    return made


def kill(env: Any, index: int = 0) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(env._fleet.sandboxes[env._fleet.channel.group_of(index)]._worker.pid, signal.SIGKILL)


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    before = traces.take()
    yield
    assert traces.take().left_since(before) == []


@pytest.mark.parametrize("how", WAYS)
def test_going_back_leads_to_the_same_future(how: Any) -> None:
    with leaving_nothing(), begun(WAYS[how]) as env:
        last = env.step(0)[0]
        snapshot = env.snapshot()
        assert (snapshot.how, snapshot.env_id, snapshot.ended) == (how, "env", False)
        exact.assert_same(snapshot.observation, last)
        expected = future(env)
        for _ in range(2):
            exact.assert_same(env.restore(snapshot), last)
            exact.assert_same(future(env), expected)
        snapshot.close()
        snapshot.close()


def test_what_led_to_a_snapshot_is_done_again_in_as_many_goes_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "MOST_AT_ONCE", 3)
    with begun(WAYS["replay"]) as env:
        snapshot = env.snapshot()
        assert snapshot.how == "replay"
        expected = future(env)
        env.restore(snapshot)
        exact.assert_same(future(env), expected)


@pytest.mark.parametrize("how", WAYS)
def test_a_seed_gives_another_future_and_the_same_one_again(how: Any) -> None:
    # Threads can neither be given new streams by copying nor by their state; see below.
    with begun("frail:Native" if how == "replay" else WAYS[how]) as env:
        snapshot = env.snapshot(how)
        plain = future(env, 5)
        found = {}
        for reseed in (5, 6, 5):
            env.restore(snapshot, reseed=reseed)
            found.setdefault(reseed, []).append(future(env, 5))
        exact.assert_same(found[5][0], found[5][1])
        firsts = [plain[0][0].tolist(), found[5][0][0][0].tolist(), found[6][0][0][0].tolist()]
        assert len({json.dumps(first) for first in firsts}) == 3
        env.restore(snapshot)
        exact.assert_same(future(env, 5), plain)


@pytest.mark.parametrize(
    "config",
    [
        {"global": {"seed": 9}, "environments": [{"id": "a", "env": "frail:Walk"}]},
        {"environments": [{"id": "a", "env": "frail:Walk", "seed": 9}]},
    ],
    ids=["seed of the run", "seed of the environment"],
)
def test_spawn_gives_others_at_every_call_and_the_same_for_the_same_calls(config: dict[str, Any]) -> None:
    found = []
    for _ in range(2):
        with AgentENV(config) as env:
            env.reset(seed=3)
            snapshot = env.snapshot()
            rows = []
            for reseed in ("spawn", "spawn", None, "spawn"):
                env.restore(snapshot, reseed=reseed)
                rows.append(env.step(1)[0].tolist())
            (fork,) = env.fork(reseed="spawn")
            env.restore(snapshot)
            rows.append(env.step(1)[0].tolist())
            fork.restore(snapshot, reseed="spawn")
            rows.append(fork.step(1)[0].tolist())
            fork.close()
        found.append(rows)
    assert found[0] == found[1]
    assert found[0][2] == found[0][4], "no seed keeps the snapshot's streams, whatever was spawned before"
    assert len({json.dumps(row) for row in found[0]}) == 5


def test_what_cannot_be_given_new_streams_says_so() -> None:
    with begun("frail:Threaded") as env:
        snapshot = env.snapshot()
        with pytest.raises(SnapshotError, match="cannot be given new random streams: the environment runs 2 threads"):
            env.restore(snapshot, reseed=1)


@pytest.mark.parametrize("env", ["frail:Busy", "frail:Threaded"])
def test_threads_lead_to_another_way_and_the_reasons_are_told(env: str) -> None:
    with begun(env) as made:
        snapshot = made.snapshot()
        assert snapshot.how == "replay"
        assert len(snapshot.reasons) == 2
        assert "thread" in snapshot.reasons[0]
        assert snapshot.reasons[1] == "the environment runs 2 threads, and a copy would have only one of them"
        expected = future(made, 8)
        made.restore(snapshot)
        exact.assert_same(future(made, 8), expected)


def test_a_liar_is_kept_by_its_attributes() -> None:
    with begun("frail:Forgetful") as env:
        snapshot = env.snapshot()
        assert snapshot.how == "pickle"
        expected = future(env)
        env.restore(snapshot)
        exact.assert_same(future(env), expected)
        with pytest.raises(SnapshotError, match="another way"):
            env.snapshot("state")


@pytest.mark.parametrize("how", PORTABLE)
def test_a_file_leads_another_environment_there(how: Any, tmp_path: Path) -> None:
    path = tmp_path / "moment.snapshot"
    with leaving_nothing(), begun(WAYS[how]) as env:
        snapshot = env.snapshot()
        snapshot.save(path)
        expected = future(env)
        read = load_snapshot(path)
        assert (read.how, read.env_id, read.ended, read.config) == (how, "env", False, snapshot.config)
        exact.assert_same(read.observation, snapshot.observation)
        with AgentENV.from_snapshot(path) as other:
            assert other._environment == env._environment
            exact.assert_same(future(other), expected)
        with AgentENV.from_snapshot(snapshot) as other:
            exact.assert_same(future(other), expected)
        with begun(WAYS[how], seed=8, steps=2) as other:
            exact.assert_same(other.restore(read), snapshot.observation)
            exact.assert_same(future(other), expected)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_file_with_a_seed_begins_another_future(tmp_path: Path) -> None:
    with begun("frail:Walk") as env:
        env.snapshot().save(tmp_path / "s")
    found = []
    for reseed in (None, 4, 4, 5):
        with AgentENV.from_snapshot(tmp_path / "s", reseed=reseed) as other:
            found.append(other.step(0)[0].tolist())
    assert found[1] == found[2]
    assert len({json.dumps(one) for one in found}) == 3


def test_a_process_that_was_asked_for_is_not_said_to_be_all_that_could_be_had(tmp_path: Path) -> None:
    with begun("frail:Walk") as env:
        snapshot = env.snapshot("fork")
        with pytest.raises(
            SnapshotError, match=r'is a process, and cannot be saved; it was taken with how="fork"\. Take'
        ):
            snapshot.save(tmp_path / "s")
        snapshot.close()


def test_a_process_is_no_file_and_belongs_to_its_sandbox(tmp_path: Path) -> None:
    with leaving_nothing(), begun("frail:Native") as env:
        snapshot = env.snapshot()
        assert snapshot.how == "fork"
        with pytest.raises(SnapshotError, match=r"is a process, and cannot be saved.*cannot pickle.*how=\"replay\""):
            snapshot.save(tmp_path / "s")
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(SnapshotError, match="in another sandbox"):
            AgentENV.from_snapshot(snapshot)
        with begun("frail:Native") as other, pytest.raises(SnapshotError, match="in another sandbox"):
            other.restore(snapshot)
        snapshot.close()
        with pytest.raises(SnapshotError, match="has ended"):
            env.restore(snapshot)
        future(env, 3)
        env.snapshot("replay").save(tmp_path / "s")
        expected = future(env)
        with AgentENV.from_snapshot(tmp_path / "s") as other:
            exact.assert_same(future(other), expected)


@pytest.mark.parametrize("env", ["frail:Walk", "frail:Native"])
def test_a_snapshot_of_what_was_restored_is_the_same(env: str) -> None:
    with begun(env) as made:
        first = made.snapshot()
        expected = future(made, 9)
        made.restore(first)
        second = made.snapshot()
        exact.assert_same(second.observation, first.observation)
        future(made, 3)
        made.restore(second)
        exact.assert_same(future(made, 9), expected)


@pytest.mark.parametrize("how", WAYS)
def test_who_was_restored_and_is_killed_then_comes_back_exactly(how: Any) -> None:
    with begun(WAYS[how], checkpoint_every=10) as env:
        snapshot = env.snapshot()
        expected = future(env)
        env.restore(snapshot)
        seen: list[Any] = []
        for number in range(45):
            if number in (1, 2, 15, 40) or (number == 0 and how in ("state", "pickle")):
                kill(env)
            seen.append(env.step(number % 3))
            if seen[-1][3] and how == "replay" and "agentenv" in seen[-1][4]:
                # Without a state or a copy there is nothing after a restoration that one could begin from.
                assert "too much has happened" in seen[-1][4]["agentenv"]["truncated"]
                return
            if seen[-1][2] or seen[-1][3]:
                seen.append(env.reset())
        exact.assert_same(seen, expected)
        assert env._fleet.recovery.recovered >= 4


def test_a_death_after_new_streams_is_never_made_up_from_the_old_ones() -> None:
    with begun("frail:Walk", checkpoint_every=5) as env:
        snapshot = env.snapshot()
        future(env, 10)  # states are saved, and a copy is parked, on the old streams
        env.restore(snapshot, reseed=9)
        expected = future(env, 4)
        for steps in (0, 1, 3):
            env.restore(snapshot, reseed=9)
            seen = future(env, steps)
            kill(env)
            seen += [env.step(number % 3) for number in range(steps, 4)]
            exact.assert_same(seen, expected)
        assert env._fleet.recovery.recovered == 3


def test_restoring_a_dead_one_brings_it_back() -> None:
    with begun("frail:Erratic", checkpoint_every="never") as env:
        with pytest.raises(SnapshotError, match="a restored copy goes on differently"):
            env.snapshot("pickle")
        kill(env)
        with pytest.raises(SnapshotError, match="no moment to keep until the next reset: it is not deterministic"):
            env.snapshot()
        *_, truncated, info = env.step(0)
        assert truncated
        assert "not deterministic" in info["agentenv"]["truncated"]
    with begun("frail:Walk") as env:
        snapshot = env.snapshot()
        expected = future(env)
        kill(env)
        env.restore(snapshot)
        exact.assert_same(future(env), expected)


@pytest.mark.parametrize("env", ["frail:Reading"])
def test_observations_of_variable_size_are_kept_whole(env: str, tmp_path: Path) -> None:
    with AgentENV.from_env(env) as made:
        with pytest.raises(SnapshotError, match=r"call reset\(\) first"):
            made.snapshot()
        with pytest.raises(SnapshotError, match=r"call reset\(\) first"):
            made.fork()
        made.reset(seed=1)
        last = made.step({"move": 1, "say": "hi"})[0]
        snapshot = made.snapshot()
        exact.assert_same(snapshot.observation, last)
        snapshot.save(tmp_path / "s")
        expected = made.step({"move": 2, "say": "you"})
        exact.assert_same(made.restore(load_snapshot(tmp_path / "s")), last)
        exact.assert_same(made.snapshot().observation, last)
        exact.assert_same(made.step({"move": 2, "say": "you"}), expected)


@pytest.mark.parametrize("how", WAYS)
def test_it_is_told_in_one_line(how: Any) -> None:
    with begun(WAYS[how]) as env:
        snapshot = env.snapshot()
        moment = snapshot.moment
        size = len(moment.data) + (0 if moment.past is None else sum(len(s[2]) for s in moment.past.segments))
        told = "a process" if how == "fork" else f"{size:,} bytes"
        assert repr(snapshot) == f"<Snapshot of env: how='{how}', ended=False, {told}>"
        assert (size > 0) == (how != "fork")


# -- files


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        (".", IsADirectoryError, "got a folder; add a name for the file"),
        ("nowhere/s", FileNotFoundError, "in a folder that exists; make"),
        ("file/s", NotADirectoryError, "'s?.*file' is none"),
        ("f" * 300, OSError, "File name too long"),
    ],
)
def test_where_no_file_can_be_is_said(
    written: bytes, tmp_path: Path, place: str, error: type[OSError], words: str
) -> None:
    (tmp_path / "file").write_bytes(written)
    path = tmp_path / place
    with pytest.raises(error, match=words) as caught:
        load_snapshot(tmp_path / "file").save(path)
    assert caught.value.filename == str(path)
    assert ".new" not in str(caught.value)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("snapshots") / "s"
    with begun("frail:Walk") as env:
        env.snapshot().save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "s"


@given(data=st.data())
@settings(max_examples=150)
def test_every_damage_is_noticed(written: bytes, place: Path, data: st.DataObject) -> None:
    bad = bytearray(written)
    bit = data.draw(st.integers(0, 8 * len(bad) - 1))
    bad[bit // 8] ^= 1 << bit % 8
    place.write_bytes(bad)
    with pytest.raises(SnapshotError, match=f"^{re.escape(str(place))}: "):
        load_snapshot(place)


@given(length=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60)
def test_a_file_cut_short_is_noticed(written: bytes, place: Path, length: float) -> None:
    place.write_bytes(written[: int(length * len(written))])
    with pytest.raises(SnapshotError):
        load_snapshot(place)


def with_checksum(content: bytes) -> bytes:
    return b"agentenv-snapshot-1\n" + content + zlib.crc32(content).to_bytes(4, "little")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"PK\x03\x04" + bytes(100),
        b"agentenv-snapshot-1\n",
        with_checksum(b""),
        with_checksum(b"[]\n"),
        with_checksum(b"{}\n"),
        with_checksum(b"nonsense\nbody"),
        with_checksum(b'{"bytes": 4}\nbody'),
        with_checksum(b"[" * 100_000 + b"\n"),
        with_checksum(b'{"bytes": 0, "config": {"environments": 3}}\n'),
    ],
)
def test_foreign_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=re.escape(str(path))):
        AgentENV.from_snapshot(path)


def test_a_file_whose_state_is_damaged_inside_its_checksum_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whoever wrote it, or the environment has changed since: the sandbox refuses it, and the host says so."""
    from dataclasses import replace

    with begun("frail:Walk") as env:
        snapshot = env.snapshot()
        bad = replace(snapshot, moment=replace(snapshot.moment, data=snapshot.moment.data[:-9]))
        expected = future(env, 3)
        with pytest.raises(SnapshotError, match="the saved state cannot be taken on"):
            env.restore(bad)
        env.restore(snapshot)
        exact.assert_same(future(env, 3), expected)
    bad.save(tmp_path / "s")
    with leaving_nothing(), pytest.raises(SnapshotError, match="the saved state cannot be taken on"):
        AgentENV.from_snapshot(tmp_path / "s")


# A file system of 256 KiB, really full, in a mount namespace of its own.
_FULL = textwrap.dedent(
    """
    import os, subprocess, sys
    from dataclasses import replace
    from pathlib import Path
    from agentenv.errors import ResourceLimit
    from agentenv.envs.snapshots import load_snapshot

    disk = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
    snapshot = load_snapshot(sys.argv[2])
    snapshot.save(disk / "kept")
    before = (disk / "kept").read_bytes()
    large = replace(snapshot, moment=replace(snapshot.moment, data=os.urandom(1 << 20)))
    try:
        large.save(disk / "kept")
    except ResourceLimit as error:
        assert "kept" in str(error), error
    else:
        raise AssertionError("a full disk took a new file")
    assert (disk / "kept").read_bytes() == before
    assert [found.name for found in disk.iterdir()] == ["kept"]
    """
)


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, written: bytes) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        possible = subprocess.run([*space, "true"], capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("needs user namespaces and the unshare command (util-linux) to mount a small file system")
    (tmp_path / "disk").mkdir()
    (tmp_path / "first").write_bytes(written)
    command = [*space, sys.executable, "-c", _FULL, str(tmp_path / "disk"), str(tmp_path / "first")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")


# -- wrong arguments


@pytest.mark.parametrize("wrong", ["moment.snapshot", None, 5, b"x"])
def test_only_snapshots_can_be_restored(wrong: Any) -> None:
    with begun("frail:Walk") as env, pytest.raises(TypeError, match="expected a Snapshot, got") as caught:
        env.restore(wrong)
    assert "AgentENV.from_snapshot(path)" in str(caught.value)
    assert "agentenv.load_snapshot(path)" in str(caught.value)
    assert Snapshot.__module__ == load_snapshot.__module__


@pytest.mark.parametrize("wrong", [None, 5, ["x"]])
def test_only_snapshots_and_paths_can_be_begun_from(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a Snapshot or the path of one"):
        AgentENV.from_snapshot(wrong)


@pytest.mark.parametrize("reseed", ["each", "5", -1, True, 1.5, [1]])
def test_only_seeds_are_seeds(reseed: Any) -> None:
    with begun("frail:Walk") as env:
        snapshot = env.snapshot()
        expected = future(env, 4)
        env.restore(snapshot)
        words = re.escape(f"an int that is not negative, got {reseed!r}")
        with pytest.raises(ValueError, match=f'reseed: expected None, "spawn" or {words}'):
            env.restore(snapshot, reseed=reseed)
        for wrong in (reseed, "spawn"):  # that would give every new one the same
            words = re.escape(f"reseed: expected None or an int that is not negative, got {wrong!r}")
            with pytest.raises(ValueError, match=words):
                AgentENV.from_snapshot(snapshot, reseed=wrong)
        exact.assert_same(future(env, 4), expected)


def test_only_known_ways_are_ways() -> None:
    known = "one of state, pickle, fork, machine, replay, got 'zip'"
    with begun("frail:Walk") as env, pytest.raises(ValueError, match=known):
        env.snapshot("zip")  # type: ignore[arg-type]  # wrong on purpose


def test_another_kind_of_environment_is_refused() -> None:
    with begun("CartPole-v1") as env, begun("frail:Walk") as other:
        snapshot = env.snapshot()
        expected = other.snapshot()
        with pytest.raises(
            SnapshotError, match=r"of another environment.*expected env 'frail:Walk', got 'CartPole-v1'"
        ):
            other.restore(snapshot)
        first = future(other, 4)
        other.restore(expected)
        exact.assert_same(future(other, 4), first)
    with (
        begun("frail:Walk", env_kwargs={"length": 5}, steps=0) as env,
        pytest.raises(SnapshotError, match="env_kwargs"),
    ):
        env.restore(expected)


def test_a_closed_one_says_so() -> None:
    env = begun("frail:Walk")
    snapshot = env.snapshot()
    env.close()
    for act in (env.snapshot, lambda: env.restore(snapshot), env.fork):
        with pytest.raises(RuntimeError, match="closed"):
            act()


# -- vectors


def play(vec: Any, steps: int, mode: str, first: int = 0) -> list[Any]:
    seen: list[Any] = []
    for number in range(first, first + steps):
        seen.append(vec.step((np.arange(vec.num_envs) + number) % 3))
        ended = seen[-1][2] | seen[-1][3]
        if mode == "Disabled" and ended.any():
            seen.append(vec.reset(options={"reset_mask": ended}))
    return seen


@contextlib.contextmanager
def vector(env: str, count: int = 3, **keys: Any) -> Iterator[AgentVectorEnv]:
    vec = AgentVectorEnv.from_env(env, count, **{**ENDLESS, **keys})
    try:
        yield vec
    finally:
        vec.close()


@pytest.mark.parametrize("per_sandbox", [1, 2])
@pytest.mark.parametrize("how", ["state", "pickle"])
@pytest.mark.parametrize("mode", MODES)
def test_a_vector_goes_back_exactly(mode: str, how: str, per_sandbox: int) -> None:
    keys = {"autoreset_mode": mode, "envs_per_sandbox": per_sandbox, "env_kwargs": {"length": 9}}
    with leaving_nothing(), vector(WAYS[how], **keys) as vec:
        vec.reset(seed=5)
        last = play(vec, 4, mode)[-1][0]
        snapshots = vec.snapshot()
        assert [kept is not None and kept.how for kept in snapshots] == [how] * 3
        expected = play(vec, 25, mode)
        exact.assert_same(vec.restore(snapshots), last)
        exact.assert_same(play(vec, 25, mode), expected)


@pytest.mark.parametrize("mode", MODES)
def test_ended_episodes_stay_ended(mode: str) -> None:
    with vector("frail:Walk", autoreset_mode=mode, env_kwargs={"length": 4}) as vec:
        vec.reset(seed=5)
        for number in range(4):
            last = vec.step(np.full(3, number % 3))
        assert last[3].all()
        snapshots = vec.snapshot()
        assert [kept is not None and kept.ended for kept in snapshots] == [True] * 3
        if mode == "Disabled":
            vec.reset()
        expected = [vec.step(np.ones(3, np.int64)) for _ in range(1 if mode == "Disabled" else 9)]
        vec.restore(snapshots)
        if mode == "Disabled":
            with pytest.raises(gymnasium.error.ResetNeeded):
                vec.step(np.ones(3, np.int64))
            return
        exact.assert_same([vec.step(np.ones(3, np.int64)) for _ in range(9)], expected)


def test_a_mask_chooses_who_is_kept_and_who_goes_back() -> None:
    mask = np.array([True, False, True])
    with vector("frail:Walk") as vec:
        vec.reset(seed=5)
        at = play(vec, 4, "NextStep")[-1][0]
        snapshots = vec.snapshot(mask)
        assert [kept is None for kept in snapshots] == [False, True, False]
        then = play(vec, 5, "NextStep")[-1][0]
        exact.assert_same(vec.restore(snapshots), np.where(mask[:, None], at, then))
        whole = vec.snapshot()
        play(vec, 5, "NextStep")
        now = play(vec, 1, "NextStep")[-1][0]
        only = np.array([False, True, False])
        found = vec.restore(whole, only)
        exact.assert_same(found[[0, 2]], now[[0, 2]])
        exact.assert_same(found[1], then[1])


def test_a_snapshot_of_one_serves_another_position_and_another_vector() -> None:
    with vector("frail:Walk") as vec, vector("frail:Walk", 2) as other:
        vec.reset(seed=5)
        other.reset(seed=99)
        play(vec, 4, "NextStep")
        kept = vec.snapshot()
        vec.restore([kept[2], kept[2], kept[2]])
        found = [vec.step(np.ones(3, np.int64)) for _ in range(5)]
        other.restore([kept[2], kept[2]])
        for one in found:
            again = other.step(np.ones(2, np.int64))
            assert one[0][0].tolist() == one[0][1].tolist() == one[0][2].tolist() == again[0][0].tolist()
        with AgentENV.from_snapshot(kept[2]) as single:  # type: ignore[arg-type]  # it was kept
            for one in found:
                assert single.step(1)[0].tolist() == one[0][2].tolist()


@pytest.mark.parametrize("per_sandbox", [1, 2])
def test_broadcasting(per_sandbox: int) -> None:
    with vector("frail:Walk", 4, envs_per_sandbox=per_sandbox) as vec:
        vec.reset(seed=5)
        source = play(vec, 4, "NextStep")[-1][0][2]
        assert vec.broadcast(2).tolist() == [source.tolist()] * 4
        if per_sandbox == 1:
            rows = vec.step(np.ones(4, np.int64))[0]
            assert len({row.tobytes() for row in rows}) == 1
        found = {}
        for reseed in (3, 4, 3, "spawn"):
            vec.broadcast(1)
            vec.broadcast(1, reseed=reseed)
            rows = vec.step(np.ones(4, np.int64))[0]
            # Those that share a process share its global generator too, and differ by it as well.
            assert len({row[0].tobytes() for row in rows - rows[0]}) >= 3
            found.setdefault(reseed, []).append(rows)
        assert found[3][0].shape == found[4][0].shape == (4, 3)


def test_broadcasting_with_a_seed_is_the_same_again() -> None:
    with vector("frail:Walk", 3) as vec:
        vec.reset(seed=5)
        play(vec, 4, "NextStep")
        kept = vec.snapshot()
        found = []
        for reseed in (3, 3, 4, "spawn"):
            vec.restore(kept, reseed=reseed)
            found.append(np.array([vec.step(np.ones(3, np.int64))[0] for _ in range(4)]).tobytes())
        assert found[0] == found[1]
        assert len({found[0], found[2], found[3]}) == 3


@pytest.mark.parametrize("own", [{}, {"seed": 7}], ids=["run", "environment"])
def test_a_vector_spawns_others_at_every_call_and_the_same_for_the_same_calls(own: dict[str, Any]) -> None:
    found = []
    for _ in range(2):
        members = [{"id": name, "env": "frail:Walk", **own} for name in "abc"]
        vec = AgentVectorEnv({"global": {"seed": 9}, "environments": members})
        try:
            vec.reset(seed=5)
            kept = vec.snapshot()
            rows = []
            for act in (vec.restore, vec.restore, None, None):
                if act is None:
                    vec.broadcast(0)
                    vec.broadcast(0, reseed="spawn")
                else:
                    act([kept[0]] * 3, reseed="spawn")
                rows += [row.tolist() for row in vec.step(np.ones(3, np.int64))[0]]
        finally:
            vec.close()
        found.append(rows)
    assert found[0] == found[1]
    assert len({json.dumps(row) for row in found[0]}) == 12


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("per_sandbox", [1, 2])
def test_a_vector_that_was_restored_recovers_exactly(per_sandbox: int, who: int) -> None:
    with vector("frail:Walk", 2, envs_per_sandbox=per_sandbox, checkpoint_every=20) as vec:
        vec.reset(seed=5)
        play(vec, 4, "NextStep")
        snapshots = vec.snapshot()
        expected = play(vec, 30, "NextStep")
        vec.restore(snapshots)
        seen: list[Any] = []
        for number in range(30):
            if number in (0, 5, 25):
                kill(vec, who)
            seen += play(vec, 1, "NextStep", number)
        exact.assert_same(seen, expected)
        assert vec._fleet.recovery.recovered == 3


@pytest.mark.parametrize("who", [0, 1])
def test_restoring_one_of_a_shared_sandbox_spares_the_other(who: int) -> None:
    """What the neighbour has saved belongs to another past of the process they share: it is saved anew."""
    only = np.arange(2) == who

    def run(strike: int | None) -> list[Any]:
        keys = {"envs_per_sandbox": 2, "checkpoint_every": 5, "seed": 3}
        with vector("frail:Walk", 2, **keys) as vec:
            vec.reset()
            play(vec, 4, "NextStep")
            kept = vec.snapshot()
            play(vec, 9, "NextStep")
            vec.restore(kept, only)
            seen: list[Any] = []
            for number in range(12):
                if number == strike:
                    kill(vec, 0)
                seen += play(vec, 1, "NextStep", number)
            return seen

    exact.assert_same(run(1), run(None))
    exact.assert_same(run(8), run(None))


def test_what_only_a_fork_could_keep_is_refused_where_a_sandbox_is_shared() -> None:
    with vector("frail:Native", 2, envs_per_sandbox=2) as vec:
        vec.reset(seed=5)
        kept = vec.snapshot()
        assert [one is not None and one.how for one in kept] == ["replay", "replay"]
        with pytest.raises(SnapshotError, match=r"shares its sandbox with others.*envs_per_sandbox = 1"):
            vec.restore(kept)


def test_vectors_refuse_wrong_arguments_and_stay_as_they_are() -> None:
    with vector("frail:Walk", 2) as vec:
        vec.reset(seed=5)
        kept = vec.snapshot()
        for act, error, words in [
            (lambda: vec.restore(kept[:1]), ValueError, "expected 2 snapshots"),
            (lambda: vec.restore([1, 2]), TypeError, "expected a Snapshot, got int"),
            (lambda: vec.restore(None), TypeError, "expected a list of snapshots"),
            (lambda: vec.restore("ab"), TypeError, "expected a list of snapshots"),
            (lambda: vec.restore(kept, [1, 0]), ValueError, "expected a bool array of shape (2,)"),
            (lambda: vec.restore(kept, np.ones(3, np.bool_)), ValueError, "got bool of shape (3,)"),
            (lambda: vec.restore(kept, reseed=-1), ValueError, "reseed: expected"),
            (lambda: vec.snapshot(np.ones(2)), ValueError, "expected a bool array of shape (2,)"),
            (lambda: vec.broadcast(0, reseed="each"), ValueError, "reseed: expected"),
            (lambda: vec.broadcast(2), IndexError, "out of range"),
        ]:
            with pytest.raises(error, match=re.escape(words)):
                act()
        with vector("CartPole-v1", 2) as other, pytest.raises(SnapshotError, match="of another environment"):
            other.restore(kept)
        expected = play(vec, 3, "NextStep")
        vec.restore(kept)
        exact.assert_same(play(vec, 3, "NextStep"), expected)
    with pytest.raises(RuntimeError, match="closed"):
        vec.snapshot()


def test_nobody_is_restored_where_nobody_is_chosen() -> None:
    with vector("frail:Walk", 2) as vec:
        vec.reset(seed=5)
        last = play(vec, 3, "NextStep")[-1][0]
        exact.assert_same(vec.restore([None, None]), last)
        exact.assert_same(vec.restore(vec.snapshot(), np.zeros(2, np.bool_)), last)
        assert vec.snapshot(np.zeros(2, np.bool_)) == [None, None]


@pytest.mark.parametrize("how", ["state", "pickle"])
def test_a_snapshot_before_the_first_reset_decides_nothing_for_later_ones(how: Any) -> None:
    with AgentENV.from_env(WAYS[how], **ENDLESS) as env:
        early = env.snapshot()
        assert (early.how, early.reasons) == ("fork", ("it has not been reset yet",))
        with pytest.raises(SnapshotError, match="it has not been reset yet"):
            env.snapshot(how)
        early.close()
        env.reset(seed=3)
        env.step(1)
        (child,) = env.fork(1)
        assert (env.snapshot().how, child.snapshot().how) == (how, how)
        child.close()


def test_saving_before_the_first_reset_decides_nothing_for_later_times() -> None:
    with AgentVectorEnv.from_env("frail:Walk", num_envs=3, checkpoint_every=1, **ENDLESS) as vec:
        for _ in range(3):
            vec.call("length")
        bases = vec._fleet.recovery.bases
        assert (bases.unfit, bases.states) == ({}, [None] * 3)
        vec.reset(seed=3)
        for _ in range(3):
            vec.step(np.zeros(3, dtype=np.int64))
        assert bases.unfit == {}
        assert [state is not None and state.how for state in bases.states] == ["pickle"] * 3
