"""``agentenv run --resume``: after any death of the process, what it comes to is what it would have come to."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentenv.fleet.rundir import RunDir, RunState
from agentenv.sandbox.sweep import sweep
from agentenv.telemetry.events import read_events
from agentenv.telemetry.records import read_records
from cli_watch import groups, poll, running

sys.path.append(str(Path(__file__).parent))
from killing import Killer, episodes

GRID = 'id = "g"\nenv = "agentenv/GridWorld-v0"\nepisodes = 60\ncount = 2\nenv_kwargs = { size = 8, slip = 0.1 }'
LEARNER = 'id = "l"\nenv = "wayward:Seeded"\nepisodes = 40\npolicy = "wayward:Learner"\nenv_kwargs = { length = 60 }'
NETWORK = 'id = "n"\nenv = "wayward:Seeded"\nepisodes = 40\npolicy = "wayward:Network"\nenv_kwargs = { length = 60 }'
LONG = 'id = "long"\nenv = "wayward:Seeded"\nepisodes = 2\nenv_kwargs = { length = 3000 }'


def reference(command, config: str) -> dict[str, Any]:
    return episodes(Path(command.run(config, "--run-dir", "reference")["run_dir"]))


@pytest.mark.timeout(900)
def test_killed_at_fifty_moments_it_comes_to_the_same(command) -> None:
    config = command.config(GRID, LEARNER, NETWORK, LONG)
    expected = reference(command, config)
    assert [len(held) for held in expected.values()] == [60, 60, 40, 2, 40]
    killer = Killer(command, config, random.Random(11))
    batches = 0
    while killer.kills < 50:
        run = killer.batch(f"killed-{batches}", 2.5, 10)
        assert episodes(run) == expected
        for place in RunDir.open(run).environments():
            records, _ = read_records(place.episodes)
            assert not any("restarted" in record for record in records)
        summary = json.loads((run / "summary.json").read_bytes())
        assert summary["state"] == "finished"
        assert summary["steps"] == sum(one[3] for held in expected.values() for one in held)
        batches += 1
    assert killer.kills - killer.too_early >= 15, "most moments lie after the first words of a run"
    assert not any("Traceback" in said for said in killer.said)
    poll(lambda: running(killer.below) == [], "every sandbox to be gone")
    # Of a run killed just before the last one began, what was dying then is left to whoever sweeps next.
    poll(lambda: sweep() is not None and not any(map(groups, killer.run_ids)), "every control group to be gone")


def kill_in_the_middle(command, config: str, *, env_id: str, size: int, **options: Any) -> RunDir:
    """Start a run, and kill it when the trace of an environment has grown to some size."""
    process = command.start("run", config, "-q", **options)
    places = command.cwd / "runs"

    def there() -> bool:
        assert process.poll() is None, process.communicate()
        return any(p.stat().st_size >= size for p in places.glob(f"*/environments/{env_id}/trace.bin"))

    try:
        poll(there, "the trace to grow", 60)
    finally:
        process.kill()
        process.communicate()
    (path,) = places.iterdir()
    return RunDir.open(path)


def resume(command, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    done = command("run", "--resume", "latest", "--json", *arguments)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found, done.stderr


def test_an_episode_goes_on_in_its_middle(command) -> None:
    slow = LONG.replace("length = 3000", "length = 600, delay_s = 0.002")
    config = command.config(slow)
    expected = reference(command, config)
    run = kill_in_the_middle(command, config, env_id="long", size=4000)
    assert run.state() is RunState.INTERRUPTED
    summary, _ = resume(command)
    assert (summary["state"], Path(summary["run_dir"])) == ("finished", run.path)
    assert episodes(run.path) == expected
    manifest = json.loads(run.manifest.read_bytes())
    (entry,) = manifest["resumed"]
    assert entry["run_id"] != manifest["run_id"]
    assert entry["process"] == manifest["process"]
    kinds = [event.kind for event in read_events(run.events)[0]]
    assert kinds.count("run_resumed") == 1
    assert "episode_restarted" not in kinds
    verified = command("replay", "latest", "--verify", "--json")
    assert verified.returncode == 0, verified.stdout
    assert [one["whole"] for one in json.loads(verified.stdout)["episodes"]] == [True, True]


@pytest.mark.parametrize(
    ("env", "policy", "words"),
    [
        ("Seeded", "wayward:Moody", "the policy decided otherwise than recorded"),
        ("Unseeded", "random", "step 3 was answered otherwise than recorded: observation['noise']"),
    ],
)
def test_what_cannot_be_caught_up_with_begins_again_with_a_mark(command, env: str, policy: str, words: str) -> None:
    table = f'id = "a"\nenv = "wayward:{env}"\npolicy = "{policy}"\nenv_kwargs = {{ length = 800, delay_s = 0.005 }}'
    run = kill_in_the_middle(command, command.config(table), env_id="a", size=2000)
    _, stderr = resume(command)
    assert "episode 0 begins again" in stderr
    assert words in stderr
    records, _ = read_records(run.environment("a").episodes)
    (record,) = records
    assert (record["length"], record["attempt"]) == (800, 1)
    assert words in record["restarted"]
    assert [e.kind for e in read_events(run.events)[0]].count("episode_restarted") == 1


def test_an_info_that_tells_the_time_is_said_and_does_not_matter(command) -> None:
    table = 'id = "a"\nenv = "wayward:Clock"\nenv_kwargs = { length = 800, delay_s = 0.005 }'
    run = kill_in_the_middle(command, command.config(table), env_id="a", size=2000)
    _, stderr = resume(command)
    assert "the info of step 1 differs" in stderr
    records, _ = read_records(run.environment("a").episodes)
    assert [(r["length"], r.get("attempt")) for r in records] == [(800, None)]


def test_a_policy_whose_memory_cannot_be_kept_is_said(command) -> None:
    table = 'id = "a"\nenv = "wayward:Seeded"\nepisodes = 40\npolicy = "wayward:Closed"\n'
    config = command.config(table + "env_kwargs = { length = 20, delay_s = 0.002 }")
    run = kill_in_the_middle(command, config, env_id="a", size=3000)
    _, stderr = resume(command)
    assert "begins episode" in stderr
    assert "state_dict() and load_state_dict()" in stderr
    assert len(episodes(run.path)["a"]) == 40


def test_ctrl_c_is_gone_on_with_as_well(command) -> None:
    config = command.config(GRID.replace("episodes = 60", "episodes = 400"), LONG)
    expected = reference(command, config)
    process = command.start("run", config, "-q")
    poll(lambda: any(command.cwd.glob("runs/*/environments/g-1/trace.bin")), "the first episode", 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    summary, _ = resume(command)
    assert summary["state"] == "finished"
    assert summary["steps"] == sum(one[3] for held in expected.values() for one in held)
    assert episodes(Path(summary["run_dir"])) == expected
    assert (Path(summary["run_dir"]) / "summary.json.prev").exists()


def test_one_that_is_over_says_so(command) -> None:
    summary = command.run(command.config(LEARNER))
    again, _ = resume(command)
    assert again == summary
    told = command("run", "--resume", summary["run_id"])
    assert (told.returncode, "is over (finished): nothing to resume" in told.stdout) == (0, True)


def test_one_that_runs_is_refused(command) -> None:
    process = command.start("run", command.config('id = "a"\nenv = "misbehaving:Fine"\nepisodes = 1000000'), "-q")
    try:
        poll(lambda: any(command.cwd.glob("runs/*/environments/a/trace.bin")), "the first episode", 60)
        done = command("run", "--resume", "latest")
        assert done.returncode == 2
        assert f"this one is running (process {process.pid})" in done.stderr
        # Not even a manifest that is damaged makes a running one look dead.
        (run,) = (command.cwd / "runs").iterdir()
        (run / "manifest.json").write_bytes(b"{")
        done = command("run", "--resume", str(run))
        assert done.returncode == 2
        assert "another process is writing to this one" in done.stderr
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["latest"], "has none"), (["latest", "x.toml"], "expected no CONFIG"), (["latest", "--seed", "0"], "no --seed")],
)
def test_wrong_usage_is_said_in_words(command, arguments: list[str], words: str) -> None:
    done = command("run", "--resume", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_what_had_failed_stays_failed_and_a_command_runs_again(command) -> None:
    ending = 'id = "ended"\ncommand = ["sh", "-c", "echo once >> /out/log; exit 4"]'
    running_ = 'id = "cmd"\ncommand = ["sh", "-c", "echo again >> /out/log; test -e /out/go || sleep 3600"]'
    config = command.config(
        'id = "bad"\nenv = "misbehaving:Raises"', ending, running_, 'id = "a"\nenv = "misbehaving:Fine"\nepisodes = 2'
    )
    process = command.start("run", config, "-q")

    def stands() -> bool:
        assert process.poll() is None, process.communicate()
        events = [e for p in command.cwd.glob("runs/*/events.jsonl") for e in read_events(p)[0]]
        ends = {e.env_id for e in events if e.kind in ("env_failed", "env_done")}
        return ends == {"bad", "ended", "a"} and any(command.cwd.glob("runs/*/environments/cmd/out/log"))

    try:
        poll(stands, "everything but the command to end", 60)
    finally:
        process.kill()
        process.communicate()
    (path,) = (command.cwd / "runs").iterdir()
    (path / "environments/cmd/out/go").touch()
    summary, stderr = resume(command, code=1)
    states = {e["id"]: e["state"] for e in summary["environments"]}
    assert states == {"bad": "failed", "ended": "failed", "cmd": "done", "a": "done"}
    assert summary["environments"][0]["cause"]["kind"] == "exception"
    assert summary["environments"][1]["exit_code"] == 4
    assert "cmd: the command had not ended and runs again" in stderr
    assert (path / "environments/ended/out/log").read_text() == "once\n"
    assert (path / "environments/cmd/out/log").read_text() == "again\nagain\n"


DAMAGE = ["episodes.jsonl", "trace.bin", "manifest.json", "resume.0", "resume.1", "events.jsonl", "config.toml"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_damaged_files_cost_no_more_than_they_held(command, how: str) -> None:
    config = command.config(GRID.replace("episodes = 60", "episodes = 100"), LEARNER)
    expected = reference(command, config)
    run = kill_in_the_middle(command, config, env_id="g-0", size=6000)
    draw = random.Random(5)
    for name in DAMAGE:
        kept = command.cwd / "damaged" / run.path.name
        shutil.copytree(run.path, kept)
        files = [*kept.rglob(name)]
        assert files, name
        for file in files:
            data = bytearray(file.read_bytes())
            if how == "flip":
                for _ in range(3):
                    bit = draw.randrange(len(data) * 8)
                    data[bit // 8] ^= 1 << bit % 8
            else:
                del data[draw.randrange(len(data)) :]
            file.write_bytes(data)
        done = command("run", "--resume", str(kept), "-q")
        assert done.returncode == 0, f"{name}: {done.stderr}"
        assert "Traceback" not in done.stderr
        found = episodes(kept)
        if name == "trace.bin" and found["l"] != expected["l"]:
            # The memory of a policy is in the trace: where that is lost, the policy is a new one, and that is said.
            assert "what it remembered was not recorded" in done.stderr
            found["l"] = expected["l"]
        assert found == expected, name
        shutil.rmtree(kept.parent)


SMALL = """
set -e
mount -t tmpfs -o size=2m,mode=755 tmpfs "$1"
head -c "$2" /dev/zero > "$1/filler" 2> /dev/null || true
set +e
"${@:3}" run test.toml --run-dir "$1" -q
echo "code $?"
rm "$1/filler"
mount -o remount,size=64m "$1"
"${@:3}" run --resume latest --run-dir "$1" -q
echo "code $?"
cp -r "$1" kept
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("filler", "code"), [(1_400_000, 0), (1_980_000, 3)])
def test_a_disk_of_two_megabytes(command, filler: int, code: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs of 2 MB needs root: run the tests as root")
    config = command.config(GRID.replace("episodes = 60", "episodes = 300"), LEARNER)
    expected = reference(command, config)
    disk = command.cwd / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", SMALL, "-", str(disk), str(filler),
         *command.argv()],
        cwd=command.cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    assert done.stdout.split("\n")[:2] == [f"code {code}", "code 0"], f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    if code:
        assert "no room" in done.stderr
    (run,) = [path for path in (command.cwd / "kept").iterdir() if path.is_dir()]
    assert episodes(run) == expected
    assert not any(disk.iterdir()), "the mount was private"
