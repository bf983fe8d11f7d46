"""What a move does in a GridWorld: the tables behind `step`, the same as a model, and the optimum of the open grid.

`step`, `transitions` and `optimal_return` read one table, so that the model cannot drift from what happens.
"""

from __future__ import annotations

from agentenv.envs.gridworld_layout import Layout
from agentenv.envs.gridworld_request import read_number
from agentenv.errors import counted

# P[cell][action] -> list of (probability, next cell, reward, terminated), the form of gymnasium's toy_text.
Transitions = dict[int, dict[int, list[tuple[float, int, float, bool]]]]


class Dynamics:
    """The moves of one layout.

    Attributes:
        moves: ``moves[4 * cell + direction]`` is (next cell, reward, terminated), for a move that does not slip.
    """

    def __init__(self, layout: Layout, *, slip: float, step_reward: float) -> None:
        self._layout = layout
        self._slip = slip
        self._step_reward = step_reward
        entered = dict(layout.goals) | dict(layout.traps)
        self.moves: list[tuple[int, float, bool]] = []
        for cell in range(layout.rows * layout.columns):
            if cell in entered or cell in layout.walls:
                self.moves += [(cell, 0.0, True)] * 4
            else:
                around = layout.neighbours(cell)
                self.moves += [(other, entered.get(other, step_reward), other in entered) for other in around]

    def transitions(self) -> Transitions:
        """Return the whole model.

        Returns:
            ``P[cell][action]``, a list of (probability, next cell, reward, terminated). Probabilities sum to 1 and none
            is 0. Goals, traps and walls (which nothing enters) are absorbing and pay 0.
        """
        turns = ((0, 1.0 - self._slip), (1, self._slip / 2), (3, self._slip / 2))

        def outcomes(cell: int, action: int) -> list[tuple[float, int, float, bool]]:
            if self.moves[4 * cell] == (cell, 0.0, True):
                return [(1.0, cell, 0.0, True)]
            return [(chance, *self.moves[4 * cell + (action + turn) % 4]) for turn, chance in turns if chance]

        cells = range(self._layout.rows * self._layout.columns)
        return {cell: {action: outcomes(cell, action) for action in range(4)} for cell in cells}

    def optimal_return(self, gamma: float) -> float:
        """Return the largest return from the start, in closed form, for the open grid.

        With one goal, no walls, no traps, no slipping and ``step_reward <= 0 <= goal_reward`` nothing beats a shortest
        path. It has ``D = |row difference| + |column difference|`` moves, of which the last pays the goal, so::

            step_reward * (1 - gamma**(D - 1)) / (1 - gamma) + gamma**(D - 1) * goal_reward

        and for ``gamma = 1``: ``step_reward * (D - 1) + goal_reward``. A time limit below D puts it out of reach.

        Args:
            gamma: Discount from 0 to 1.

        Raises:
            ValueError: The grid is not of that kind; `transitions` and value iteration solve the others.
        """
        gamma = read_number("gamma", gamma, low=0.0, high=1.0)
        layout, step_reward = self._layout, self._step_reward
        plain = len(layout.goals) == 1 and not layout.walls and not layout.traps and not self._slip
        if not plain or step_reward > 0 or min(layout.goals.values()) < 0:
            raise ValueError(
                "the closed form needs one goal, no walls, no traps, slip = 0 and step_reward <= 0 <= goal_reward; got "
                f"{counted(len(layout.goals), 'goal')}, {counted(len(layout.walls), 'wall')}, "
                f"{counted(len(layout.traps), 'trap')}, slip = {self._slip}, "
                f"step_reward = {step_reward}. Solve transitions() by value iteration instead."
            )
        ((goal, goal_reward),) = layout.goals.items()
        row, column = divmod(layout.start, layout.columns)
        goal_row, goal_column = divmod(goal, layout.columns)
        steps_before = abs(goal_row - row) + abs(goal_column - column) - 1
        discounted_steps = steps_before if gamma == 1 else (1 - gamma**steps_before) / (1 - gamma)
        return step_reward * discounted_steps + gamma**steps_before * goal_reward
