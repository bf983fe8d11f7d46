"""Executing a recorded episode again, in a sandbox, and comparing every answer with the record.

The environment is built as it was, reset with the recorded seed and asked the recorded actions. The first answer that
differs ends the comparison: what follows would differ for that reason alone. Nothing is written to the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

import numpy as np

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import ConfigError, EnvError, Problem, ProtocolError, SandboxError, counted
from agentenv.fleet.answers import Answer
from agentenv.fleet.context import RunContext
from agentenv.fleet.differences import Difference, describe, unlike
from agentenv.fleet.digests import INFO, Digester, StepDigest
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.trace import CHAIN_BYTES
from agentenv.fleet.tracefile import EpisodeTrace, Rows
from agentenv.wire.layout import plan
from agentenv.wire.slot import PAYLOAD, Op
from agentenv.wire.values import encode

Frame = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Replay:
    """An episode that was executed again.

    Attributes:
        env_id, episode, seed: Which one.
        steps: Steps taken, the one that differed included.
        return_: Sum of their rewards.
        whole: Whether its record reaches from the reset to the end.
        outcome: How the recorded one ended; None where that is not recorded.
        difference: The first one; None where every answer was the same.
    """

    env_id: str
    episode: int
    seed: int
    steps: int
    return_: float
    whole: bool
    outcome: str | None
    difference: Difference | None


class Replayer(AbstractContextManager["Replayer"]):
    """One environment of a run, in a sandbox of its own, to replay its episodes.

    Attributes:
        fps: Frames a second that the environment asks for, for a picture that moves.
    """

    def __init__(self, config: Config, environment: EnvironmentConfig, *, render: bool = False) -> None:
        """Start the environment as the run had it.

        Args:
            config: The run's configuration, from ``agentenv.fleet.origin.read_config``.
            environment: The environment.
            render: Whether frames are wanted; sets its render mode to ``rgb_array``.

        Raises:
            RuntimeUnavailable: This machine cannot run it.
            EnvError, SandboxDied, StepTimeout: It cannot be built.
            ConfigError: It has no frames, where they are wanted.
        """
        # A repetition waits for nobody: whoever dies at a step did so before.
        environment = environment.model_copy(update={"restart_backoff_s": 0.0})
        self._environment = environment
        if render:
            environment = environment.model_copy(update={"render_mode": "rgb_array"})
        self._context = RunContext(config, [environment], record=False)
        try:
            self._fleet = Fleet(self._context, [environment])
        except EnvError as error:
            self._context.close()
            if render:
                raise _no_frames(f"it cannot be built with render_mode rgb_array: {error.message}") from error
            raise
        except BaseException:
            self._context.close()
            raise
        fleet = self._fleet
        actions, observations = plan(fleet.single_action_space), plan(fleet.single_observation_space)
        memory = fleet.channel.arena.bytes
        self._slot_action = memory[fleet.slot.action : fleet.slot.action + actions.nbytes]
        self._action_bytes, self._variable = actions.nbytes, actions.variable
        self._digester = Digester(observations, memory[fleet.slot.observation :])
        fps = fleet.metadata.get("render_fps")
        self.fps = float(fps) if isinstance(fps, int | float) and 0 < fps < 1000 else 10.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._fleet.close()
        finally:
            self._context.close()

    def __enter__(self) -> Self:
        return self

    def play(
        self,
        recorded: EpisodeTrace,
        *,
        with_info: bool = True,
        on_row: Callable[[int, Callable[[], Frame]], None] = lambda _row, _render: None,
    ) -> Replay:
        """Execute an episode again, up to the first difference.

        Args:
            recorded: The episode.
            with_info: Whether a difference in the info alone counts.
            on_row: Called after every answer with the row's number and a function that renders the environment.

        Raises:
            ConfigError: The environment has no frames, where they were asked for.
            OSError, ValueError: The trace cannot be read.
        """
        env_id, episode, rows = self._environment.id, recorded.episode, recorded.read()
        difference = self._layout_difference(recorded)
        steps, total = 0, 0.0
        row = 0
        while difference is None and row < len(rows):
            try:
                now = self._ask(recorded.seed, rows, row)
            except SandboxError as error:
                difference = Difference(env_id, episode, row, ("failure",), error.cause.detail)
                break
            steps, total = row, total + now.reward
            before = rows.step(row)
            what = unlike(self._digester.names, before, now)
            if what and (with_info or what != (INFO,)):
                difference = Difference(env_id, episode, row, what, describe(what, before, now))
            on_row(row, self.render)
            row += 1
        whole = recorded.whole and recorded.outcome is not None
        if difference is None and whole and _chain(rows) != recorded.digest:
            difference = Difference(
                env_id, episode, None, ("digest",), "its rows do not give its digest: they are damaged"
            )
        return Replay(env_id, episode, recorded.seed, steps, total, whole, recorded.outcome, difference)

    def _layout_difference(self, recorded: EpisodeTrace) -> Difference | None:
        if recorded.parts == self._digester.names and recorded.action_bytes == self._action_bytes:
            return None
        detail = (
            f"its spaces have changed: observation parts {list(recorded.parts)} and actions of"
            f" {counted(recorded.action_bytes, 'byte')} are recorded, it has {list(self._digester.names)} and"
            f" {self._action_bytes} now"
        )
        return Difference(self._environment.id, recorded.episode, None, ("spaces",), detail)

    def _ask(self, seed: int, rows: Rows, row: int) -> StepDigest:
        fleet = self._fleet
        if row == 0:
            fleet.exchange(Op.RESET, self._environment.reset_timeout_s, None, [encode([seed, None])])
        else:
            fixed, variable = rows.action(row)
            self._slot_action[:] = np.frombuffer(fixed, np.uint8)
            payloads = [variable] if self._variable else None
            fleet.exchange(Op.STEP, self._environment.step_timeout_s, None, payloads)
        status = int(fleet.channel.status[0])
        answer = fleet.answer(0) if status & PAYLOAD else Answer({})
        status = int(fleet.channel.status[0])  # if it died before all of that was read, it has answered again
        reward = float(fleet.channel.rewards[0]) if row else 0.0
        try:
            return self._digester.read(reward, status, answer.info, answer.observation)
        except ProtocolError as error:
            raise fleet.reject(0, str(error)) from error

    def render(self) -> Frame:
        """A frame of the environment as it stands: uint8, shape (height, width, 3).

        Raises:
            ConfigError: It has none.
        """
        frame = self._fleet.call(Op.RENDER, None, [0], self._environment.step_timeout_s)[0]
        if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
            raise _no_frames(f"its render() returned {type(frame).__name__}")
        return frame


def _no_frames(got: str) -> ConfigError:
    message = f"expected an environment that renders frames of shape (height, width, 3); {got}"
    hint = "only environments with the render mode rgb_array can be drawn"
    return ConfigError([Problem("argument", "--render", message, hint)])


def _chain(rows: Rows) -> str:
    """The digest of an episode, from its rows."""
    chain = blake2b(digest_size=CHAIN_BYTES)
    for row in range(len(rows)):
        for part in (*rows.action(row), rows.digests[row].tobytes()):
            chain.update(part)
    return chain.hexdigest()
