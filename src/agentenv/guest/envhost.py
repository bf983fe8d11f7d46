"""The step loop: builds the environments of one sandbox and serves them over shared memory until told to stop.

Life: build -> send the spaces -> receive shared memory and bells -> serve. Every wake-up serves all slots whose
ticket is due and is answered at once, so K environments in a sandbox cost one round trip. An exception of an
environment is an answer like any other; only the death of the process ends the loop.
"""

from __future__ import annotations

import mmap
import os
import socket
from typing import Any

from agentenv.guest.capture import Capture
from agentenv.guest.control import receive_message, send_message
from agentenv.guest.failure import failure
from agentenv.guest.family import Family, Reborn
from agentenv.guest.maker import make_environment
from agentenv.guest.seeding import reseed, seed_globals, seed_unseeded
from agentenv.guest.served import Served
from agentenv.guest.waiting import Waiting
from agentenv.wire import slot
from agentenv.wire.slot import SlotLayout
from agentenv.wire.spaces import describe


def main(control: socket.socket, settings: dict[str, Any]) -> int:
    """Run the environments described in ``settings["envs"]``; returns the process's exit status."""
    try:
        environments = []
        for description in settings["envs"]:
            seed_globals(description["global_seed"])
            environments.append(make_environment(description))
            seed_unseeded(environments[-1], description["global_seed"])
        send_message(control, {"ready": [_introduce(env) for env in environments]})
    except Exception as error:
        send_message(control, {"error": failure(error)})
        return 0
    attach, fds = receive_message(control, max_fds=3)
    kept: list[tuple[bool, bool, Capture | None]] = [(False, False, None)] * len(environments)
    while True:
        try:
            _live(environments, kept, control, attach, fds)
        except Reborn as reborn:
            attach, fds = reborn.attach, reborn.fds[1:]
            control = socket.socket(fileno=reborn.fds[0])
            send_message(control, {"hello": os.getpid()})
            for env in environments if attach["reseed"] is not None else ():
                reseed(env, attach["reseed"])
        else:
            return 0


def _live(
    environments: list[Any],
    kept: list[tuple[bool, bool, Capture | None]],
    control: socket.socket,
    attach: dict[str, Any],
    fds: list[int],
) -> None:
    """Serve until told to stop.

    Raises:
        Reborn: This is a copy that serves anew; ``kept`` then says which had begun or were over, and has the captures.
    """
    memory, wake, done = fds
    layout = SlotLayout(**attach["layout"])
    shared = mmap.mmap(memory, len(environments) * layout.size)
    os.close(memory)
    family = Family(control, (wake, done))
    waiting = Waiting(memoryview(shared)[: slot.HEADER].cast("Q"), wake, done, attach["spin_us"])
    served = [
        Served(
            env,
            memoryview(shared)[i * layout.size : (i + 1) * layout.size],
            layout,
            attach,
            control,
            family.copy,
            waiting.set_pace,
        )
        for i, env in enumerate(environments)
    ]
    for one, (over, begun, capture) in zip(served, kept):
        one.ended, one.begun, one.capture = over, begun, capture
    try:
        _serve(served, waiting)
    except Reborn:
        kept[:] = [(one.ended, one.begun, one.capture) for one in served]
        raise
    for one in served:
        one.close()


def _serve(served: list[Served], waiting: Waiting) -> None:
    if len(served) == 1:
        _serve_one(served[0], waiting)
        return
    running = True
    while running and (ticket := waiting.for_request()):
        going_on = [one.serve() for one in served if one.due(ticket)]  # a list: all are served, whatever one says
        running = all(going_on)
        spills = [one for one in served if one.spill is not None]
        waiting.answered(ticket, last=bool(spills) or not running)
        for one in spills:
            one.send_spill()


def _serve_one(one: Served, waiting: Waiting) -> None:
    """The same for one environment: where there is a process for each, little is in a processor's caches."""
    for_request, answered = waiting.for_request, waiting.answered
    while ticket := for_request():
        running = one.serve()
        if running and one.spill is None:
            answered(ticket)
            continue
        answered(ticket, last=True)
        one.send_spill()
        if not running:
            return


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
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, int, float, bool))
