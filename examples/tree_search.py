"""Monte Carlo tree search by forking environments, against a greedy player of the same games.

    python examples/tree_search.py [episodes]

The game goes on in one environment; the search plays in a fork of it, a process of its own, which is brought back to the
present moment before every simulation. The search knows no rules: it tries the four moves or two pushes, goes on as the
greedy player would or at random, and sees what comes of it.

A simulation must not know the future. ``restore(moment)`` alone goes on with the random streams of the moment, so that
the same actions meet the same slips as the game itself will: a search in that would be a prophet. With ``reseed=`` an int
each simulation draws luck of its own.

The search is UCT (Kocsis and Szepesvari, "Bandit based Monte-Carlo planning", 2006), a node being what was observed after
what was done, so that chance may lead from one action to several nodes.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentenv import AgentENV

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
    """How often the search went back to a moment, and how long that took."""

    count: int = 0
    seconds: float = 0.0


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
        {"env_kwargs": {"size": 5, "traps": 4, "slip": 0.1, "observation": "coordinates"}, "max_episode_steps": 40},
        towards_goal,
        simulations=40,
        horizon=14,
        chance=0.2,
    ),
    "CartPole": Game("CartPole-v1", {"max_episode_steps": 80}, towards_lean, simulations=6, horizon=12, chance=1.0),
}


def search(planner: AgentENV, moment: Any, game: Game, rng: np.random.Generator, luck: Luck, clock: Clock) -> int:
    """The action that most simulations from this moment chose."""
    count = int(planner.action_space.n)  # type: ignore[attr-defined]  # both games have Discrete actions
    root = Node([0] * count, [0.0] * count)
    low, high = math.inf, -math.inf
    observation: Any = None

    def go_on(seen: Any) -> int:
        return int(rng.integers(count)) if rng.random() < game.chance else game.greedy(seen)

    for _ in range(game.simulations):
        began = time.perf_counter()
        planner.restore(moment, reseed=next(luck))
        clock.count, clock.seconds = clock.count + 1, clock.seconds + time.perf_counter() - began

        node, path, rewards, done, inside = root, [], [], False, True
        while not done and len(rewards) < game.horizon:
            action = choose(node, low, high) if inside else go_on(observation)
            observation, reward, terminated, truncated, _ = planner.step(action)
            rewards.append(reward)
            done = terminated or truncated
            if inside:
                path.append((node, action))
                place = action, np.asarray(observation).tobytes()
                inside = place in node.children
                node = node.children.setdefault(place, Node([0] * count, [0.0] * count))
        total = sum(rewards)
        low, high = min(low, total), max(high, total)
        for depth, (visited, action) in enumerate(path):
            visited.visits[action] += 1
            visited.means[action] += (sum(rewards[depth:]) - visited.means[action]) / visited.visits[action]
    return int(np.argmax(root.visits))


def choose(node: Node, low: float, high: float) -> int:
    """The action with the best upper confidence bound, returns being scaled to what was seen so far."""
    if 0 in node.visits:
        return node.visits.index(0)
    spread, log = max(high - low, 1e-9), math.log(sum(node.visits))
    bounds = [m / spread + math.sqrt(log / n) for m, n in zip(node.means, node.visits, strict=True)]
    return int(np.argmax(bounds))


def play(env: AgentENV, seed: int, player: Player) -> float:
    """The return of one episode."""
    observation, _ = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(player(observation))
        total, done = total + reward, terminated or truncated
    return total


def main(episodes: int = 4) -> None:
    for name, game in GAMES.items():
        rng = np.random.default_rng(0)
        luck = iter(lambda rng=rng: int(rng.integers(2**31)), -1)
        clock, forks, fork_s = Clock(), 0, 0.0
        with AgentENV.from_env(game.env, **game.keys) as env:
            greedy, found = [], []
            for seed in range(episodes):
                greedy.append(play(env, seed, game.greedy))
                env.reset(seed=seed)
                began = time.perf_counter()
                (planner,) = env.fork()
                forks, fork_s = forks + 1, fork_s + time.perf_counter() - began
                with planner:
                    found.append(
                        play(env, seed, lambda _: search(planner, env.snapshot(), game, rng, luck, clock))  # noqa: B023
                    )
        print(
            f"{name}: mean return over {episodes} episodes: search {np.mean(found):.2f}, greedy {np.mean(greedy):.2f};"
            f" {clock.count:,} branches at {clock.count / clock.seconds:,.0f} a second,"
            f" {forks} processes at {forks / fork_s:,.0f} a second",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:2]))
