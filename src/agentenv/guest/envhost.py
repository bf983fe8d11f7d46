"""The step loop: builds the environments of one sandbox and serves them over shared memory until told to stop.

Life: build -> send the spaces -> receive shared memory and bells -> serve. Every wake-up serves all slots whose
ticket is due and answers with one ring, so K environments in a sandbox cost one round trip. An exception of an
environment is an answer like any other; only the death of the process ends the loop.
"""

from __future__ import annotations

import mmap
import os
import random
import socket
from typing import Any

import numpy as np

from agentenv.guest.control import receive_message, send_message
from agentenv.guest.failure import failure
from agentenv.guest.maker import make_environment
from agentenv.guest.served import Served
from agentenv.wire import slot
from agentenv.wire.slot import SlotLayout
from agentenv.wire.spaces import describe
from agentenv.wire.spin import Spin

_RING = (1).to_bytes(8, "little")


def main(control: socket.socket, settings: dict[str, Any]) -> int:
    """Run the environments described in ``settings["envs"]``; returns the process's exit status."""
    try:
        environments = []
        for description in settings["envs"]:
            _seed_globals(description["global_seed"])
            environments.append(make_environment(description))
        send_message(control, {"ready": [_introduce(env) for env in environments]})
    except Exception as error:
        send_message(control, {"error": failure(error)})
        return 0
    attach, fds = receive_message(control, max_fds=3)
    memory, wake, done = fds
    layout = SlotLayout(**attach["layout"])
    count = len(environments)
    shared = mmap.mmap(memory, count * layout.size)
    os.close(memory)
    served = [
        Served(env, memoryview(shared)[i * layout.size : (i + 1) * layout.size], layout, attach, control)
        for i, env in enumerate(environments)
    ]
    try:
        _serve(served, memoryview(shared)[: slot.HEADER].cast("Q"), wake, done, Spin(attach["spin_us"]))
    finally:
        for one in served:
            one.close()
    return 0


def _serve(served: list[Served], header: memoryview, wake: int, done: int, spin: Spin) -> None:
    read, write, ring = os.read, os.write, _RING
    group_ticket, group_done = slot.GROUP_TICKET // 8, slot.GROUP_DONE // 8
    only = served[0] if len(served) == 1 else None
    running = True
    while running:
        if spin.wanted:
            spin.until_differ(header, group_ticket, group_done)
        if not read(wake, 8):
            return
        ticket = header[group_ticket]
        if ticket == header[group_done]:
            continue  # a bell rung twice for one request
        if only is not None:
            running = only.serve()
        else:
            going_on = [one.serve() for one in served if one.due(ticket)]  # a list: all are served, whatever one says
            running = all(going_on)
        header[group_done] = ticket
        write(done, ring)
        for one in served:
            if one.spill is not None:
                one.send_spill()


def _seed_globals(seed: int | None) -> None:
    """Give this process its own global random state: a forked one would share it with its siblings."""
    value = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    random.seed(value)
    np.random.seed(value % (1 << 32))


def _introduce(env: Any) -> dict[str, Any]:
    metadata = {
        key: value
        for key, value in dict(getattr(env, "metadata", None) or {}).items()
        if isinstance(key, str) and _is_plain(value)
    }
    spec = getattr(env, "spec", None)
    return {
        "observation_space": describe(env.observation_space, allow_foreign=True),
        "action_space": describe(env.action_space),
        "metadata": metadata,
        "render_mode": getattr(env, "render_mode", None),
        "spec_id": getattr(spec, "id", None),
        "max_episode_steps": getattr(spec, "max_episode_steps", None),
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)
