"""Monte Carlo tree search by forking environments, against a greedy player of the same games.

    python examples/tree_search.py [episodes]

The game goes on in one environment; the search plays in a fork of it, a process of its own, which is brought back to
the present moment before every simulation. The search knows no rules: it tries the moves there are, goes on as the
greedy player would or at random, and sees what comes of it.

A simulation must not know the future. ``restore(moment)`` alone goes on with the random streams of the moment, so that
the same moves meet the same slips as the game itself will: a search in that would be a prophet. With ``reseed=`` an
int each simulation draws luck of its own.

The search is UCT (Kocsis and Szepesvari, "Bandit based Monte-Carlo planning", 2006), a node being what was observed
after what was done, so that chance may lead from one action to several nodes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from agentenv import AgentENV

EXPLORATION = 0.4
"""Weight of what is not known yet; returns are scaled to 1."""

Player = Callable[[Any], int]
Luck = Iterator[int]


@dataclass(frozen=True)
class Game:
    """A game, who is to be beaten at it, and how it is searched.

    Attributes:
        env: Its name.
        keys: Of its configuration.
        greedy: Who is to be beaten.
        simulations: For each move.
        horizon: Steps of a simulation at most.
        chance: Share of a simulation's moves beyond the tree that are random; the others are the greedy player's.
    """

    env: str
    keys: dict[str, Any]
    greedy: Player
    simulations: int
    horizon: int
    chance: float


@dataclass
class Node:
    """What was learned of one place in the tree: for each action its visits, the mean return and what followed."""

    visits: list[int]
    means: list[float]
    children: dict[Hashable, Node] = field(default_factory=dict)


@dataclass
class Clock:
    """Counts what is done inside its ``with``, and how long it takes."""

    count: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """How many a second."""
        return self.count / self.seconds

    def __enter__(self) -> None:
        self.seconds -= time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.count += 1


def towards_goal(observation: Any) -> int:
    """Down or right, whichever is farther, to the bottom right corner: the shortest way, whatever lies on it."""
    row, column = observation
    return 2 if row < column else 1


def towards_lean(observation: Any) -> int:
    """Push the cart to where the pole leans."""
    return int(observation[2] > 0)


GAMES = {
    "GridWorld": Game(
        "agentenv/GridWorld-v0",
        {
            "env_kwargs": {"size": 5, "traps": [[1, 1], [2, 2]], "slip": 0.1, "observation": "coordinates"},
            "max_episode_steps": 30,
        },
        towards_goal,
        simulations=50,
        horizon=14,
        chance=0.5,
    ),
    "CartPole": Game("CartPole-v1", {"max_episode_steps": 80}, towards_lean, simulations=6, horizon=12, chance=1.0),
}


def search(
    env: AgentENV, planner: AgentENV, present: Any, *, game: Game, rng: np.random.Generator, luck: Luck, clock: Clock
) -> int:
    """The action that most simulations from here chose; ``env`` is only asked for its moment, ``planner`` played in."""
    moment = env.snapshot()
    assert isinstance(planner.action_space, Discrete)
    count = int(planner.action_space.n)
    root = Node([0] * count, [0.0] * count)
    scale = 1e-9

    def go_on(seen: Any) -> int:
        return int(rng.integers(count)) if rng.random() < game.chance else game.greedy(seen)

    for _ in range(game.simulations):
        with clock:
            observation = planner.restore(moment, reseed=next(luck))
        node, done, inside = root, False, True
        path: list[tuple[Node, int]] = []
        rewards: list[float] = []
        while not done and len(rewards) < game.horizon:
            action = choose(node, scale) if inside else go_on(observation)
            observation, reward, terminated, truncated, _ = planner.step(action)
            rewards.append(reward)
            done = terminated or truncated
            if inside:
                path.append((node, action))
                place = action, np.asarray(observation).tobytes()
                inside = place in node.children
                node = node.children.setdefault(place, Node([0] * count, [0.0] * count))
        scale = max(scale, abs(sum(rewards)))
        for depth, (visited, action) in enumerate(path):
            visited.visits[action] += 1
            visited.means[action] += (sum(rewards[depth:]) - visited.means[action]) / visited.visits[action]
    return int(np.argmax(root.visits))


def choose(node: Node, scale: float) -> int:
    """The action with the best upper confidence bound, returns being scaled to the largest seen so far."""
    if 0 in node.visits:
        return node.visits.index(0)
    log = math.log(sum(node.visits))
    bounds = [m / scale + EXPLORATION * math.sqrt(log / n) for m, n in zip(node.means, node.visits, strict=True)]
    return int(np.argmax(bounds))


def play(env: AgentENV, seed: int, player: Player) -> float:
    """The return of one episode."""
    observation, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(player(observation))
        total, done = total + reward, terminated or truncated
    return total


def compete(game: Game, episodes: int) -> str:
    """Both play the same episodes; returns what came out."""
    rng, luck_rng = np.random.default_rng(0), np.random.default_rng(1)
    luck = map(int, iter(lambda: luck_rng.integers(2**31), None))
    branches, forks = Clock(), Clock()
    greedy: list[float] = []
    found: list[float] = []
    with AgentENV.from_env(game.env, **game.keys) as env:
        for seed in range(episodes):
            greedy.append(play(env, seed, game.greedy))
            env.reset(seed=seed)
            with forks:
                (planner,) = env.fork()
            with planner:
                searching = partial(search, env, planner, game=game, rng=rng, luck=luck, clock=branches)
                found.append(play(env, seed, searching))
    return (
        f"mean return over {episodes} episodes: search {np.mean(found):.2f}, greedy {np.mean(greedy):.2f};"
        f" {branches.count:,} branches at {branches.rate:,.0f} a second, {forks.count} processes at {forks.rate:,.0f}"
        " a second"
    )


def main(episodes: int = 4) -> None:
    for name, game in GAMES.items():
        print(f"{name}: {compete(game, episodes)}", flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
