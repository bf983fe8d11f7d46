"""Policies: found by name, made once an environment, mistakes told as the user's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gymnasium.spaces import Box, Discrete

from agentenv.errors import ConfigError
from agentenv.fleet.policies import PolicyError, find_policy, make_policy

OBSERVATIONS, ACTIONS = Box(0, 1, (2,)), Discrete(5)


def make(found, seed: int = 0):
    return make_policy(found, OBSERVATIONS, ACTIONS, seed=seed, action_seed=3)


def test_random_needs_no_policy_and_seeds_the_actions(tmp_path: Path) -> None:
    assert find_policy("random", tmp_path) is None
    draws = []
    for _ in range(2):
        assert make(None) is None
        draws.append([ACTIONS.sample() for _ in range(10)])
    assert draws[0] == draws[1]


def test_found_in_the_directory_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "my_policy_module.py").write_text(
        "class Inner:\n    @staticmethod\n    def act(o, s):\n        return 2\n"
    )
    before = list(sys.path)
    policy = make(find_policy("my_policy_module:Inner.act", tmp_path))
    assert policy is not None
    assert policy(OBSERVATIONS.sample()) == 2
    assert sys.path == before


def test_a_class_is_made_once_with_the_spaces_and_the_seed() -> None:
    made = []

    class Counting:
        def __init__(self, observation_space: object, action_space: object, seed: int) -> None:
            made.append((observation_space, action_space, seed))
            self.calls = 0

        def __call__(self, observation: object, action_space: object) -> int:
            self.calls += 1
            return self.calls

    policy = make(Counting, seed=8)
    assert policy is not None
    assert [policy(None) for _ in range(3)] == [1, 2, 3]
    assert made == [(OBSERVATIONS, ACTIONS, 8)]


UNSPEAKABLE = """
class Unspeakable(Exception):
    def __str__(self):
        raise ValueError
raise Unspeakable
"""


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (None, "no_such_module_anywhere:act", "no module 'no_such_module_anywhere'"),
        ("x = 1", "{m}:act", "has no 'act'"),
        ("act = 3", "{m}:act", "expected a callable, got int"),
        ("1 / 0", "{m}:act", "ZeroDivisionError"),
        ("import no_such_dependency_anywhere", "{m}:act", "no_such_dependency_anywhere"),
        ("import math; math.no_such_function", "{m}:act", "importing it raised AttributeError"),
        ("raise SystemExit(0)", "{m}:act", "importing it raised SystemExit: 0"),
        (UNSPEAKABLE, "{m}:act", r"importing it raised Unspeakable: <its str\(\) raised ValueError>"),
    ],
)
def test_what_cannot_be_imported(
    tmp_path: Path, request: pytest.FixtureRequest, source: str | None, name: str, words: str
) -> None:
    module = f"policy_{abs(hash(request.node.name))}"
    if source is not None:
        (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(ConfigError, match=words):
        find_policy(name.format(m=module), tmp_path)


def test_a_class_that_cannot_be_made() -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            raise KeyError("weights")

    with pytest.raises(PolicyError, match="KeyError") as caught:
        make(Broken)
    assert "Traceback" in caught.value.traceback_text
    with pytest.raises(PolicyError, match="SystemExit: 3"):
        make(type("Leaving", (), {"__init__": lambda self, *_: sys.exit(3)}))
    with pytest.raises(PolicyError, match="__call__"):
        make(type("NotCallable", (), {"__init__": lambda self, *_: None}))
