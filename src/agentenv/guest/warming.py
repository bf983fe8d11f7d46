"""Doing once in the zygote what every environment's process does, so that they all share its pages.

What Python and numpy set up at the first use (caches, specialised bytecode, resolved symbols) is written to memory.
After a fork each process would write it to pages of its own.
"""

from __future__ import annotations

import socket
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agentenv.guest.seeding import seed_globals, seed_unseeded
from agentenv.guest.served import Served
from agentenv.guest.waiting import Waiting
from agentenv.wire import slot
from agentenv.wire.slot import Op, plan_slot
from agentenv.wire.spaces import describe
from agentenv.wire.values import encode

_STEPS = 64


class _Still(gymnasium.Env[Any, Any]):
    observation_space: Any = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(4, np.float32), 0.0, False, False, {}


def warm_up() -> None:
    """Serve an environment that does nothing, for a moment."""
    seed_globals(0)
    env = _Still()
    seed_unseeded(env, 0)
    describe(env.observation_space, allow_foreign=True)
    describe(env.action_space)
    layout = plan_slot(8, 16, final=False, variable=False)
    attach = {"max_bytes": 1 << 20, "autoreset": "NextStep", "batched": True}
    here, there = socket.socketpair()
    with here, there:
        memory = memoryview(bytearray(layout.size))
        words = memory[: slot.HEADER].cast("Q")
        served = Served(env, memory, layout, attach, here, list, Waiting(words, -1, -1, 0).set_pace)
        request = encode([0, None])
        memory[layout.inbox : layout.inbox + len(request)] = request
        words[slot.IN_LENGTH // 8] = len(request)
        for op in (Op.RESET, *[Op.STEP] * _STEPS):
            words[slot.OP // 8] = op
            served.serve()
