"""One environment as the host sees it: a slot of shared memory with requests in and answers out.

The autoreset modes of ``gymnasium.vector`` are done here, beside the environment, so that a finished episode costs
no second round trip. The order of calls on the environment is exactly ``SyncVectorEnv``'s.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from agentenv.guest.capture import Capture, Unfit
from agentenv.guest.failure import failure
from agentenv.guest.seeding import reseed
from agentenv.wire import slot
from agentenv.wire.bounds import check_size, light_size
from agentenv.wire.digest import make_digest
from agentenv.wire.layout import Reader, Writer, plan
from agentenv.wire.likeness import is_plain, is_read_back
from agentenv.wire.slot import Flag, Op, SlotLayout
from agentenv.wire.values import decode, encode

_RECORD_LIMIT = 1 << 30


class Served:
    """An environment and its slot.

    Attributes:
        serve: Answers the request in the slot; False when it was the last one.
        ended: Whether the episode is over.
        begun: Whether there has been an episode at all.
        capture: What has been found out about keeping the environment's state; survives a copy of the process.
        spill: Payload that did not fit into the slot and must follow on the control socket.
    """

    serve: Callable[[], bool]

    def __init__(
        self,
        env: Any,
        memory: memoryview,
        layout: SlotLayout,
        attach: dict[str, Any],
        control: socket.socket,
        copy: Callable[[], list[Any]],
        set_pace: Callable[[int], None],
    ) -> None:
        """Serve one slot.

        Args:
            env: The environment.
            memory: The slot.
            layout: Where everything lies in it.
            attach: The attach message.
            control: Carries payloads that do not fit.
            copy: Forks the process; see ``guest.family``.
            set_pace: Says how the process waits; see ``guest.waiting``.
        """
        self.env = env
        self.ended = self.begun = False
        self.spill: bytes | None = None
        self._control, self._set_pace = control, set_pace
        self._memory = memory
        self._layout = layout
        self._max_bytes: int = attach["max_bytes"]
        self._light_bytes = min(self._max_bytes, light_size(self._max_bytes))
        self._words = memory[: slot.HEADER].cast("Q")
        self._floats = memory[: slot.HEADER].cast("d")
        self._next_step, self._same_step = attach["autoreset"] == "NextStep", attach["autoreset"] == "SameStep"
        actions, observations = plan(env.action_space), plan(env.observation_space)
        self._root = observations.root
        array = np.frombuffer(memory, dtype=np.uint8)
        sampled = {"numpy_scalars": True, "keep_zero_d": not attach["batched"]}
        read_action = Reader(actions, array[layout.action :], **sampled).read
        self._variable_action = actions.variable
        self._read_action: Callable[[], Any] = read_action
        if actions.variable:
            self._read_action = lambda: read_action(self._request())
        self._write_observation = Writer(observations, array[layout.observation :]).write
        self._write_final = Writer(observations, array[layout.final :]).write
        self._observation_digest = make_digest(array[layout.observation : layout.observation + observations.nbytes])
        self._final_digest = make_digest(array[layout.final : layout.final + observations.nbytes])
        self._action_bytes = actions.nbytes
        self._start = 0  # what the digest of this answer starts from: the payload's
        self._replayed: bytes | None = None
        self.capture: Capture | None = None
        self._unfit = ""
        self._timed = _reports_times(env)
        self._handlers = {
            Op.RESET: self._reset,
            Op.RENDER: self._render,
            Op.CALL: self._call,
            Op.SET: self._set,
            Op.LOOK: self._look,
            Op.CAPTURE: self._give_state,
            Op.LOAD: self._take_state,
            Op.REPLAY: self._replay,
            Op.COPY: lambda _request: self._answer(Flag.VALUE, copy()),
            Op.CUT: self._cut,
        }
        self.serve = self._compile()

    def due(self, ticket: int) -> bool:
        """Whether the host asks this slot with this wake-up."""
        return bool(self._words[slot.TICKET // 8] == ticket)

    def close(self) -> None:
        """Close the environment; what it raises then is of no use to anybody any more, so it is only printed."""
        try:
            self.env.close()
        except Exception as error:
            print(f"agentenv: close() raised {type(error).__name__}: {error}")

    def send_spill(self) -> None:
        """Send the payload that did not fit."""
        payload, self.spill = self.spill, None
        if payload is not None:
            self._control.sendall(payload)

    def _compile(self) -> Callable[[], bool]:
        """The step path as one function over local names: it runs tens of thousands of times a second."""
        words, floats = self._words, self._floats
        op_at, status_at, reward_at, digest_at = slot.OP // 8, slot.STATUS // 8, slot.REWARD // 8, slot.DIGEST // 8
        step, write_observation, digest = self.env.step, self._write_observation, self._observation_digest
        read_action: Callable[[], Any] = self._read_action
        step_op, close_op = int(Op.STEP), int(Op.CLOSE)

        def serve() -> bool:
            try:
                op = words[op_at]
                if op == step_op:
                    action = read_action()
                    if self.ended and self._next_step:
                        self._restart()
                        words[digest_at] = digest(self._start)
                        return True
                    observation, reward, terminated, truncated, info = step(action)
                    floats[reward_at] = reward if type(reward) is float else _scalar(reward)
                    if terminated or truncated:
                        self._end(observation, terminated, truncated, info)
                        words[digest_at] = digest(self._start)
                        return True
                    variable = write_observation(observation)
                    if info or variable:
                        self._publish(variable, info, 0)
                        words[digest_at] = digest(self._start)
                    else:
                        words[status_at] = 0
                        words[digest_at] = digest(0)
                elif op in slot.PACES:
                    self._set_pace(op)
                    words[status_at] = 0
                elif op == close_op:
                    words[status_at] = 0
                    return False
                else:
                    self._handlers[Op(op)](self._request())
                    words[digest_at] = digest(self._start)
            except Exception as error:
                self._answer(Flag.ERROR, failure(error))
                words[digest_at] = digest(0)  # a traceback may name addresses
            return True

        return serve

    def _restart(self) -> None:
        """The step after the last one, where autoreset is on the next step: the action is not used."""
        self.ended = False
        observation, info = self.env.reset()
        self._floats[slot.REWARD // 8] = 0.0
        self._publish(self._write_observation(observation), info, 0)

    def _end(self, observation: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
        """The last step of an episode."""
        flags = (int(Flag.TERMINATED) if terminated else 0) | (int(Flag.TRUNCATED) if truncated else 0)
        if not self._same_step:
            variable = self._write_observation(observation)
            self.ended = True
            self._publish(variable, info, flags)
            return
        # Stored before reset(), which may reuse the environment's own buffer and dict.
        final_variable = self._write_final(observation)
        raw = None if is_read_back(self._root, observation) or not is_plain(self._root, observation) else [observation]
        final = encode([_as_info(info), final_variable, raw])
        if len(final) > self._light_bytes:
            check_size(final, self._max_bytes)
        lasting = self._final_digest(crc32(self._lasting(final, [_as_info(info), final_variable, raw])))
        observation, info = self.env.reset()
        variable = self._write_observation(observation)
        self._answer(flags | Flag.RECORD | Flag.FINAL, [_as_info(info), variable, final])
        self._start = crc32(encode([_as_info(info), variable, lasting]))

    def _publish(self, variable: list[object], info: dict[str, Any], flags: int) -> None:
        if variable:
            self._answer(flags | Flag.RECORD, [_as_info(info), variable, None])
        elif info:
            self._answer(flags | Flag.INFO, _as_info(info))
        else:
            self._start = 0
            self._words[slot.STATUS // 8] = flags

    def _reset(self, request: Any) -> None:
        seed, options = request
        self.ended = False
        self._floats[slot.REWARD // 8] = 0.0
        observation, info = self.env.reset(seed=seed, options=options)
        self.begun = True
        self._publish(self._write_observation(observation), info, 0)

    def _render(self, _request: Any) -> None:
        self._answer(Flag.VALUE, self.env.render())

    def _call(self, request: Any) -> None:
        name, args, kwargs = request
        found = self._find(name)
        self._answer(Flag.VALUE, found(*args, **kwargs) if callable(found) else found)

    def _look(self, request: Any) -> None:
        try:
            found = self._find(request)
        except AttributeError:
            self._answer(Flag.VALUE, ["none"])
        else:
            self._answer(Flag.VALUE, ["callable"] if callable(found) else ["value", found])

    def _find(self, name: str) -> Any:
        return self.env.get_wrapper_attr(name) if hasattr(self.env, "get_wrapper_attr") else getattr(self.env, name)

    def _set(self, request: Any) -> None:
        name, value = request
        if hasattr(self.env, "set_wrapper_attr"):
            self.env.set_wrapper_attr(name, value)
        else:
            setattr(self.env, name, value)
        self._answer(Flag.VALUE, None)

    def _give_state(self, proof: bool | str) -> None:
        began = perf_counter()
        if proof is True and not self.begun:
            # Steps before the first reset fail, or tell little: no verdict on it could be kept.
            self._answer(Flag.VALUE, ["not yet", "it has not been reset yet"])
            return
        try:
            if self._unfit:
                raise Unfit(self._unfit)
            if self.capture is None:
                self.capture = Capture(self.env)
            if isinstance(proof, str) and self.capture.how != proof:
                self.capture.fall_back()
            data = self.capture.dump(self.ended)
            while proof is True and (wrong := self.capture.proven(self.env, data, self.ended, self._last_action())):
                if not self.capture.fall_back():
                    raise Unfit(f"a restored copy goes on differently: {wrong}")
                data = self.capture.dump(self.ended)
        except Unfit as error:
            self._unfit = str(error)
            self._answer(Flag.VALUE, ["no", self._unfit])
            return
        if proof is True:
            began = perf_counter()
            data = self.capture.dump(self.ended)
        self._answer(Flag.VALUE, [self.capture.how, data, perf_counter() - began])

    def _last_action(self) -> Any:
        """The action of the last step, where there was one and it can still be read."""
        action = None if self._variable_action else self._read_action()
        return action if action is not None and self.env.action_space.contains(action) else None

    def _take_state(self, request: Any) -> None:
        how, data, seed = request
        if how is not None:
            if self.capture is None:
                self.capture = Capture(self.env)
            if self.capture.how != how:
                self.capture.fall_back()
            self.ended = self.capture.load(data)
            self.begun = True
        if seed is not None:
            reseed(self.env, seed)
        self.serve = self._compile()  # restored attributes may hold another step()
        self._answer(Flag.VALUE, None)

    def _replay(self, request: Any) -> None:
        words, outcomes, at = self._words, bytearray(), slot.OUTCOME
        action, size, end = self._layout.action, self._action_bytes, slot.OUTCOME + 8 * slot.OUTCOME_WORDS
        for op, count, data in request:
            words[slot.OP // 8] = op
            for number in range(count):
                if op != Op.STEP:
                    self._replayed = data
                else:
                    self._memory[action : action + size] = data[number * size : (number + 1) * size]
                    if self._variable_action:
                        self._replayed = data[size:]
                self.serve()
                self.spill = self._replayed = None
                outcomes += self._memory[at:end]
        self._answer(Flag.VALUE, bytes(outcomes))

    def _cut(self, request: Any) -> None:
        seed, info = request
        self._floats[slot.REWARD // 8] = 0.0
        observation, _ = self.env.reset(seed=seed)
        self.begun = True
        self._end(observation, False, True, info)

    def _request(self) -> Any:
        if self._replayed is not None:
            return decode(self._replayed, max_bytes=_RECORD_LIMIT)
        length = self._words[slot.IN_LENGTH // 8]
        if length > self._layout.inbox_size:
            from agentenv.guest.control import receive_exactly

            data = receive_exactly(self._control, length)
        else:
            data = bytes(self._memory[self._layout.inbox : self._layout.inbox + length])
        return decode(data, max_bytes=_RECORD_LIMIT)

    def _lasting(self, payload: bytes, value: Any) -> bytes:
        """A payload as it counts for the digest."""
        return encode(_without_time(value)) if self._timed else payload

    def _answer(self, flags: int, value: Any) -> None:
        payload = encode(value)
        self._start = crc32(self._lasting(payload, value))
        length = len(payload)
        if length > self._light_bytes:
            check_size(payload, self._max_bytes)
        words = self._words
        words[slot.OUT_LENGTH // 8] = length
        if length > self._layout.outbox_size:
            self.spill = payload
            flags |= Flag.SPILLED
        else:
            outbox = self._layout.outbox
            self._memory[outbox : outbox + length] = payload
        words[slot.STATUS // 8] = int(flags)


def _reports_times(env: Any) -> bool:
    """Whether a wrapper puts how long an episode took into its last info, which no repetition takes as long."""
    while env is not None:
        if isinstance(env, RecordEpisodeStatistics):
            return True
        env = getattr(env, "__dict__", {}).get("env")
    return False


def _without_time(value: Any) -> Any:
    """A payload's value without the seconds ``RecordEpisodeStatistics`` has measured."""
    if isinstance(value, dict) and isinstance(value.get("episode"), dict):
        return {**value, "episode": {key: item for key, item in value["episode"].items() if key != "t"}}
    return [_without_time(item) for item in value] if isinstance(value, list) else value


def _as_info(info: Any) -> dict[str, Any]:
    """The info, held to Gymnasium's contract, on which trainers and wrappers rely; nothing counts as an empty one.

    Raises:
        TypeError: It is not a dict with text keys.
    """
    if not info:
        return {}
    if not isinstance(info, dict):
        raise TypeError(f"the info must be a dict with text keys; got {type(info).__name__} {info!r:.200}")
    for key in info:
        if not isinstance(key, str):
            raise TypeError(f"the info must be a dict with text keys; got the key {key!r:.200} ({type(key).__name__})")
    return info


def _scalar(reward: Any) -> float:
    """A reward of any sane shape as a float: python and numpy scalars, arrays of one element.

    Raises:
        ValueError: It is not one number.
    """
    array = np.asarray(reward)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"the reward must be one number; got {type(reward).__name__} {reward!r:.200}")
    return float(array.reshape(()).item())
