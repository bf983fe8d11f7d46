"""Deeds that break the protocol: lying lengths and flags, forged messages, bells rung wrongly or not at all.

They write the shared memory and the descriptors directly, as native code in an environment could. The offsets are those
of ``agentenv.wire.slot``, which are public.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import random
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from agentenv.guest.keeper import EXIT, EXIT_MAGIC
from agentenv.testing.hostile.cage import channel_memory, descriptors
from agentenv.wire import slot
from agentenv.wire.slot import Flag

_FOR_EVER_S = 1e6
_RING = (1).to_bytes(8, "little")
_FULL = (2**64 - 2).to_bytes(8, "little")  # all an eventfd holds
_DONE, _STATUS, _LENGTH = slot.GROUP_DONE // 8, slot.STATUS // 8, slot.OUT_LENGTH // 8


def hang() -> NoReturn:
    """Never return."""
    while True:
        time.sleep(_FOR_EVER_S)


def _ring() -> None:
    for bell in descriptors().bells_out:
        os.write(bell, _RING)


def _answer(status: int, length: int, payload: bytes = b"", *, ring: bool = True) -> NoReturn:
    """Answer the request in the guest's place, then never again."""
    words, raw = (memory := channel_memory()).words(), memory.raw()
    if payload:
        raw[-len(payload) :] = payload  # the outbox ends with the slot
    words[_STATUS], words[_LENGTH] = status, length
    words[_DONE] = words[slot.GROUP_TICKET // 8]
    if ring:
        _ring()
    hang()


def _answering(status: int, length: int) -> Callable[[Any], NoReturn]:
    return lambda env: _answer(status, length)


def _garbage_everywhere(env: Any) -> NoReturn:
    memory, rng = channel_memory(), random.Random(1)
    raw, words = memory.raw(), memory.words()
    ticket = words[slot.GROUP_TICKET // 8]
    for _ in range(50):
        raw[:] = rng.randbytes(len(raw))
        _ring()
    raw[:] = b"\xff" * len(raw)
    words[slot.GROUP_TICKET // 8] = ticket
    _answer((1 << 64) - 1, (1 << 64) - 1)


def _hosts_words(env: Any) -> dict[str, Any]:
    """Overwrite what the host wrote for the guest; then answer like an honest environment."""
    words = channel_memory().words()
    kept = list(words[:8])
    for value in (0, 1, (1 << 64) - 1, 1 << 63):
        words[:8] = memoryview(struct.pack("8Q", *[value] * 8)).cast("Q")
    words[:8] = memoryview(struct.pack("8Q", *kept)).cast("Q")
    return {}


def _done_early(env: Any) -> NoReturn:
    """Claim to have served requests that have not been made."""
    words = channel_memory().words()
    words[_DONE] = words[slot.GROUP_TICKET // 8] + 1
    _ring()
    hang()


def _done_backwards(env: Any) -> NoReturn:
    words = channel_memory().words()
    for step in range(1000):
        words[_DONE] = (words[slot.GROUP_TICKET // 8] - 1 - step) % (1 << 64)
        _ring()
    hang()


def _silent_answer(env: Any) -> NoReturn:
    """Answer after the host has gone to sleep, and do not wake it."""
    time.sleep(0.2)
    _answer(0, 0, ring=False)


def _quiet_answer(env: Any) -> NoReturn:
    """Answer at once without a ring, claiming to look for the next request."""
    channel_memory().words()[slot.AWAKE // 8] = 1
    _answer(0, 0, ring=False)


def _steal_as_an_orphan(env: Any) -> NoReturn:
    """Leave a process behind that takes every ring, and die."""
    if os.fork() == 0:
        _steal_rings(env)
    time.sleep(0.2)
    os._exit(3)


def _flicker(env: Any) -> NoReturn:
    """Have the answer there and not there, as fast as it goes, ringing all the time."""
    words, bells = channel_memory().words(), descriptors().bells_out
    ticket = words[slot.GROUP_TICKET // 8]
    for bell in bells:
        os.set_blocking(bell, False)
    while True:
        words[_DONE] = ticket
        words[_DONE] = 0
        for bell in bells:
            with contextlib.suppress(BlockingIOError):
                os.write(bell, _RING)


def _fill_bell(env: Any) -> NoReturn:
    for bell in descriptors().bells_out:
        os.set_blocking(bell, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(bell, _FULL)
    hang()


def _steal_rings(env: Any) -> NoReturn:
    """Take every ring out of the bell it rings, so that the host never hears one."""
    for bell in descriptors().bells_out:
        while True:
            os.read(bell, 65536)
    hang()


def _fill_own_bell(env: Any) -> NoReturn:
    """Make the bell it is woken by look full, so that the host's next write to it waits for room; never read it."""
    words, bells = channel_memory().words(), descriptors().bells_in
    while True:
        ticket = words[slot.GROUP_TICKET // 8]
        if words[_DONE] != ticket:
            words[_STATUS] = 0
            words[_DONE] = ticket
            _ring()
        for bell in bells:
            os.set_blocking(bell, False)
            with contextlib.suppress(BlockingIOError):
                os.write(bell, _FULL)
            os.set_blocking(bell, True)


def _never_read_bell(env: Any) -> NoReturn:
    """Answer every request from here on, without ever reading the bell that announces it."""
    words = channel_memory().words()
    while True:
        ticket = words[slot.GROUP_TICKET // 8]
        if words[_DONE] != ticket:
            words[_STATUS] = 0
            words[_DONE] = ticket
            _ring()
        time.sleep(0)


def _close_everything(env: Any) -> NoReturn:
    os.closerange(3, 256)
    hang()


def _close_bells(env: Any) -> dict[str, Any]:
    held = descriptors()
    for fd in (*held.bells_in, *held.bells_out):
        os.close(fd)
    return {}


def _unblock_descriptors(env: Any) -> dict[str, Any]:
    held = descriptors()
    for fd in (held.control, *held.bells_in, *held.bells_out):
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_APPEND)
    return {}


def _resize_memory(env: Any) -> dict[str, Any]:
    held, resized = descriptors().memory, 0
    for fd in held:
        for size in (0, 1 << 40):
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
                resized += 1
    return {"tried": len(held), "resized": resized}


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/agentenv-pickle-bomb",)


def _pickle_bomb(env: Any) -> NoReturn:
    payload = pickle.dumps(_Bomb())
    _answer(int(Flag.INFO), len(payload), payload)


def write_control(data: bytes) -> None:
    """Send bytes to the host on the control socket, whatever they are."""
    fd = descriptors().control
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _garbage_on_control(env: Any) -> dict[str, Any]:
    """Garbage first, then an honest answer too large for the slot, which must come by the same way."""
    write_control(random.Random(2).randbytes(50_000))
    return {"large": "x" * 200_000}


def _fill_control(env: Any) -> NoReturn:
    fd = descriptors().control
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b"\xff" * 65536)
    os._exit(7)


def _forged_exit(env: Any) -> NoReturn:
    """Report an honourable end, and live on."""
    write_control(EXIT.pack(EXIT_MAGIC, 1, 0, 0))
    hang()


def _dribble_promise(env: Any) -> NoReturn:
    """Promise a megabyte on the control socket and send a byte now and then."""

    def dribble() -> None:
        while True:
            write_control(b"\0")
            time.sleep(0.5)

    threading.Thread(target=dribble, daemon=True).start()
    _answer(int(Flag.INFO | Flag.SPILLED), 1 << 20)


def _info(make: Callable[[], Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda env: {"value": make()}


def _nested() -> Any:
    value: Any = 0
    for _ in range(50_000):
        value = [value]
    return value


LIES: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "garbage_everywhere": _garbage_everywhere, "hosts_words": _hosts_words,
    "done_early": _done_early, "done_backwards": _done_backwards, "silent_answer": _silent_answer,
    "quiet_answer": _quiet_answer, "steal_as_an_orphan": _steal_as_an_orphan,
    "flicker": _flicker, "fill_bell": _fill_bell, "steal_rings": _steal_rings, "never_read_bell": _never_read_bell,
    "fill_own_bell": _fill_own_bell,
    "close_everything": _close_everything, "close_bells": _close_bells, "unblock_descriptors": _unblock_descriptors,
    "resize_memory": _resize_memory, "pickle_bomb": _pickle_bomb,
    "length_beyond_the_slot": _answering(int(Flag.INFO), 1 << 20),
    "length_beyond_everything": _answering(int(Flag.INFO), (1 << 64) - 1),
    "length_zero": _answering(int(Flag.INFO), 0),
    "promise_nothing_sent": _answering(int(Flag.INFO | Flag.SPILLED), 1 << 20),
    "promise_beyond_the_limit": _answering(int(Flag.INFO | Flag.SPILLED), 1 << 40),
    "every_flag": _answering((1 << 64) - 1, 16), "unknown_flags": _answering(1 << 40, 0),
    "final_out_of_place": _answering(int(Flag.RECORD | Flag.FINAL), 8),
    "error_without_texts": _answering(int(Flag.ERROR), 8), "value_out_of_place": _answering(int(Flag.VALUE), 8),
    "garbage_on_control": _garbage_on_control, "fill_control": _fill_control, "forged_exit": _forged_exit,
    "dribble_promise": _dribble_promise,
    "info_of_1_gb": _info(lambda: bytes(1 << 30)), "info_of_80_mb": _info(lambda: bytes(80 << 20)),
    "info_nested": _info(_nested), "info_of_many_keys": lambda env: {str(i): i for i in range(1_000_000)},
    "info_with_odd_keys": lambda env: {1: 2, (3, 4): 5},  # type: ignore[dict-item]  # wrong on purpose
    "info_with_masks": lambda env: {"a": 1, "_a": "x", "_b": 2, "final_info": 3, "final_obs": 4},
    "info_of_huge_number": _info(lambda: 10**6000), "info_of_nan": _info(lambda: float("nan")),
    "info_of_surrogates": _info(lambda: "\ud800"), "info_of_objects": _info(lambda: threading.Lock()),
}  # fmt: skip
