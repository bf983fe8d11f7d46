"""Arguments that GridWorld refuses, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from agentenv.envs.gridworld import GridWorld


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "size: expected 2 to 1000000 cells in all, got 1x1 = 1"),
        ({"size": 0}, r"size: expected an integer >= 1 or \[rows, columns\], got 0"),
        ({"size": True}, "size: expected an integer"),
        ({"size": "5"}, "size: expected an integer"),
        ({"size": [3, 4, 5]}, "size: expected an integer"),
        ({"size": 5.0}, "size: expected an integer"),
        ({"size": 1001}, "size: expected 2 to 1000000 cells"),
        ({"walls": [[5, 0]]}, r"walls\[0\]: expected a cell within 0..4, 0..4, got \[5, 0\]"),
        ({"walls": [[1, 1], [1, 1]]}, r"walls\[1\]: cell \[1, 1\] is already used by walls\[0\]"),
        ({"walls": [[0, 0]]}, r"walls\[0\]: cell \[0, 0\] is already used by start"),
        ({"walls": [[1]]}, r"walls\[0\]: expected a cell \[row, column\], got \[1\]"),
        ({"walls": [3]}, r"walls\[0\]: expected a cell"),
        ({"walls": 1.5}, "walls: expected a list of cells, a count, or a share of the cells from 0 to 1, got 1.5"),
        ({"walls": -1}, "walls: expected an integer from 0"),
        ({"walls": True}, "walls: expected a list of cells"),
        ({"walls": "many"}, "walls: expected a list of cells"),
        ({"walls": 24}, "start, walls, goals and traps need 26 cells, size 5x5 has 25"),
        ({"walls": 23}, "no solvable layout of 5x5 cells with 23 walls and 0 traps"),
        ({"walls": [[0, 1], [1, 0]]}, r"goal \(4, 4\) cannot be reached from start \(0, 0\)"),
        ({"goals": []}, "goals: expected at least one"),
        ({"goals": 0}, "goals: expected at least one"),
        ({"goals": "corner"}, "goals: expected a count or a list"),
        ({"goals": [[4, 4, "x"]]}, r"goals\[0\] reward: expected a number, got 'x'"),
        ({"goals": [[0, 0]]}, r"goals\[0\]: cell \[0, 0\] is already used by start"),
        ({"size": [1, 3], "goals": [[0, 1], [0, 2]]}, r"goal \(0, 2\) cannot be reached"),
        ({"size": [1, 3], "traps": [[0, 1]]}, r"goal \(0, 2\) cannot be reached"),
        ({"traps": [[4, 4]]}, r"traps\[0\]: cell \[4, 4\] is already used by goals\[0\]"),
        ({"start": [0, 0, 0]}, "start: expected a cell"),
        ({"slip": 1.1}, "slip: expected a number from 0 to 1, got 1.1"),
        ({"slip": float("nan")}, "slip: expected a number from 0 to 1, got nan"),
        ({"step_reward": None}, "step_reward: expected a number, got None"),
        ({"goal_reward": float("inf")}, "goal_reward: expected a number, got inf"),
        ({"trap_reward": True}, "trap_reward: expected a number, got True"),
        ({"observation": "pixels"}, "observation: expected one of index, coordinates, image, got 'pixels'"),
        ({"layout_seed": -1}, "layout_seed: expected an integer from 0"),
        ({"layout_seed": 1.0}, "layout_seed: expected an integer from 0"),
        ({"relayout": 1}, "relayout: expected true or false, got 1"),
        ({"relayout": True, "layout_seed": 1}, "contradict each other"),
        ({"tile_px": 0}, "tile_px: expected an integer from 1 to 256, got 0"),
        ({"render_mode": "human"}, "render_mode: expected ansi, rgb_array or None, got 'human'"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GridWorld(**arguments)
