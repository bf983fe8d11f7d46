"""Every file in examples/ runs as a user would run it, and leaves what it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
CONFIGS = {
    "gridworld": [f"grid-{n}" for n in range(10)],
    "multi_agent": [f"agent_{n}" for n in range(1, 11)],
    "continuous": ["cheetah", "pendulum-0", "pendulum-1"],
    "command": ["careful", "hasty"],
    "firecracker": ["cartpole", "gridworld"],
    "chaos": [f"{name}-{n}" for name in ("grid", "cartpole") for n in range(3)],
}
SCRIPTS = {"q_learning.py", "ppo_sb3.py", "train.py", "tree_search.py"}
SHORT = """\
[global]
seed = 3
max_parallel_envs = 2

[global.defaults]
max_restarts = 1000
restart_backoff_s = 0

[[environments]]
id = "grid"
env_kwargs = { slip = 0.1 }
episodes = 15

[[environments]]
id = "cartpole"
env = "CartPole-v1"
episodes = 30
"""


def run(*arguments: str, cwd: Path) -> str:
    """Run this interpreter to the end and return its stdout; what it wrote to stderr is in the failure."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "SB3_LOGDIR": str(cwd)},  # Stable-Baselines3 makes a folder that stays
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_config(name: str, tmp_path: Path) -> Path:
    """Run a configuration through the command line; return the one run directory it made."""
    command = "import sys; from agentenv.cli import main; sys.exit(main())"
    out = run(
        "-c",
        command,
        "run",
        str(EXAMPLES / f"{name}.toml"),
        "--run-dir",
        str(tmp_path / "runs"),
        "--json",
        cwd=tmp_path,
    )
    json.loads(out)
    (run_dir,) = (tmp_path / "runs").iterdir()
    return run_dir


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.toml")} == {f"{name}.toml" for name in CONFIGS}
    assert {path.name for path in EXAMPLES.glob("*.py")} == SCRIPTS


@pytest.mark.parametrize("name", ["gridworld", "multi_agent", "continuous", "chaos"])
def test_configurations_play_every_episode(name: str, tmp_path: Path) -> None:
    from agentenv.config import load_config

    if name == "continuous":
        pytest.importorskip("mujoco", reason='needs MuJoCo: pip install "gymnasium[mujoco]"')
    run_dir = run_config(name, tmp_path)
    environments = load_config(EXAMPLES / f"{name}.toml").expand()
    assert [environment.id for environment in environments] == CONFIGS[name]
    seeds = set()
    for environment in environments:
        (log,) = run_dir.rglob(f"{environment.id}/episodes.jsonl")
        episodes = [json.loads(line) for line in log.read_bytes().split(b"\n") if line]
        assert len(episodes) == environment.episodes
        assert all(episode["length"] >= 1 for episode in episodes)
        seeds.add(episodes[0]["seed"])
    assert len(seeds) == len(environments), "every environment has a seed of its own"


def test_command_learns_the_optimum_and_its_files_are_kept(tmp_path: Path) -> None:
    run_dir = run_config("command", tmp_path)
    for env_id, seed in (("careful", 1), ("hasty", 2)):
        (file,) = (path for path in run_dir.rglob("result.json") if env_id in path.parts)
        result = json.loads(file.read_bytes())
        assert result["seed"] == seed
        assert result["greedy_return"] == pytest.approx(result["optimal_return"])
        (log,) = run_dir.rglob(f"{env_id}/stdout.log")
        assert b"greedy return" in log.read_bytes()


def test_train_runs_outside_a_sandbox_too(tmp_path: Path) -> None:
    assert "optimum 0.910" in run(str(EXAMPLES / "train.py"), str(tmp_path), cwd=tmp_path)
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["greedy_return"] == pytest.approx(result["optimal_return"])


def test_q_learning_gets_better(tmp_path: Path) -> None:
    out = run(str(EXAMPLES / "q_learning.py"), cwd=tmp_path)
    first, last = numbers(r"first 50 episodes (\S+), of the last 50 (\S+)", out)
    assert last > first + 0.3


def test_ppo_gets_better(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3", reason='needs Stable-Baselines3: pip install "agentenv[sb3]"')
    out = run(str(EXAMPLES / "ppo_sb3.py"), cwd=tmp_path)
    first, last = numbers(r"first 20 episodes (\S+), of the last 10 after \d+ steps (\S+)", out)
    assert last > 3 * first


def test_tree_search_beats_the_greedy_player_and_says_how_fast_it_forks(tmp_path: Path) -> None:
    out = run(str(EXAMPLES / "tree_search.py"), "2", cwd=tmp_path)
    for game, factor, added in (("GridWorld", 1.0, 0.5), ("CartPole", 1.5, 0.0)):
        pattern = rf"{game}: .* search (\S+), greedy (\S+); (\S+) branches at (\S+) a second, 2 processes at (\S+) a"
        search, greedy, branches, rate, forks = numbers(pattern, out)
        assert search >= factor * greedy + added
        assert branches >= 100
        assert rate > 0
        assert forks > 0


def test_the_demonstration_of_kills_sees_the_same_and_would_see_a_difference(tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text(SHORT)
    demo = str(ROOT / "tools" / "demo_chaos.py")
    out = run(demo, "--config", str(tmp_path / "short.toml"), "--run-dir", "runs", "--step-ms", "6", cwd=tmp_path)
    kills, restarts, episodes = numbers(r"SAME: (\d+) kills, (\d+) restarts, all (\d+) episodes", out)
    assert kills >= 1
    assert restarts >= 1
    assert episodes == 45
    quiet, killed = (Path(found) for found in re.findall(r"(?:quiet|killed) run: ([^\s;]+)", out))
    log = tmp_path / killed / "environments" / "cartpole" / "episodes.jsonl"
    records = log.read_bytes()
    digest = re.findall(rb'"digest":"(\w+)"', records)[7]
    log.write_bytes(records.replace(digest, b"0" * len(digest)))
    compare = (
        "import sys, collections, pathlib, rich.console; sys.path.insert(0, sys.argv[1]); import demo_chaos;"
        " one, other = map(pathlib.Path, sys.argv[2:]);"
        " print(demo_chaos.compare(one, other, collections.Counter(), rich.console.Console()))"
    )
    again = run("-c", compare, str(ROOT / "tools"), str(quiet), str(killed), cwd=tmp_path)
    assert "DIFFERENT: 1 of 45 episodes" in again
    assert again.endswith("1\n")


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found, text
    return [float(group.replace(",", "")) for group in found.groups()]
