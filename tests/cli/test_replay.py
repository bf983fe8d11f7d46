"""``agentenv replay``: the same again, or the first step that differs, and in what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.fleet.rundir import RunDir

SEEDED = 'id = "a"\nenv = "wayward:Seeded"\nepisodes = 3\nenv_kwargs = { length = 8 }'
GRID = 'id = "g"\nenv = "agentenv/GridWorld-v0"\nepisodes = 2\nenv_kwargs = { size = 5 }'


def replay(command, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = command("replay", "latest", "--json", *arguments)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_everything_is_the_same_again(command) -> None:
    summary = command.run(command.config(SEEDED, GRID, 'id = "c"\nenv = "Pendulum-v1"\nmax_episode_steps = 30'))
    found = replay(command, "--verify")
    assert found["same"]
    assert [(one["env_id"], one["episode"]) for one in found["episodes"]] == [
        ("a", 0), ("a", 1), ("a", 2), ("g", 0), ("g", 1), ("c", 0),
    ]  # fmt: skip
    assert sum(one["steps"] for one in found["episodes"]) == summary["steps"]
    returns = [one["return"] for one in found["episodes"] if one["env_id"] == "c"]
    assert returns == [summary["environments"][2]["return_mean"]]
    assert all(one["whole"] for one in found["episodes"])


def test_one_episode_of_one_environment(command) -> None:
    command.run(command.config(SEEDED, GRID))
    (one,) = replay(command, "--env", "a", "--episode", "1")["episodes"]
    assert (one["env_id"], one["episode"], one["steps"]) == ("a", 1, 8)


@pytest.mark.parametrize(
    ("env", "step", "what"),
    [("Unseeded", 3, ["observation['noise']"]), ("Clock", 1, ["info"])],
)
def test_the_first_step_that_differs_and_in_what(command, env: str, step: int, what: list[str]) -> None:
    command.run(command.config(f'id = "a"\nenv = "wayward:{env}"\nepisodes = 2'))
    found = replay(command, "--verify", code=1)
    assert not found["same"]
    for one in found["episodes"]:
        assert (one["difference"]["step"], one["difference"]["what"]) == (step, what)
    assert not replay(command)["same"], "without --verify it is reported, and no failure"
    told = command("replay", "latest", "--verify")
    assert told.returncode == 1
    assert f"differs at step {step}" in told.stdout
    assert replay(command, "--verify", "--ignore-info", code=0 if env == "Clock" else 1)["same"] is (env == "Clock")


def change_environment(command, old: str, new: str) -> None:
    """Change the code of the environment between the run and its replay."""
    path = command.cwd / "changing.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "step", "what"),
    [
        ("reward = 1.0", "reward = 1.0 + (n == 4)", 4, ["reward"]),
        ("n >= 6, False", "n >= 6, n == 5", 5, ["truncated"]),
        ("Discrete(3)", "MultiDiscrete([3, 3])", None, ["spaces"]),
        ("reward = 1.0", "reward = 1.0 / (n - 2)", 1, ["reward"]),
        ("reward = 1.0", "reward = 1.0 if n < 3 else [][0]", 3, ["failure"]),
    ],
)
def test_changed_code_is_found(command, old: str, new: str, step: int | None, what: list[str]) -> None:
    (command.cwd / "changing.py").write_text(
        "import gymnasium, numpy as np\nfrom gymnasium import spaces\n"
        "class Env(gymnasium.Env):\n"
        "    observation_space = spaces.Discrete(10)\n"
        "    action_space = spaces.Discrete(3)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed); self.n = 0\n        return 0, {}\n"
        "    def step(self, action):\n"
        "        self.n = n = self.n + 1\n        reward = 1.0\n"
        "        return n, reward, n >= 6, False, {}\n"
    )
    command.run(command.config('id = "a"\nenv = "changing:Env"'))
    assert replay(command, "--verify")["same"]
    change_environment(command, old, new)
    (one,) = replay(command, "--verify", code=1)["episodes"]
    assert (one["difference"]["step"], one["difference"]["what"]) == (step, what)


def test_pictures(command) -> None:
    pil = pytest.importorskip("PIL.Image", reason="drawing needs Pillow: pip install pillow")
    command.run(command.config(GRID))
    (one,) = replay(command, "--render", "a.gif")["episodes"]
    with pil.open(command.cwd / "a.gif") as image:
        first = image.convert("RGB").tobytes()
        shown_ms = []
        for number in range(image.n_frames):
            image.seek(number)
            shown_ms.append(image.info["duration"])
        assert image.convert("RGB").tobytes() != first
    # Equal frames in a row are one, shown for longer.
    assert sum(shown_ms) == min(shown_ms) * (one["steps"] + 1)
    replay(command, "--render", "a.png", "--episode", "0", "--env", "g")
    with pil.open(command.cwd / "a.png") as image:
        assert image.size[0] == image.size[1] >= 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "b"], "it has a"),
        (["--episode", "9"], "expected recorded episode 9"),
        (["--render", "a.jpg"], ".gif or .png"),
        (["--render", "nowhere/a.gif"], "folder that exists"),
        (["--render", "a.png"], "only environments with the render mode rgb_array"),
    ],
)
def test_wrong_usage_is_said_in_words(command, arguments: list[str], words: str) -> None:
    command.run(command.config(SEEDED))
    done = command("replay", "latest", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(command.cwd.glob("a.*"))


def test_a_run_is_only_read(command) -> None:
    summary = command.run(command.config(SEEDED))
    path = Path(summary["run_dir"])
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    replay(command, "--verify")
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert [run.name for run in path.parent.iterdir()] == [path.name]


def test_damage_is_found_by_checksum_and_costs_one_episode(command) -> None:
    summary = command.run(command.config(SEEDED))
    trace = RunDir.open(Path(summary["run_dir"])).environment("a").trace
    data = bytearray(trace.read_bytes())
    data[len(data) // 2] ^= 4
    trace.write_bytes(data)
    found = replay(command, "--verify", code=1)
    assert [one["episode"] for one in found["episodes"]] == [0, 2]
    assert [one["difference"] for one in found["episodes"]] == [None, None]
    assert not found["same"]
    (said,) = found["damaged"]
    assert said.startswith(f"{trace}: ")
    assert "episode 1;" in said
    told = command("replay", "latest")
    assert (told.returncode, "2 episodes, 16 steps: the same, as far as the record can be read" in told.stdout) == (
        0,
        True,
    )
    assert replay(command, "--verify", "--episode", "2")["same"], "what is asked for is whole"
    lost = command("replay", "latest", "--episode", "1")
    assert (lost.returncode, lost.stdout, f"agentenv: {trace}: " in lost.stderr) == (1, "", True)


def test_the_id_of_a_table_stands_for_all_of_its_environments(command) -> None:
    command.run(command.config(SEEDED.replace("episodes = 3", "episodes = 1\ncount = 2"), GRID))
    found = replay(command, "--env", "a")
    assert [one["env_id"] for one in found["episodes"]] == ["a-0", "a-1"]
    assert [line for line in command("logs", "latest", "a").stdout.splitlines() if line.startswith("==>")] == [
        "==> a-0 <==",
        "==> a-1 <==",
    ]
    assert command("crashes", "latest", "a").returncode == 0
    for wrong in (["crashes", "latest", "a", "1"], ["logs", "latest", "g-0"]):
        done = command(*wrong)
        assert done.returncode == 2
        assert "expected an environment of run" in done.stderr
    assert "did you mean 'a-0'?" in command("crashes", "latest", "a", "1").stderr


def test_an_episode_that_was_never_played_is_not_one_that_gave_way(command) -> None:
    command.run(command.config(SEEDED, GRID))
    name = next((command.cwd / "runs").iterdir()).name
    done = command("replay", "latest", "--episode", "99")
    assert (done.returncode, "trace_mb" in done.stderr) == (2, False)
    assert f"expected recorded episode 99, {name} played 0 to 2" in done.stderr
    assert "played 0 to 1" in command("replay", "latest", "--env", "g", "--episode", "2").stderr


def test_programs_have_no_episodes_to_replay(command) -> None:
    command.run(command.config('id = "a"\ncommand = ["true"]'))
    done = command("replay", "latest")
    assert (done.returncode, "trace_mb" in done.stderr) == (2, False)
    assert "commands have no episodes" in done.stderr


def test_a_soak_is_told_from_a_run_that_cannot_go_on(command) -> None:
    run = RunDir.create(command.cwd / "runs", "test-soak", "1-2-3")
    run.samples.touch()
    done = command("replay", "latest")
    assert (done.returncode, "go on" in done.stderr) == (2, False)
    assert "this is a soak, which steps and measures only" in done.stderr


def test_a_file_in_the_place_of_the_directory_of_all_runs(command) -> None:
    command.config(SEEDED, name="c.toml")
    for arguments in (["runs"], ["replay", "latest"]):
        done = command(*arguments, "--run-dir", "c.toml")
        assert (done.returncode, done.stdout) == (2, "")
        assert "expected the directory of all runs, 'c.toml' is a file" in done.stderr
    assert command("runs", "--run-dir", "nowhere").stdout == "no runs in nowhere\n"
