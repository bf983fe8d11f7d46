"""Layouts: always solvable, with exactly what was asked for, drawn when the documentation says so."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.gridworld import GridWorld
from agentenv.envs.gridworld_layout import Layout, unreachable_goals
from agentenv.envs.gridworld_request import read_request


def layout_after(env: GridWorld, **reset: Any) -> Layout:
    env.reset(**reset)
    return env.layout


@given(
    rows=st.integers(1, 9),
    columns=st.integers(2, 9),
    walls=st.integers(0, 60),
    traps=st.integers(0, 20),
    goals=st.integers(1, 3),
    fixed_start=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_drawn_layouts_hold_what_was_asked_for_and_are_solvable(
    rows: int, columns: int, walls: int, traps: int, goals: int, fixed_start: bool, seed: int
) -> None:
    start = (0, 0) if fixed_start else None
    try:
        request = read_request(
            size=(rows, columns), walls=walls, goals=goals, traps=traps, start=start, goal_reward=2, trap_reward=-3
        )
        layout = request.draw(np.random.default_rng(seed))
    except ValueError:
        # Refusing is right only where it is crowded: half of the cells free is always enough on two rows and more.
        assert min(rows, columns) == 1 or 2 * (walls + traps + goals + 1) > rows * columns
        return
    special = [layout.start, *layout.walls, *layout.goals, *layout.traps]
    assert len(special) == len(set(special)) == 1 + walls + goals + traps
    assert len(layout.walls) == walls
    assert list(layout.goals.values()) == [2.0] * goals
    assert list(layout.traps.values()) == [-3.0] * traps
    assert not fixed_start or layout.start == 0
    assert reachable_by_brute_force(layout) >= set(layout.goals)


def reachable_by_brute_force(layout: Layout) -> set[int]:
    """Spread from the start over row and column differences, by another way than the code under test."""
    blocked = set(layout.walls)
    ends = set(layout.goals) | set(layout.traps)
    reached = {layout.start}
    for _ in range(layout.rows * layout.columns):
        for cell in range(layout.rows * layout.columns):
            row, column = divmod(cell, layout.columns)
            for other in reached - ends:
                distance = abs(row - other // layout.columns) + abs(column - other % layout.columns)
                if distance == 1 and cell not in blocked:
                    reached = reached | {cell}
                    break
    return reached


def test_crowded_grids_are_still_solved_with_the_fewest_free_cells() -> None:
    # 5x5 from corner to corner needs 9 cells: 16 walls fit exactly, 17 cannot.
    layout = GridWorld(walls=16, layout_seed=4).layout
    assert len(layout.walls) == 16
    assert not unreachable_goals(layout)
    with pytest.raises(ValueError, match="no solvable layout"):
        GridWorld(walls=17, layout_seed=4)


def test_unreachable_goals_sees_traps_and_other_goals_as_ends() -> None:
    row = {"rows": 1, "columns": 4, "start": 0, "walls": frozenset[int]()}
    assert unreachable_goals(Layout(**row, goals={3: 1.0}, traps={})) == frozenset()  # type: ignore[arg-type]  # a row
    assert unreachable_goals(Layout(**row, goals={3: 1.0}, traps={1: 0.0})) == {3}  # type: ignore[arg-type]  # a row
    assert unreachable_goals(Layout(**row, goals={2: 1.0, 3: 1.0}, traps={})) == {3}  # type: ignore[arg-type]  # a row


def test_layout_seed_fixes_the_layout() -> None:
    env = GridWorld(size=8, walls=0.3, traps=3, layout_seed=1)
    first = env.layout
    assert layout_after(env, seed=5) == layout_after(env) == layout_after(env, seed=6) == first
    assert GridWorld(size=8, walls=0.3, traps=3, layout_seed=1).layout == first
    assert GridWorld(size=8, walls=0.3, traps=3, layout_seed=2).layout != first


def test_without_a_layout_seed_the_reset_seed_draws_it() -> None:
    env = GridWorld(size=8, walls=0.3, traps=3)
    with pytest.raises(gym.error.ResetNeeded, match="call it first"):
        _ = env.layout
    first = layout_after(env, seed=5)
    assert layout_after(env) == first
    assert layout_after(env, seed=6) != first
    assert layout_after(env, seed=5) == first
    assert layout_after(GridWorld(size=8, walls=0.3, traps=3), seed=5) == first


def test_unseeded_environments_differ() -> None:
    layouts = [layout_after(GridWorld(size=8, walls=0.3, traps=3)) for _ in range(4)]
    assert any(layout != layouts[0] for layout in layouts[1:])


def test_relayout_draws_a_new_layout_each_reset() -> None:
    env = GridWorld(size=8, walls=0.3, traps=3, relayout=True)
    layouts = [layout_after(env, seed=5), layout_after(env), layout_after(env)]
    assert layouts[0] != layouts[1] != layouts[2]
    again = GridWorld(size=8, walls=0.3, traps=3, relayout=True)
    assert [layout_after(again, seed=5), layout_after(again), layout_after(again)] == layouts


def test_share_of_walls_is_of_all_cells() -> None:
    assert len(GridWorld(size=10, walls=0.25, layout_seed=0).layout.walls) == 25
    assert len(GridWorld(size=10, walls=0.0).layout.walls) == 0


def test_explicit_cells_are_kept_beside_drawn_ones() -> None:
    env = GridWorld(size=4, walls=[[1, 1]], traps=3, goals=[[3, 3, 2.5], [0, 3]], layout_seed=7)
    assert env.layout.walls == {5}
    assert env.layout.goals == {15: 2.5, 3: 1.0}
    assert len(env.layout.traps) == 3
