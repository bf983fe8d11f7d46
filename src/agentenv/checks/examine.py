"""Examining one environment: opens sessions, has the environment played in them, and hands what they saw to the judges.

The order is from the harmless to the risky. What might end the sandbox is done in one of its own, so that a death is
the finding of the row it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import Space

from agentenv.checks import edges, growth, played, repeated
from agentenv.checks.choose import Chosen
from agentenv.checks.deaths import ran_out_of_memory, said
from agentenv.checks.rows import ROWS, Examination, Row, Verdict, fail, ok, skip
from agentenv.checks.session import Ground, Played, Session, World, varied
from agentenv.config import Config
from agentenv.errors import AgentEnvError, RuntimeUnavailable, SandboxError, counted
from agentenv.fleet.context import GRIDWORLD
from agentenv.fleet.seeds import Seeds

_ROLLOUT_STEPS = 200
_ROLLOUT_S = 2.0
_LEAST_ROLLOUT = 20
_LATER_S = 1.1
_PREFIX = 3
_FOLLOWING = 5
_BEYOND = 3
_MOST_EPISODE = 5000
_EPISODE_S = 30.0
_HASH_SEEDS = 2
_MOST_OUTSIDE = 8

OnPhase = Callable[[str], None]


def examine(config: Config, chosen: Chosen, *, steps: int, on_phase: OnPhase) -> Examination:
    """Examine one environment.

    Args:
        config: The configuration it is from.
        chosen: The environment.
        steps: Steps of random play.
        on_phase: Told what is being done, in words.

    Raises:
        RuntimeUnavailable: This machine cannot run it.
    """
    began = time.monotonic()
    environment = chosen.environment
    seed = Seeds(config.global_.seed or 0).environment(environment.id, seed=environment.seed)
    with Ground(config, environment) as ground:
        runtime = ground.runtime_name
        rows = _Examiner(ground, seed=seed, steps=steps, on_phase=on_phase).rows()
    by_name = {row.name: row for row in rows}
    missing = "not judged: the rows above say why"
    ordered = [by_name.get(name) or skip(name, missing) for name in ROWS]
    name = environment.env or GRIDWORLD
    took_s = time.monotonic() - began
    return Examination(environment.id, name, runtime, seed, chosen.others, ordered, took_s)


class _Examiner:
    def __init__(self, ground: Ground, *, seed: int, steps: int, on_phase: OnPhase) -> None:
        self._ground = ground
        self._seed = seed
        self._steps = steps
        self._on_phase = on_phase
        self._action_space: Space[Any]
        self._obeys_seed = False

    def rows(self) -> list[Row]:
        self._on_phase("starting")
        began = time.monotonic()
        try:
            _observations, self._action_space = self._ground.spaces()
        except RuntimeUnavailable:
            raise
        except (AgentEnvError, ValueError) as error:
            text = said(error) if isinstance(error, SandboxError) else str(error)
            remedy = "see what it says; agentenv run shows its whole output"
            return [fail("start", text, remedy, error=str(error))]
        took = time.monotonic() - began
        rows = [ok("start", f"in {took:.2f} s", seconds=took, action_space=str(self._action_space))]
        self._action_space.seed(self._seed)
        repeats = self._repeats()
        if isinstance(repeats, Row):
            return [*rows, repeats]
        found, world = repeats
        self._obeys_seed = all(row.verdict is Verdict.OK for row in found if row.name == "seed")
        rows += found
        rows += [self._after_end(world), self._outside(world), self._keeping(world)]
        rows += self._long_play()
        return rows

    # -- what should be equal

    def _repeats(self) -> Row | tuple[list[Row], World | None]:
        """Rows about repetition, and the world in which the environment repeats itself; None where in none."""
        self._on_phase("repeating: the same seed again")
        # The actions are sampled here: what is sampled beside the environment could itself follow a hash seed.
        actions = self._sample(_ROLLOUT_STEPS)
        trials: dict[tuple[str, ...], repeated.Trial] = {}
        places: Mapping[str, Any] = {}
        try:
            world = World()
            with self._ground.open(world) as session:
                started = time.monotonic()
                actions, first = self._fit(session, actions)
                again = self._roll(session, actions)
            drawn = set(first.drawn)
            base = _rollout(first)
            varieties = self._vary(world, actions, base, drawn)
            time.sleep(max(0.0, started + _LATER_S - time.monotonic()))
            later_s = time.monotonic() - started
            with self._ground.open(world) as session:
                other = _rollout(self._roll(session, actions))
            trials[()] = repeated.Trial(base, _rollout(again), other)
            for held in repeated.HOLDS[1:]:
                if repeated.settled(trials) is not None:
                    break
                self._on_phase(f"explaining a difference: {' and '.join(held)} held still")
                trials[held], places = self._held_trial(varied(world, held=held), actions)
            settled = repeated.settled(trials)
            rows = repeated.judge_repeats(trials, places, later_s)
            if settled is None:
                unjudged = "not judged: it differs without any change"
                return [*rows, *(skip(name, unjudged) for name in ("random", "numpy_random", "hash_seed"))], None
            if settled:
                world = varied(world, held=settled)
                varieties = self._vary(world, actions, trials[settled].first, drawn)
            return [*rows, *varieties], world
        except SandboxError as error:
            if ran_out_of_memory(error):
                return _out_of_memory(error, "in repeated rollouts", self._ground.environment.memory_mb)
            remedy = "start it alone with agentenv run and look at its output; it must survive every legal action"
            return fail("play", f"in a few random steps: {said(error)}", remedy, error=str(error))

    def _fit(self, session: Session, actions: list[Any]) -> tuple[list[Any], Played]:
        """The first rollout, and how many of the actions it had time for."""
        first = session.play(actions[:_LEAST_ROLLOUT], seed=self._seed, digests=True)
        ends = time.monotonic() + _ROLLOUT_S
        while not first.error and first.steps < len(actions) and time.monotonic() < ends:
            rest = actions[first.steps : first.steps + _LEAST_ROLLOUT]
            first.add(session.call("play", actions=rest, digests=True))
        return actions[: first.steps + bool(first.error)], first

    def _roll(self, session: Session, actions: list[Any]) -> Played:
        return session.play(actions, seed=self._seed, digests=True)

    def _held_trial(self, world: World, actions: list[Any]) -> tuple[repeated.Trial, Mapping[str, Any]]:
        with self._ground.open(world) as session:
            first, again = (_rollout(self._roll(session, actions)) for _ in range(2))
            places = session.call("places")
        time.sleep(_LATER_S)
        with self._ground.open(world) as session:
            return repeated.Trial(first, again, _rollout(self._roll(session, actions))), places

    def _vary(self, world: World, actions: list[Any], base: repeated.Rollout, drawn: set[str]) -> list[Row]:
        """The rows of what is changed one at a time."""
        hash_seeds = self._ground.other_hash_seeds(_HASH_SEEDS)
        plans = (
            (
                "random",
                "the global generator of Python's random",
                f"{repeated.USE_NP_RANDOM}, or from a random.Random(seed) made in reset",
                [varied(world, random_seed=world.random_seed + 1)],
            ),
            (
                "numpy_random",
                "the global generator of numpy.random",
                repeated.USE_NP_RANDOM,
                [varied(world, numpy_seed=world.numpy_seed + 1)],
            ),
            (
                "hash_seed",
                "PYTHONHASHSEED",
                "do not iterate over sets or use hash() for what is observed: sort them first, or use lists and dicts",
                [varied(world, hash_seed=hash_seed) for hash_seed in hash_seeds],
            ),
        )
        rows = []
        for name, what, remedy, worlds in plans:
            self._on_phase(f"repeating: another {what}")
            others = []
            for other in worlds:
                with self._ground.open(other) as session:
                    others.append(_rollout(self._roll(session, actions)))
            rows.append(repeated.judge_variation(name, what, remedy, base, others, drawn=name in drawn))
        return rows

    # -- beyond the rules

    def _after_end(self, world: World | None) -> Row:
        self._on_phase("stepping beyond the end")
        attempts: list[dict[str, Any]] = []
        try:
            with self._ground.open(world or World()) as session:
                reset = session.play([], seed=self._seed, digests=True)
                if not self._play_to_end(session):
                    return skip("after_end", "not judged: no episode ended in random play")
                attempts = []
                try:
                    for action in self._sample(_BEYOND):
                        attempts.append(session.call("attempt", action=action))
                except SandboxError as error:
                    return edges.judge_after_end(attempts, said(error), None)
                after = session.play([], seed=self._seed, digests=True)
            # Where the seed is not obeyed anyway, another state after the end says nothing about the end.
            alike = reset.states == after.states if self._obeys_seed else None
            return edges.judge_after_end(attempts, "", alike, ": ".join(after.error[:2]))
        except SandboxError as error:
            return skip("after_end", f"not judged: {said(error)}")

    def _play_to_end(self, session: Session) -> bool:
        ends, steps, seed = time.monotonic() + _EPISODE_S, 0, self._seed
        while time.monotonic() < ends and steps < _MOST_EPISODE:
            chunk = self._sample(100)
            record = session.call("play", actions=chunk, seed=seed if steps == 0 else None, stop_at_end=True)
            if record["error"]:
                return False
            if record["episodes"]:
                return True
            steps += max(1, int(record["done"]))
        return False

    def _outside(self, world: World | None) -> Row:
        self._on_phase("trying actions outside the space")
        tried = list(edges.outside(self._action_space, self._action_space.sample()))[:_MOST_OUTSIDE]
        prefix = self._sample(_PREFIX)
        outcomes = []
        try:
            session = self._ground.open(world or World())
            try:
                for one in tried:
                    session.play(prefix, seed=self._seed)
                    good = session.call("attempt", action=one.legal)
                    session.play(prefix, seed=self._seed)
                    try:
                        bad = session.call("attempt", action=one.action)
                    except SandboxError as error:
                        outcomes.append(edges.Outcome(one.label, death=said(error)))
                        break
                    outcomes.append(edges.judge_outcome(one.label, bad, good))
            finally:
                session.fleet.close()
        except SandboxError as error:
            return skip("action_range", f"not judged: {said(error)}")
        return edges.judge_actions(outcomes)

    # -- keeping its state

    def _keeping(self, world: World | None) -> Row:
        self._on_phase("pickling and forking")
        prefix, following = self._sample(_PREFIX), self._sample(_FOLLOWING)
        results: dict[str, dict[str, Any]] = {"pickled": {}, "forked": {}}
        deaths: dict[str, str] = {}
        for name in results:
            try:
                with self._ground.open(world or World()) as session:
                    if session.play(prefix, seed=self._seed).error:
                        return skip("state", "not judged: it raises in random play")
                    results[name] = session.call(name, actions=following)
            except SandboxError as error:
                deaths[name] = said(error)
        return edges.judge_state(results["pickled"], results["forked"], deaths)

    # -- random play

    def _long_play(self) -> list[Row]:
        environment = self._ground.environment
        total = Played()
        block = self._steps // (growth.BLOCKS + growth.WARM_UP_BLOCKS)
        readings: list[int] = []
        death: SandboxError | None = None
        try:
            with self._ground.open(World()) as session:
                for number in range(growth.BLOCKS + growth.WARM_UP_BLOCKS):
                    self._block(session, total, block, seed=self._seed if number == 0 else None)
                    if total.error:
                        break
                    if number >= growth.WARM_UP_BLOCKS - 1:
                        readings.append(session.call("memory"))
                if not total.error and total.steps < self._steps:
                    self._block(session, total, self._steps - total.steps, seed=None)
        except SandboxError as error:
            death = error
        rows = self._play_rows(total, readings, block, death)
        rows += played.judge_observations(total.faults, total.steps)
        rows.append(played.judge_rewards(total.faults, total.rewards, total.steps))
        rows.append(played.judge_times("step_time", total.step_s, environment.step_timeout_s, "step_timeout_s"))
        rows.append(played.judge_times("reset_time", total.reset_s, environment.reset_timeout_s, "reset_timeout_s"))
        return rows

    def _block(self, session: Session, total: Played, steps: int, *, seed: int | None) -> None:
        actions, taken = self._sample(steps), 0
        while taken < steps and not total.error:
            self._on_phase(f"random play: {total.steps:,} of {counted(self._steps, 'step')}")
            record = session.call("play", actions=actions[taken:], seed=seed)
            seed = None
            total.add(record)
            taken += int(record["done"])

    def _play_rows(self, total: Played, readings: list[int], block: int, death: SandboxError | None) -> list[Row]:
        memory_mb = self._ground.environment.memory_mb
        if death is not None and ran_out_of_memory(death):
            return [
                skip("play", "not judged to the end: it ran out of memory"),
                _out_of_memory(death, f"after {counted(total.steps, 'step')}", memory_mb),
            ]
        memory = growth.judge_memory(readings, block, memory_mb)
        if death is not None:
            remedy = "it must survive every legal action; agentenv run shows its whole output"
            found = f"after {counted(total.steps, 'legal step')}: {said(death)}"
            return [fail("play", found, remedy, steps=total.steps, error=str(death)), memory]
        return [played.judge_error(total.error, total.steps, self._steps), memory]

    def _sample(self, count: int) -> list[Any]:
        return [self._action_space.sample() for _ in range(count)]


def _out_of_memory(error: SandboxError, when: str, memory_mb: int) -> Row:
    remedy = "raise memory_mb, or find what is kept from step to step"
    return fail("memory", f"{when}: {said(error)}", remedy, memory_mb=memory_mb)


def _rollout(played_: Played) -> repeated.Rollout:
    return repeated.Rollout(tuple(played_.states), tuple(played_.infos), ": ".join(played_.error[:2]))
