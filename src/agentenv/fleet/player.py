"""One environment played through its episodes without ever waiting for it.

``begin`` and ``proceed`` ask and return; the answer is announced by ``bell`` becoming readable, and somebody else
sleeps on the bells of all players. Who is slow or hung therefore holds up nobody. Deaths and deadlines are noticed
by the run's watch, which rings the bell too.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from agentenv.config import EnvironmentConfig
from agentenv.errors import InvalidAction, SandboxError
from agentenv.fleet.answers import Answer
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.policies import Policy, PolicyError, make_policy
from agentenv.fleet.progress import Outcome, Progress
from agentenv.fleet.seeds import Seeds
from agentenv.sandbox.contract import Sandbox
from agentenv.telemetry.records import RecordWriter
from agentenv.wire.batch import ActionCheck
from agentenv.wire.layout import Reader, Writer, plan
from agentenv.wire.slot import PAYLOAD, Flag, Op
from agentenv.wire.values import encode

_NOTHING = Answer({})


class Player:
    """Plays one environment.

    Attributes:
        fleet: The environment, alone in its sandbox.
        progress: Kept up to date.
    """

    def __init__(
        self,
        fleet: Fleet,
        environment: EnvironmentConfig,
        policy: Callable[..., Any] | None,
        seeds: Seeds,
        records: RecordWriter,
        progress: Progress,
    ) -> None:
        """Take over an environment that is ready.

        Args:
            fleet: The environment, alone in its sandbox.
            environment: Its configuration.
            policy: From ``find_policy``.
            seeds: The run's.
            records: Takes a record an episode; owned from here on.
            progress: To keep up to date.

        Raises:
            PolicyError: The policy cannot be made.
        """
        self.fleet = fleet
        self.progress = progress
        self._stopping = False
        self._environment = environment
        self._seeds = seeds
        self._records = records
        self._stepping = False
        self._in_episode = False
        self._seed, self._length, self._return, self._started = 0, 0, 0.0, 0.0
        self._status, self._answer = 0, _NOTHING
        space = fleet.single_action_space
        self._act: Policy | None = make_policy(
            policy,
            fleet.single_observation_space,
            space,
            seed=seeds.policy(environment.id),
            action_seed=seeds.actions(environment.id, seed=environment.seed),
        )
        self._sample = space.sample
        actions, observations = plan(space), plan(fleet.single_observation_space)
        self._check = ActionCheck(space, environment.invalid_action).apply_one
        self._variable_action = actions.variable
        memory = fleet.channel.arena.bytes
        self._write = Writer(actions, memory[fleet.slot.action :]).write
        self._read: Callable[[Sequence[object]], Any] = Reader(observations, memory[fleet.slot.observation :]).read
        self._channel = fleet.channel
        group = fleet.channel.groups[0]
        assert group is not None  # a fleet has attached all its groups
        self._group = group

    @property
    def sandbox(self) -> Sandbox:
        """Where the environment lives."""
        return self.fleet.sandboxes[0]

    @property
    def bell(self) -> int:
        """The descriptor that becomes readable when ``proceed`` has something to do."""
        return self._group.done.reader

    def begin(self) -> None:
        """Ask for the first episode."""
        self._reset()

    def rung(self) -> bool:
        """After the bell: whether the answer is there, or will never come. A guest may ring for nothing."""
        return self._channel.answered(0)

    def spilled(self) -> bool:
        """Whether the answer's payload must still be read from a socket, which takes as long as the guest likes."""
        return not self._group.lost and bool(int(self._channel.status[0]) & Flag.SPILLED)

    def take(self) -> None:
        """Take the answer.

        Raises:
            SandboxError: The environment raised, died, was late or broke the protocol.
        """
        self.fleet.wait()  # has answered or is lost: returns at once or raises
        self._status = int(self._channel.status[0])
        self._answer = self.fleet.answer(0) if self._status & PAYLOAD else _NOTHING

    def proceed(self) -> bool:
        """After ``take``: ask for the next step or episode; False when it has played everything.

        Raises:
            PolicyError: The policy raised or its action does not fit.
        """
        if self._stepping:
            self.progress.steps += 1
            self._length += 1
            self._return += float(self._channel.rewards[0])
            if self._status & (Flag.TERMINATED | Flag.TRUNCATED):
                self._finish(Outcome.TERMINATED if self._status & Flag.TERMINATED else Outcome.TRUNCATED)
                if self.progress.episodes >= self._environment.episodes or self._stopping:
                    return False
                self._reset()
                return True
        if self._stopping:
            self._finish(Outcome.INTERRUPTED)
            return False
        self._step(self._answer)
        return True

    def stop(self) -> None:
        """End after the current step."""
        self._stopping = True

    def abort(self, outcome: Outcome) -> None:
        """Record the episode that is going on, if any, as ended this way, and close the records. Idempotent."""
        if self._in_episode:
            self._finish(outcome)
        self._records.close()

    def _reset(self) -> None:
        self._seed = self._seeds.environment(
            self._environment.id, seed=self._environment.seed, episode=self.progress.episodes
        )
        self._return, self._length = 0.0, 0
        self._started = time.monotonic()
        self._stepping, self._in_episode = False, True
        self._post(Op.RESET, [encode([self._seed, None])], self._environment.reset_timeout_s)

    def _step(self, answer: Answer) -> None:
        try:
            action = self._sample() if self._act is None else self._act(self._read(answer.observation))
        except SandboxError:
            raise
        except (Exception, SystemExit) as error:
            raise PolicyError(f"the policy raised {type(error).__name__}: {error}", traceback.format_exc()) from error
        try:
            variable = self._write(self._check(action))
        except (InvalidAction, ValueError, TypeError) as error:
            raise PolicyError(f"the policy's action does not fit: {error}") from error
        self._stepping = True
        self._post(Op.STEP, [encode(variable)] if self._variable_action else None, self._environment.step_timeout_s)

    def _post(self, op: Op, payloads: list[bytes] | None, timeout_s: float) -> None:
        self._channel.post(op, None, payloads, timeout_s=timeout_s)

    def _finish(self, outcome: Outcome) -> None:
        self._in_episode = False
        self._records.append(
            {
                "env_id": self._environment.id,
                "episode": self.progress.episodes,
                "seed": self._seed,
                "return": self._return,
                "length": self._length,
                "duration_s": round(time.monotonic() - self._started, 6),
                "outcome": outcome.value,
            }
        )
        if outcome in (Outcome.TERMINATED, Outcome.TRUNCATED):
            self.progress.episodes += 1
            self.progress.returns.append(self._return)
            self.progress.lengths += self._length
