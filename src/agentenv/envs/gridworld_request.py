"""Reads GridWorld's keyword arguments, as Python or TOML gives them, into a `LayoutRequest`.

Everything a user can get wrong about a grid is found here, before anything is drawn: each mistake is a ValueError that
names the argument, what was expected and what came. Nothing is clipped or rounded into range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from agentenv.envs.gridworld_layout import LayoutRequest
from agentenv.errors import counted

if TYPE_CHECKING:  # an image's Python may be older
    from typing import TypeGuard

# A cell as (row, column); with a reward behind it for goals and traps.
Cell = Sequence[int]
RewardCell = Sequence[float]

# A million cells keep every table within tens of MB.
MAX_CELLS = 1_000_000


def read_request(
    *,
    size: int | Sequence[int],
    walls: float | Sequence[Cell],
    goals: int | Sequence[RewardCell] | None,
    traps: int | Sequence[RewardCell],
    start: Cell | None,
    goal_reward: float,
    trap_reward: float,
) -> LayoutRequest:
    """Check a grid's description.

    Args:
        size: Side length, or (rows, columns).
        walls: Cells, or a count (int), or the share of all cells (float below 1).
        goals: Cells with an optional reward each, or a count; None is the corner opposite the origin.
        traps: Cells with an optional reward each, or a count.
        start: A cell, or None to draw it.
        goal_reward: Reward of goals that name none.
        trap_reward: Reward of traps that name none.

    Raises:
        ValueError: An argument is not what it should be, two of them claim one cell, or they do not fit.
    """
    rows, columns = _read_size(size)
    goal_reward = read_number("goal_reward", goal_reward)
    trap_reward = read_number("trap_reward", trap_reward)
    taken: dict[int, str] = {}

    def cell_of(name: str, value: object) -> int:
        if not _is_list(value) or len(value) != 2 or not all(_is_int(part) for part in value):
            raise ValueError(f"{name}: expected a cell [row, column], got {value!r}")
        row, column = int(value[0]), int(value[1])
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"{name}: expected a cell within 0..{rows - 1}, 0..{columns - 1}, got {[row, column]}")
        cell = row * columns + column
        if cell in taken:
            raise ValueError(
                f"{name}: cell {[row, column]} is already used by {taken[cell]}; each cell holds one thing"
            )
        taken[cell] = name
        return cell

    def rewards_of(name: str, value: object, default: float) -> dict[int, float] | int:
        if _is_int(value):
            return _read_count(name, value)
        if not _is_list(value):
            raise ValueError(
                f"{name}: expected a count or a list of [row, column] or [row, column, reward], got {value!r}"
            )
        found: dict[int, float] = {}
        for number, entry in enumerate(value):
            place = f"{name}[{number}]"
            with_reward = _is_list(entry) and len(entry) == 3
            cell = cell_of(place, entry[:2] if with_reward else entry)
            found[cell] = read_number(f"{place} reward", entry[2]) if with_reward else default
        return found

    start_cell = None if start is None else cell_of("start", start)
    goal_cells = rewards_of("goals", [[rows - 1, columns - 1]] if goals is None else goals, goal_reward)
    if not goal_cells:
        raise ValueError(f"goals: expected at least one, got {goals!r}")
    trap_cells = rewards_of("traps", traps, trap_reward)
    if _is_list(walls):
        wall_cells: frozenset[int] | int = frozenset(cell_of(f"walls[{n}]", wall) for n, wall in enumerate(walls))
    elif _is_int(walls):
        wall_cells = _read_count("walls", walls)
    else:
        share = read_number(
            "walls", walls, low=0.0, high=1.0, expected="a list of cells, a count, or a share of the cells"
        )
        wall_cells = round(share * rows * columns)

    counts = [part for part in (wall_cells, goal_cells, trap_cells) if isinstance(part, int)]
    needed = len(taken) + sum(counts) + (start_cell is None)
    if needed > rows * columns:
        raise ValueError(
            f"start, walls, goals and traps need {counted(needed, 'cell')}, size {rows}x{columns} has {rows * columns}"
        )
    return LayoutRequest(rows, columns, start_cell, wall_cells, goal_cells, trap_cells, goal_reward, trap_reward)


def read_number(
    name: str, value: object, *, low: float = -math.inf, high: float = math.inf, expected: str = "a number"
) -> float:
    """Return a finite real number within ``[low, high]`` as a float.

    Raises:
        ValueError: It is not one; booleans are not numbers here.
    """
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and low <= number <= high):
        bounds = f" from {low:g} to {high:g}" if math.isfinite(low) else ""
        raise ValueError(f"{name}: expected {expected}{bounds}, got {value!r}")
    return number


def read_count(name: str, value: object, *, low: int, high: int) -> int:
    """Return an integer within ``[low, high]``.

    Raises:
        ValueError: It is not one; booleans and floats are not integers here.
    """
    if not _is_int(value) or not low <= value <= high:
        raise ValueError(f"{name}: expected an integer from {low} to {high}, got {value!r}")
    return int(value)


def _read_count(name: str, value: object) -> int:
    return read_count(name, value, low=0, high=MAX_CELLS)


def _read_size(size: object) -> tuple[int, int]:
    pair = [size, size] if _is_int(size) else size
    if not _is_list(pair) or len(pair) != 2 or not all(_is_int(side) and side >= 1 for side in pair):
        raise ValueError(f"size: expected an integer >= 1 or [rows, columns], got {size!r}")
    rows, columns = int(pair[0]), int(pair[1])
    if not 2 <= rows * columns <= MAX_CELLS:
        raise ValueError(f"size: expected 2 to {MAX_CELLS} cells in all, got {rows}x{columns} = {rows * columns}")
    return rows, columns


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
