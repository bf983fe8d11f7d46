"""One environment played through its episodes without ever waiting for it.

``begin`` and ``proceed`` ask and return; the answer is announced by ``bell`` becoming readable, and somebody else
sleeps on the bells of all players. Who is slow or hung therefore holds up nobody. Deaths and deadlines are noticed
by the run's watch, which rings the bell too.

Every answer is noted in the environment's trace. Where a run goes on after its process died, the recorded part of the
unfinished episode is followed first: see ``agentenv.fleet.following``.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentenv.channel.group import Group
from agentenv.config import EnvironmentConfig
from agentenv.errors import InvalidAction, ProtocolError, SandboxError
from agentenv.fleet.answers import Answer
from agentenv.fleet.digests import Digester
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.following import Following
from agentenv.fleet.interrupts import StopNow
from agentenv.fleet.policies import PolicyError, make_actor
from agentenv.fleet.policy_state import PolicyState
from agentenv.fleet.progress import Outcome, Progress
from agentenv.fleet.resuming import Beginning
from agentenv.fleet.seeds import Seeds
from agentenv.fleet.trace import TraceWriter
from agentenv.sandbox.contract import Sandbox
from agentenv.telemetry.records import RecordWriter
from agentenv.telemetry.text import message_of
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
        *,
        tracing: Callable[[tuple[str, ...], int], TraceWriter],
        looks: Callable[[], int],
        beginning: Beginning | None = None,
        notice: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        """Take over an environment that is ready.

        Args:
            fleet: The environment, alone in its sandbox.
            environment: Its configuration.
            policy: From ``find_policy``.
            seeds: The run's.
            records: Takes a record an episode; owned from here on.
            progress: To keep up to date.
            tracing: Opens the trace, from the names of the observation's parts and the bytes of an action.
            looks: How often it was looked whether its bell rang.
            beginning: Where an earlier process left off; None to begin at the first episode.
            notice: Called with the kind of an event and a sentence, when something unusual happens.

        Raises:
            PolicyError: The policy cannot be made.
        """
        self.fleet = fleet
        self.progress = progress
        self._earlier_restarts = progress.restarts
        self._stopping = False
        self._environment = environment
        self._seeds = seeds
        self._records = records
        self._stepping = False
        self._in_episode = False
        self._seed, self._length, self._return, self._started = 0, 0, 0.0, 0.0
        self._status, self._answer = 0, _NOTHING
        space = fleet.single_action_space
        self._space, self._notice = space, notice
        self._act = make_actor(
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
        # Written here first: what is noted must be what was decided, and the slot is the guest's as well.
        self._action = np.zeros(actions.nbytes, np.uint8)
        self._slot_action = memory[fleet.slot.action : fleet.slot.action + actions.nbytes]
        self._write = Writer(actions, self._action).write
        self._read: Callable[[Sequence[object]], Any] = Reader(observations, memory[fleet.slot.observation :]).read
        self._digester = Digester(observations, memory[fleet.slot.observation :])
        self._taken = self._none_taken = (bytes(actions.nbytes), b"")
        self._policy_state = PolicyState(self._act if isinstance(policy, type) else None, space)
        self._trace = tracing(self._digester.names, actions.nbytes)
        self._beginning, self._attempt, self._restarted = beginning, 0, ""
        self._following: Following | None = None
        self._channel = fleet.channel
        self._channel.be_loud(looks)
        self._held_back: tuple[Op, list[bytes] | None, float] | None = None

    @property
    def sandbox(self) -> Sandbox:
        """Where the environment lives."""
        return self.fleet.sandboxes[0]

    @property
    def bell(self) -> int:
        """The descriptor that becomes readable when ``proceed`` has something to do."""
        return self._group().done.reader

    @property
    def holds_back(self) -> bool:
        """Whether its next request waits for ``ask``, because the state is to be saved first, which takes a moment."""
        return self._held_back is not None

    def begin(self) -> None:
        """Ask for the first episode, or for the one an earlier process left off in."""
        if self._beginning is not None:
            self._take_up(self._beginning)
        self._remembered = self._policy_state.capture()
        self._reset()

    def rung(self) -> bool:
        """After the bell: whether the answer is there, or will never come. A guest may ring for nothing."""
        return self._channel.answered(0)

    def spilled(self) -> bool:
        """Whether the answer's payload must still be read from a socket, which takes as long as the guest likes."""
        return not self._group().lost and bool(int(self._channel.status[0]) & Flag.SPILLED)

    def lost(self) -> bool:
        """Whether its process is gone: to take the answer means to bring it back first."""
        return self._group().lost

    def take(self) -> None:
        """Take the answer.

        Raises:
            SandboxError: The environment raised, died, was late or broke the protocol.
        """
        self.fleet.wait()  # has answered or is lost: returns at once or raises
        self.progress.restarts = self._earlier_restarts + self.fleet.recovery.recovered
        self._status = int(self._channel.status[0])
        self._answer = self.fleet.answer(0) if self._status & PAYLOAD else _NOTHING
        self._status = int(self._channel.status[0])  # if it died before all of that was read, it has answered again

    def proceed(self) -> bool:
        """After ``take``: ask for the next step or episode; False when it has played everything.

        Raises:
            PolicyError: The policy raised or its action does not fit.
            SandboxDied: The answer cannot be used; the environment was ended for that.
        """
        reward = float(self._channel.rewards[0]) if self._stepping else 0.0
        try:
            step = self._digester.read(reward, self._status, self._answer.info, self._answer.observation)
        except ProtocolError as error:
            raise self.fleet.reject(0, str(error)) from error
        if self._following is None:
            self._trace.add(*self._taken, step)
        elif reason := self._following.answer(step):
            self.begin_again(reason)
            return True
        else:
            self._trace.follow(*self._following.last())
            self._look_up()
        if self._stepping:
            self.progress.steps += 1
            self._length += 1
            self._return += reward
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

    def begin_again(self, reason: str) -> None:
        """Begin the episode that is going on once more, from its reset; it is marked, and its first part not counted.

        Args:
            reason: Why, in words.
        """
        self._notice("episode_restarted", f"episode {self.progress.episodes} begins again: {reason}")
        self._trace.flush()
        self.progress.steps -= self._length
        self._following, self._attempt, self._restarted = None, self._attempt + 1, reason
        if self._remembered:
            self._policy_state.restore(self._remembered)
        self._reset()

    def stop(self) -> None:
        """End after the current step."""
        self._stopping = True

    def abort(self, outcome: Outcome) -> None:
        """Record the episode that is going on, if any, as ended this way, and close the records. Idempotent."""
        if self._in_episode:
            self._finish(outcome)
        self._records.close()
        self._trace.close()

    def _reset(self) -> None:
        self._seed = self._seeds.environment(
            self._environment.id, seed=self._environment.seed, episode=self.progress.episodes
        )
        self._return, self._length = 0.0, 0
        self._started = time.monotonic()
        self._stepping, self._in_episode = False, True
        self._taken = self._none_taken
        self._trace.begin(self.progress.episodes, self._seed, attempt=self._attempt)
        self._post(Op.RESET, [encode([self._seed, None])], self._environment.reset_timeout_s)

    def _step(self, answer: Answer) -> None:
        try:
            action = self._sample() if self._act is None else self._act(self._read(answer.observation), self._space)
        except (SandboxError, StopNow, KeyboardInterrupt):
            raise
        except BaseException as error:  # a cancelled task of asyncio is none of Exception's either
            raise PolicyError(f"the policy raised {message_of(error)}", traceback.format_exc()) from error
        try:
            variable = self._write(self._check(action))
            taken = (self._action.tobytes(), encode(variable) if self._variable_action else b"")
        except (InvalidAction, ValueError, TypeError) as error:
            raise PolicyError(f"the policy's action does not fit: {error}") from error
        except Exception as error:  # an action may be an object of somebody else's
            raise PolicyError(f"the policy's action does not fit: reading it raised {message_of(error)}") from error
        if self._following is not None and (reason := self._following.action(*taken)):
            self.begin_again(reason)
            return
        self._taken = taken
        self._slot_action[:] = self._action
        self._stepping = True
        self._post(Op.STEP, [taken[1]] if self._variable_action else None, self._environment.step_timeout_s)

    def ask(self) -> None:
        """Send what was held back.

        Raises:
            SandboxError: The environment died while its state was saved, and cannot be brought back.
        """
        held, self._held_back = self._held_back, None
        if held is not None:
            op, payloads, timeout_s = held
            self.fleet.post(op, None, payloads, timeout_s=timeout_s)

    def _post(self, op: Op, payloads: list[bytes] | None, timeout_s: float) -> None:
        self._held_back = op, payloads, timeout_s
        if not self.fleet.recovery.due:
            self.ask()

    def _group(self) -> Group:
        group = self._channel.groups[0]
        assert group is not None  # one that is alone is never retired
        return group

    def _take_up(self, beginning: Beginning) -> None:
        """Be where the earlier process was when the unfinished episode began."""
        restored = beginning.policy_state is not None and self._policy_state.restore(beginning.policy_state)
        draws = beginning.draws if restored else beginning.all_draws
        if self._act is None:
            for _ in range(draws):
                self._sample()
        elif draws or (self._policy_state.gap and self.progress.episodes):
            gap = self._policy_state.gap or "what it remembered was not recorded"
            self._notice("policy_new", f"the policy begins episode {self.progress.episodes} as a new one: {gap}")
        self._attempt = beginning.attempt
        self._restarted = "when the run was resumed before" if beginning.attempt else ""
        rows = beginning.rows
        if rows is not None and len(rows):
            self._following = Following(self._digester.names, rows)

    def _look_up(self) -> None:
        """Stop following where nothing more is recorded."""
        following = self._following
        if following is not None and following.over:
            self._following = None
            if following.noted:
                self._notice("info_differs", following.noted)

    def _finish(self, outcome: Outcome) -> None:
        self._in_episode = False
        whole = outcome in (Outcome.TERMINATED, Outcome.TRUNCATED)
        if whole:
            self._remembered = self._policy_state.capture()
            self._trace.end(outcome.value, self._remembered)
        else:
            self._trace.flush()
        record = {
            "env_id": self._environment.id,
            "episode": self.progress.episodes,
            "seed": self._seed,
            "return": self._return,
            "length": self._length,
            "duration_s": round(time.monotonic() - self._started, 6),
            "outcome": outcome.value,
            "digest": self._trace.chain,
        }
        if self._restarted:
            record |= {"attempt": self._attempt, "restarted": self._restarted}
        self._records.append(record)
        if whole:
            self._attempt, self._restarted = 0, ""
            self.progress.episodes += 1
            self.progress.returns.append(self._return)
            self.progress.lengths += self._length
