"""``agentenv diff``: two runs are the same, or where they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SEEDED = 'id = "a"\nenv = "wayward:Seeded"\nepisodes = 3'


def diff(command, first: str, second: str, *arguments: str, code: int) -> dict[str, Any]:
    done = command("diff", first, second, "--json", *arguments)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run(command, *tables: str, into: str, arguments: tuple[str, ...] = ()) -> str:
    return str(command.run(command.config(*tables), "--run-dir", into, *arguments)["run_dir"])


def test_the_same_twice_whatever_the_runtime(command) -> None:
    one = run(command, SEEDED, 'id = "b"\nenv = "CartPole-v1"\ncount = 2', into="one")
    two = run(
        command, SEEDED, 'id = "b"\nenv = "CartPole-v1"\ncount = 2', into="two", arguments=("--runtime", "process")
    )
    found = diff(command, one, two, code=0)
    assert (found["same"], found["environments"], found["episodes"], found["differences"]) == (True, 3, 5, [])
    assert any(condition.startswith("runtime: ") for condition in found["conditions"])


@pytest.mark.parametrize(("env", "step", "what"), [("Unseeded", 3, ["observation['noise']"]), ("Clock", 1, ["info"])])
def test_where_they_part_and_in_what(command, env: str, step: int, what: list[str]) -> None:
    table = f'id = "a"\nenv = "wayward:{env}"\nepisodes = 2'
    one, two = run(command, table, into="one"), run(command, table, into="two")
    (found,) = diff(command, one, two, code=1)["differences"]
    assert (found["env_id"], found["episode"], found["step"], found["what"]) == ("a", 0, step, what)
    ignoring = diff(command, one, two, "--ignore-info", code=0 if env == "Clock" else 1)
    assert ignoring["same"] is (env == "Clock")


def test_another_policy_is_another_action(command) -> None:
    one = run(command, SEEDED, into="one")
    two = run(command, SEEDED + '\npolicy = "misbehaving:always_one"', into="two")
    (found,) = diff(command, one, two, code=1)["differences"]
    assert found["what"] == ["action"]
    assert found["episode"] == 0


def test_another_seed_more_episodes_and_other_environments(command) -> None:
    one = run(command, SEEDED, into="one")
    seeded = diff(command, one, run(command, SEEDED, into="two", arguments=("--seed", "5")), code=1)
    assert seeded["differences"][0]["what"] == ["seed"]
    assert "root seed: 1 against 5" in seeded["conditions"]
    longer = diff(command, one, run(command, SEEDED, into="three", arguments=("--episodes", "4")), code=1)
    assert longer["differences"][0]["episode"] == 3
    other = run(command, SEEDED, 'id = "b"\nenv = "misbehaving:Fine"', into="four")
    more = diff(command, one, other, code=1)
    assert [(d["env_id"], d["what"]) for d in more["differences"]] == [("b", ["environment"])]
    assert diff(command, one, other, "--env", "a", code=0)["same"]


def test_in_words(command) -> None:
    one, two = run(command, SEEDED, into="one"), run(command, SEEDED, into="two", arguments=("--seed", "5"))
    same = command("diff", one, one)
    assert (same.returncode, same.stdout) == (0, "the same: 3 episodes of 1 environment\n")
    told = command("diff", one, two)
    assert told.returncode == 1
    assert "not the same: 1 environment parts" in told.stdout
    assert "made otherwise: root seed" in told.stdout
    wrong = command("diff", one, str(Path(one) / "nothing"))
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr
