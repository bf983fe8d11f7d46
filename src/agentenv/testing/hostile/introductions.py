"""Deeds that lie in the very first message, in which an environment describes itself.

They write it in the guest's place, from within the constructor, before the guest can send its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import time
from collections.abc import Callable
from typing import Any, NoReturn

from agentenv.testing.hostile.lies import hang, write_control


def _introduce(record: Any) -> Callable[[Any], NoReturn]:
    """Introduce itself in the guest's place, from within the constructor."""

    def introduce(env: Any) -> NoReturn:
        body = record if isinstance(record, bytes) else json.dumps(record).encode()
        write_control(struct.pack("<I", len(body)) + body)
        hang()

    return introduce


def _dribble_introduction(env: Any) -> NoReturn:
    write_control(struct.pack("<I", 1 << 19))
    while True:
        write_control(b" ")
        time.sleep(0.05)


def _announce(length: int) -> Callable[[Any], NoReturn]:
    def announce(env: Any) -> NoReturn:
        write_control(struct.pack("<I", length) + b"x" * 64)
        hang()

    return announce


def _odd_name(env: Any) -> dict[str, Any]:
    """Take a name that is no text, then introduce itself honestly."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"\xff\nPPid:\t1", 0, 0, 0)
    return {}


def _by_a_child(env: Any) -> NoReturn:
    """Introduce itself honestly, but have the first byte sent by a process whose number is free when the rest comes."""
    body = json.dumps(_said()).encode()
    data = struct.pack("<I", len(body)) + body
    if os.fork() == 0:
        write_control(data[:1])
        os._exit(0)
    os.wait()
    write_control(data[1:])
    hang()


_PR_SET_NAME = 15
_ONE = {"type": "Discrete", "n": 1 << 40, "start": 0, "dtype": "<i8"}
_TWO = {"type": "Discrete", "n": 2, "start": 0, "dtype": "<i8"}
_HUGE = {"type": "Box", "dtype": "<f8", "shape": [1 << 20, 1 << 20], "low": "AAAAAAAAAAA=", "high": "AAAAAAAA8D8=",
         "bounded_below": "AQ==", "bounded_above": "AQ=="}  # fmt: skip
_DEEP: Any = _TWO
for _ in range(300):
    _DEEP = {"type": "Tuple", "spaces": [_DEEP]}


def _said(observation: Any = _ONE, action: Any = _TWO, **rest: Any) -> dict[str, Any]:
    return {"ready": [{"observation_space": observation, "action_space": action, "metadata": {}, **rest}]}


INTRODUCTIONS: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "introduce_no_json": _introduce(b"\xff\xfe{"), "introduce_deep_json": _introduce(b"[" * 500_000),
    "introduce_long_number": _introduce(b'{"ready":' + b"9" * 100_000 + b"}"),
    "introduce_a_list": _introduce([1, 2]), "introduce_a_number": _introduce({"ready": 5}),
    "introduce_numbers": _introduce({"ready": [5]}), "introduce_too_many": _introduce({"ready": [{}, {}]}),
    "introduce_nothing": _introduce({"ready": [{}]}), "introduce_other": _introduce({"hello": 1}),
    "introduce_terabytes": _introduce(_said(_HUGE)), "introduce_deep_space": _introduce(_said(_DEEP)),
    "introduce_bad_dtype": _introduce(_said({**_HUGE, "dtype": "|O8"})),
    "introduce_no_space": _introduce(_said(observation="Discrete")),
    "introduce_error_of_numbers": _introduce({"error": [1, 2, 3]}),
    "introduce_escapes": _introduce({"error": ["\x1b[2Jname", "\x1b]0;x\x07message", "\x1b[31mtrace"]}),
    "introduce_failure": _introduce({"failed": "\x1b[2J\x1b]0;x\x07this host is broken"}),
    "introduce_wrong_types": _introduce(
        _said(metadata={"render_modes": 5, "x": [1]}, render_mode={"a": 1}, spec_id=["x"])
    ),
    "introduce_by_a_child": _by_a_child,
    "introduce_odd_name": _odd_name,
    "introduce_odd_id": _introduce(_said(spec_id="a b/../../etc-v0")),
    "announce_4_gb": _announce((1 << 32) - 1), "announce_more_than_sent": _announce(1 << 16),
    "dribble_introduction": _dribble_introduction,
}  # fmt: skip
