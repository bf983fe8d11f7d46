"""Where the walls, goals and traps of a GridWorld are: what was asked for, and one layout drawn from it.

Kept apart from the dynamics because the hard promise lives here: **every layout can be solved**. From the start each
goal is reached without stepping on a trap or through another goal. A request that cannot be met is refused with a
ValueError; a draw never gives back a broken layout and never changes a number it was given.

Cells are numbered row by row: cell = row * columns + column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentenv.errors import counted

# Uniform placements tried before walls are kept off a shortest route. Only crowded grids come that far.
_FREE_DRAWS = 32
# Draws with routes kept free; they differ in where random goals and the start lie.
_GUIDED_DRAWS = 64


@dataclass(frozen=True)
class Layout:
    """One concrete grid.

    Attributes:
        rows: Height in cells.
        columns: Width in cells.
        start: Cell of the agent after reset.
        walls: Cells that cannot be entered.
        goals: Cell -> reward for entering it; ends the episode.
        traps: Cell -> reward for entering it; ends the episode.
    """

    rows: int
    columns: int
    start: int
    walls: frozenset[int]
    goals: Mapping[int, float]
    traps: Mapping[int, float]

    def neighbours(self, cell: int) -> tuple[int, int, int, int]:
        """Return the cells up, right, down and left of ``cell``; at an edge or a wall, ``cell`` itself."""
        row, column = divmod(cell, self.columns)
        around = (
            cell - self.columns if row else cell,
            cell + 1 if column + 1 < self.columns else cell,
            cell + self.columns if row + 1 < self.rows else cell,
            cell - 1 if column else cell,
        )
        up, right, down, left = (cell if other in self.walls else other for other in around)
        return up, right, down, left

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as plain data; `layout_from_dict` reads it back."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "start": self.start,
            "walls": sorted(self.walls),
            "goals": [[cell, reward] for cell, reward in self.goals.items()],
            "traps": [[cell, reward] for cell, reward in self.traps.items()],
        }


@dataclass(frozen=True)
class LayoutRequest:
    """What a layout must hold: fixed cells, or how many to draw.

    Attributes:
        rows: Height in cells.
        columns: Width in cells.
        start: The start's cell, or None to draw it.
        walls: The walls, or how many to draw.
        goals: Goals with their rewards, or how many to draw.
        traps: Traps with their rewards, or how many to draw.
        goal_reward: Reward of each drawn goal.
        trap_reward: Reward of each drawn trap.
    """

    rows: int
    columns: int
    start: int | None
    walls: frozenset[int] | int
    goals: Mapping[int, float] | int
    traps: Mapping[int, float] | int
    goal_reward: float
    trap_reward: float

    @property
    def is_random(self) -> bool:
        """Whether two draws can differ."""
        return self.start is None or any(
            isinstance(part, int) and part for part in (self.walls, self.goals, self.traps)
        )

    def draw(self, rng: np.random.Generator) -> Layout:
        """Draw a layout that can be solved.

        Args:
            rng: Source of chance; untouched when nothing is random.

        Raises:
            ValueError: No such layout exists, or none was found in a crowded grid.
        """
        if not self.is_random:
            layout = self._place(rng, guided=False)
            assert layout is not None
            assert self.start is not None
            if lost := unreachable_goals(layout):
                goal, start = divmod(min(lost), self.columns), divmod(self.start, self.columns)
                raise ValueError(
                    f"goal {goal} cannot be reached from start {start}: walls, traps or another goal stand on every "
                    "way. Move or remove one of them."
                )
            return layout
        for number in range(_FREE_DRAWS + _GUIDED_DRAWS):
            layout = self._place(rng, guided=number >= _FREE_DRAWS)
            if layout is not None and not unreachable_goals(layout):
                return layout
        raise ValueError(
            f"no solvable layout of {self.rows}x{self.columns} cells with {counted(_amount(self.walls), 'wall')} and "
            f"{counted(_amount(self.traps), 'trap')} found in {counted(number + 1, 'draw')}. Ask for fewer walls or "
            "traps, or a larger size."
        )

    def _place(self, rng: np.random.Generator, *, guided: bool) -> Layout | None:
        """Place what is to be drawn on free cells; None when a guided draw leaves too few of them."""
        fixed: set[int] = set() if self.start is None else {self.start}
        for part in (self.walls, self.goals, self.traps):
            fixed |= set() if isinstance(part, int) else set(part)
        free = [cell for cell in range(self.rows * self.columns) if cell not in fixed]
        if self.is_random:
            free = [int(cell) for cell in rng.permutation(free)]

        start = free.pop() if self.start is None else self.start
        goals = {free.pop(): self.goal_reward for _ in range(self.goals)} if isinstance(self.goals, int) else self.goals
        walls = frozenset() if isinstance(self.walls, int) else self.walls
        traps = {} if isinstance(self.traps, int) else self.traps
        if guided:
            kept = _shortest_routes(Layout(self.rows, self.columns, start, walls, goals, traps), rng)
            free = [cell for cell in free if cell not in kept]
        if len(free) < _drawn(self.walls) + _drawn(self.traps):
            return None
        traps = {free.pop(): self.trap_reward for _ in range(self.traps)} if isinstance(self.traps, int) else traps
        walls = frozenset(free.pop() for _ in range(self.walls)) if isinstance(self.walls, int) else walls
        return Layout(self.rows, self.columns, start, walls, goals, traps)


def unreachable_goals(layout: Layout) -> frozenset[int]:
    """Return the goals that no walk from the start reaches without ending earlier on another goal or a trap."""
    seen, edge = {layout.start}, [layout.start]
    while edge:
        for cell in layout.neighbours(edge.pop()):
            if cell not in seen:
                seen.add(cell)
                if cell not in layout.goals and cell not in layout.traps:
                    edge.append(cell)
    return frozenset(layout.goals) - seen


def layout_from_dict(data: object, *, rows: int, columns: int) -> Layout:
    """Read `Layout.to_dict`'s data back for a grid of the given size.

    Raises:
        ValueError: The data is not a layout of that size.
    """
    try:
        if not isinstance(data, Mapping) or (data["rows"], data["columns"]) != (rows, columns):
            raise ValueError("another size")
        layout = Layout(
            rows,
            columns,
            int(data["start"]),
            frozenset(int(cell) for cell in data["walls"]),
            {int(cell): float(reward) for cell, reward in data["goals"]},
            {int(cell): float(reward) for cell, reward in data["traps"]},
        )
        special = [layout.start, *layout.walls, *layout.goals, *layout.traps]
        if not layout.goals or len(set(special)) < len(special) or not all(0 <= c < rows * columns for c in special):
            raise ValueError("no goal, a cell outside the grid, or a cell used twice")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected a layout of {rows}x{columns} cells as get_state() of an equal GridWorld gives it, "
            f"got {data!r:.200}: {type(error).__name__}: {error}"
        ) from error
    return layout


def _shortest_routes(layout: Layout, rng: np.random.Generator) -> set[int]:
    """Return the cells of a random shortest route from the start to each goal, as far as one exists."""
    came_from, edge = {layout.start: layout.start}, [layout.start]
    for cell in edge:
        if cell in layout.goals or cell in layout.traps:
            continue
        around = layout.neighbours(cell)
        for side in rng.permutation(4):
            if around[side] not in came_from:
                came_from[around[side]] = cell
                edge.append(around[side])
    kept: set[int] = set()
    for goal in layout.goals:
        cell = goal if goal in came_from else layout.start
        while cell != layout.start:
            kept.add(cell)
            cell = came_from[cell]
    return kept


def _drawn(part: Collection[int] | int) -> int:
    return part if isinstance(part, int) else 0


def _amount(part: Collection[int] | int) -> int:
    return part if isinstance(part, int) else len(part)
