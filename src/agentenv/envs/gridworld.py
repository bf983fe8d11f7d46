"""GridWorld: the built-in environment, small enough to check by hand and to solve exactly.

It exists so that a first run needs nothing installed, and so that tests have an environment whose optimum is known.
The dynamics are the textbook's (Russell and Norvig, "Artificial Intelligence", section 17.1; Sutton and Barto,
"Reinforcement Learning", example 3.5): four moves, a slip to the side with some probability, walls that stop a move,
cells that end the episode. The episode's length is not limited here: that is `gymnasium.wrappers.TimeLimit`'s work.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from agentenv.envs import gridworld_render as pictures
from agentenv.envs.gridworld_dynamics import Dynamics, Transitions
from agentenv.envs.gridworld_layout import Layout, layout_from_dict
from agentenv.envs.gridworld_request import Cell, RewardCell, read_count, read_number, read_request

_OBSERVATIONS = ("index", "coordinates", "image")


class GridWorld(gym.Env[Any, Any]):
    """A grid of cells with walls, goals and traps.

    Actions, ``Discrete(4)``: 0 up, 1 right, 2 down, 3 left. A move goes where it was meant to with probability
    ``1 - slip`` and to each of the two sides with ``slip / 2``; into a wall or over the edge it stays in place.
    Entering a goal or a trap pays that cell's reward and terminates the episode; every other move pays
    ``step_reward``. A step after termination stays, pays 0 and says terminated again.

    Observations: ``"index"`` is ``Discrete(rows * columns)``, the cell row * columns + column; ``"coordinates"`` is
    ``MultiDiscrete([rows, columns])``, int64 (row, column); ``"image"`` is a uint8 ``Box`` of shape (rows * tile_px,
    columns * tile_px, 3), the same picture as ``render()`` gives in mode ``"rgb_array"``. Infos are empty.

    Layouts: whatever is given as a number is drawn, always so that each goal can be reached without touching a trap.
    With ``layout_seed`` the layout is fixed, whatever ``reset`` is given. Without it the layout is drawn by the first
    reset and by each reset with a seed (the same seed, the same layout), and with ``relayout=True`` by every reset.

    Args:
        size: Side length in cells, or (rows, columns).
        walls: Cells as (row, column), or how many (int), or which share of all cells (float below 1).
        goals: Cells as (row, column) or (row, column, reward), or how many; None is the bottom right corner.
        traps: The same for traps.
        start: The agent's first cell, or None to draw it with the layout.
        slip: Probability from 0 to 1 that a move goes to one of the two sides.
        step_reward: Reward of a move that ends nothing.
        goal_reward: Reward of goals that name none.
        trap_reward: Reward of traps that name none.
        observation: "index", "coordinates" or "image".
        layout_seed: Seed of a layout that never changes, or None.
        relayout: Whether each reset draws a new layout.
        tile_px: Side of a cell in pictures, in pixels.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        ValueError: An argument is wrong, or no solvable layout exists; says which, what was expected and what came.
    """

    # An instance attribute by gymnasium's typing, set on the class by its custom.
    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}  # noqa: RUF012 (as Gymnasium)

    def __init__(
        self,
        *,
        size: int | Sequence[int] = 5,
        walls: float | Sequence[Cell] = 0,
        goals: int | Sequence[RewardCell] | None = None,
        traps: int | Sequence[RewardCell] = 0,
        start: Cell | None = (0, 0),
        slip: float = 0.0,
        step_reward: float = -0.01,
        goal_reward: float = 1.0,
        trap_reward: float = -1.0,
        observation: str = "index",
        layout_seed: int | None = None,
        relayout: bool = False,
        tile_px: int = 8,
        render_mode: str | None = None,
    ) -> None:
        self._request = read_request(
            size=size,
            walls=walls,
            goals=goals,
            traps=traps,
            start=start,
            goal_reward=goal_reward,
            trap_reward=trap_reward,
        )
        self._slip = read_number("slip", slip, low=0.0, high=1.0)
        self._step_reward = read_number("step_reward", step_reward)
        self._tile_px = read_count("tile_px", tile_px, low=1, high=256)
        if layout_seed is not None:
            read_count("layout_seed", layout_seed, low=0, high=2**128 - 1)
        if not isinstance(relayout, bool):
            raise ValueError(f"relayout: expected true or false, got {relayout!r}")
        if relayout and layout_seed is not None:
            raise ValueError(
                "relayout=True and layout_seed contradict each other: a seeded layout never changes. Drop one."
            )
        if observation not in _OBSERVATIONS:
            raise ValueError(f"observation: expected one of {', '.join(_OBSERVATIONS)}, got {observation!r}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode: expected ansi, rgb_array or None, got {render_mode!r}")

        rows, columns = self._request.rows, self._request.columns
        self._observation = observation
        self._redraw_always = relayout and self._request.is_random
        self._redraw_on_seed = layout_seed is None and self._request.is_random
        self.render_mode = render_mode
        self._agent_mask = pictures.agent_mask(self._tile_px)
        self.action_space = gym.spaces.Discrete(4)
        self.observation_space = self._observation_space(rows, columns)
        # Drawn in any case, so that a request nobody can meet fails here and not at the first reset.
        layout = self._request.draw(np.random.default_rng(0 if layout_seed is None else layout_seed))
        self._has_layout = not self._redraw_on_seed
        self._set_layout(layout)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        redraw = self._redraw_always or (self._redraw_on_seed and (seed is not None or not self._has_layout))
        if redraw:
            self._set_layout(self._request.draw(self.np_random))
            self._has_layout = True
        self._agent = self._layout.start
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            move = operator.index(action)
        except TypeError:
            move = -1
        if not 0 <= move < 4:
            raise ValueError(f"expected an action 0 (up), 1 (right), 2 (down) or 3 (left), got {action!r}")
        if self._slip:
            draw = self.np_random.random()
            if draw < self._slip:
                move = (move + (1 if draw < self._slip / 2 else 3)) % 4
        self._agent, reward, terminated = self._dynamics.moves[4 * self._agent + move]
        return self._observe(), reward, terminated, False, {}

    def render(self) -> Any:
        """Return the picture: str in mode ansi, uint8 of shape (height, width, 3) in mode rgb_array, else None."""
        if self.render_mode == "ansi":
            return pictures.draw_text(self._layout, self._agent)
        if self.render_mode == "rgb_array":
            return pictures.draw_frame(self._floor_picture(), self._agent_mask, self._layout, self._agent)
        gym.logger.warn('render() without a render mode. Give one: GridWorld(render_mode="ansi") or "rgb_array".')
        return None

    @property
    def layout(self) -> Layout:
        """The current layout.

        Raises:
            gymnasium.error.ResetNeeded: It is drawn by the first reset, which has not happened.
        """
        if not self._has_layout:
            raise gym.error.ResetNeeded("the layout is drawn by reset(): call it first, or give a layout_seed")
        return self._layout

    def transitions(self) -> Transitions:
        """Return the current layout's dynamics as ``P[cell][action]``; see `Dynamics.transitions`.

        Raises:
            gymnasium.error.ResetNeeded: There is no layout before the first reset.
        """
        _ = self.layout
        return self._dynamics.transitions()

    def optimal_return(self, gamma: float = 1.0) -> float:
        """Return the largest return from the start of an open grid, in closed form; see `Dynamics.optimal_return`.

        Args:
            gamma: Discount from 0 to 1.

        Raises:
            ValueError: There are walls, traps, slips, several goals, or rewards of another sign.
            gymnasium.error.ResetNeeded: There is no layout before the first reset.
        """
        _ = self.layout
        return self._dynamics.optimal_return(gamma)

    def get_state(self) -> dict[str, Any]:
        """Return everything that decides what happens next, as plain data.

        Returns:
            The agent's cell, the layout and the random generator's state; lists, dicts, str, int and float only.

        Raises:
            gymnasium.error.ResetNeeded: Nothing has been reset yet.
            ValueError: ``np_random`` was replaced by a generator other than PCG64, numpy's default.
        """
        if self._np_random is None:
            raise gym.error.ResetNeeded("there is no state before the first reset(): call it first")
        rng = self._np_random.bit_generator.state
        if rng["bit_generator"] != "PCG64":
            raise ValueError(f"expected np_random to use PCG64, got {rng['bit_generator']}; its state cannot be kept")
        return {"agent": self._agent, "layout": self._layout.to_dict(), "rng": dict(rng, state=dict(rng["state"]))}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `get_state`'s result, taken from a GridWorld with the same arguments.

        Raises:
            ValueError: It is not such a state. This environment is then unchanged.
        """
        rows, columns = self._request.rows, self._request.columns
        if not isinstance(state, Mapping) or set(state) != {"agent", "layout", "rng"}:
            raise ValueError(f"expected a state with the keys agent, layout, rng, got {state!r:.200}")
        layout = layout_from_dict(state["layout"], rows=rows, columns=columns)
        agent = read_count("agent", state["agent"], low=0, high=rows * columns - 1)
        if agent in layout.walls:
            raise ValueError(f"agent: expected a cell without a wall, got {agent}")
        bits = np.random.PCG64(0)
        try:
            bits.state = state["rng"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"expected the state of a PCG64 generator under rng, got {state['rng']!r:.200}") from error
        self._set_layout(layout)
        self._has_layout = True
        self._agent = agent
        self.np_random = np.random.Generator(bits)

    def _set_layout(self, layout: Layout) -> None:
        self._layout = layout
        self._dynamics = Dynamics(layout, slip=self._slip, step_reward=self._step_reward)
        self._agent = layout.start
        self._floor: pictures.Picture | None = None

    def _observation_space(self, rows: int, columns: int) -> gym.Space[Any]:
        if self._observation == "index":
            return gym.spaces.Discrete(rows * columns)
        if self._observation == "coordinates":
            return gym.spaces.MultiDiscrete([rows, columns])
        return gym.spaces.Box(0, 255, (rows * self._tile_px, columns * self._tile_px, 3), np.uint8)

    def _observe(self) -> Any:
        if self._observation == "index":
            return self._agent
        if self._observation == "coordinates":
            return np.array(divmod(self._agent, self._layout.columns), np.int64)
        return pictures.draw_frame(self._floor_picture(), self._agent_mask, self._layout, self._agent)

    def _floor_picture(self) -> pictures.Picture:
        if self._floor is None:
            self._floor = pictures.draw_floor(self._layout, self._tile_px)
        return self._floor
