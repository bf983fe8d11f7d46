"""The attacks as records: what is done, when, what may come of it, and which isolation must hold against it.

Where several causes are allowed, the deed races with itself or the outcome depends on what enforces the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.errors import CauseKind


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile deed.

    Attributes:
        name: Name of the deed in ``agentenv.testing.hostile``.
        moment: When it is done: construct, reset, step or close.
        expected: Causes that may come out; None where the environment may simply go on.
        least: The weakest isolation that must hold against it.
        further_steps: Steps to take afterwards, for deeds that show only then.
    """

    name: str
    moment: str
    expected: frozenset[CauseKind | None]
    least: str = "sandbox"
    further_steps: int = 0


_EXIT, _SIGNAL, _LATE = frozenset({CauseKind.EXIT}), frozenset({CauseKind.SIGNAL}), frozenset({CauseKind.TIMEOUT})
_LIE, _RAISED = frozenset({CauseKind.PROTOCOL}), frozenset({CauseKind.EXCEPTION})
_ON: frozenset[CauseKind | None] = frozenset({None})
# Where per-process limits stand in for a control group, Python may lack the memory to say so, and exits.
_MEMORY: frozenset[CauseKind | None] = frozenset({CauseKind.OUT_OF_MEMORY, CauseKind.EXCEPTION, CauseKind.EXIT})

_SIGNALS = [
    "HUP",
    "QUIT",
    "ILL",
    "TRAP",
    "ABRT",
    "BUS",
    "FPE",
    "KILL",
    "USR1",
    "SEGV",
    "PIPE",
    "ALRM",
    "TERM",
    "XCPU",
    "XFSZ",
    "VTALRM",
    "IO",
    "SYS",
]

_PROCESS = "process"


def _deaths(moment: str, names: list[str]) -> list[Attack]:
    # SIGXFSZ is what the kernel sends for a file beyond its limit, hence its own kind.
    full = frozenset({CauseKind.DISK_FULL})
    return [Attack(f"die_by_SIG{name}", moment, full if name == "XFSZ" else _SIGNAL, _PROCESS) for name in names]


_STEP = [
    *_deaths("step", _SIGNALS),
    Attack("exit_0", "step", _EXIT, _PROCESS),
    Attack("exit_3", "step", _EXIT, _PROCESS),
    Attack("sys_exit", "step", _EXIT, _PROCESS),
    Attack("interrupt", "step", _EXIT, _PROCESS),
    Attack("raise", "step", _RAISED | _ON, _PROCESS, 1),
    Attack("raise_unprintable", "step", _RAISED | _ON, _PROCESS, 1),
    Attack("raise_much", "step", _RAISED | _ON, _PROCESS, 1),
    Attack("recurse", "step", _RAISED | _ON, _PROCESS, 1),
    Attack("crash_in_native_code", "step", _SIGNAL, _PROCESS),
    Attack("hang", "step", _LATE, _PROCESS),
    Attack("spin", "step", _LATE, _PROCESS),
    Attack("ignore_everything", "step", _LATE, _PROCESS),
    Attack("stop_itself", "step", frozenset({CauseKind.FROZEN}), _PROCESS),
    # Limits and leftovers.
    Attack("fork_bomb", "step", _ON | _LATE),
    Attack("many_threads", "step", _ON | _LATE),
    Attack("allocate", "step", _MEMORY),
    Attack("fill_tmp", "step", _ON),
    Attack("fill_shm", "step", _ON),
    Attack("fill_inodes", "step", _ON | _MEMORY | _LATE),
    Attack("flood_stderr", "step", _ON | _LATE, _PROCESS),
    Attack("use_up_descriptors", "step", _ON, _PROCESS),
    Attack("send_descriptors_to_itself", "step", _ON),
    Attack("leave_orphans", "step", _EXIT, _PROCESS),
    Attack("outlive", "step", _ON, _PROCESS),
    Attack("raise_limits", "step", _ON),
    # Shared memory.
    Attack("garbage_everywhere", "step", _LIE, _PROCESS),
    Attack("hosts_words", "step", _ON, _PROCESS),
    Attack("done_early", "step", _LATE | _ON, _PROCESS, 2),
    Attack("done_backwards", "step", _LATE, _PROCESS),
    Attack("silent_answer", "step", _LATE | _ON, _PROCESS, 1),
    Attack("quiet_answer", "step", _LATE | _ON, _PROCESS, 1),
    Attack("steal_as_an_orphan", "step", _EXIT),
    Attack("flicker", "step", _LATE | _LIE | _ON, _PROCESS, 1),
    Attack("resize_memory", "step", _ON, _PROCESS, 1),
    *(
        Attack(name, "step", _LIE, _PROCESS)
        for name in (
            "length_beyond_the_slot", "length_beyond_everything", "length_zero", "promise_nothing_sent",
            "promise_beyond_the_limit", "dribble_promise", "every_flag", "final_out_of_place", "error_without_texts",
            "pickle_bomb",
        )
    ),
    Attack("unknown_flags", "step", _LIE | _LATE | _ON, _PROCESS, 1),
    Attack("value_out_of_place", "step", _LIE | _LATE | _ON, _PROCESS, 1),
    # Bells and the control socket.
    Attack("fill_bell", "step", _LATE | _LIE, _PROCESS),
    Attack("steal_rings", "step", _LATE, _PROCESS),
    Attack("fill_own_bell", "step", _LATE | _ON, _PROCESS, 2),
    Attack("close_everything", "step", _LATE | _LIE, _PROCESS),
    Attack("close_bells", "step", _EXIT | _LIE | _ON, _PROCESS, 1),
    Attack("unblock_descriptors", "step", _EXIT | _LIE | _ON, _PROCESS, 1),
    Attack("garbage_on_control", "step", _LIE, _PROCESS),
    Attack("fill_control", "step", _EXIT, _PROCESS),
    Attack("forged_exit", "step", _LATE, _PROCESS),
    # Infos.
    Attack("info_of_1_gb", "step", _MEMORY),
    Attack("info_of_80_mb", "step", _MEMORY),
    Attack("info_nested", "step", _RAISED | _LIE | _SIGNAL, _PROCESS),
    Attack("info_of_many_keys", "step", _ON | _MEMORY | _LIE | _LATE, _PROCESS),
    Attack("info_with_odd_keys", "step", _LIE | _RAISED, _PROCESS),
    Attack("info_with_masks", "step", _ON | _LIE, _PROCESS),
    Attack("info_of_huge_number", "step", _ON | _LIE | _RAISED, _PROCESS),
    Attack("info_of_nan", "step", _ON, _PROCESS),
    Attack("info_of_surrogates", "step", _ON, _PROCESS),
    Attack("info_of_objects", "step", _ON, _PROCESS),
]  # fmt: skip

_RESET = [
    Attack("hang", "reset", _LATE, _PROCESS),
    Attack("die_by_SIGKILL", "reset", _SIGNAL, _PROCESS),
    Attack("exit_0", "reset", _EXIT, _PROCESS),
    Attack("raise", "reset", _RAISED, _PROCESS),
    Attack("garbage_everywhere", "reset", _LIE, _PROCESS),
    Attack("allocate", "reset", _MEMORY),
]

_START = frozenset({CauseKind.START_FAILED})
_CONSTRUCT = [
    *_deaths("construct", ["KILL", "SEGV"]),
    Attack("exit_0", "construct", _EXIT, _PROCESS),
    Attack("hang", "construct", _LATE, _PROCESS),
    Attack("raise", "construct", _START, _PROCESS),
    Attack("leave_orphans", "construct", _EXIT, _PROCESS),
    Attack("allocate", "construct", _MEMORY | _START),
    *(
        Attack(f"introduce_{name}", "construct", _LIE, _PROCESS)
        for name in (
            "no_json", "deep_json", "long_number", "a_list", "a_number", "numbers", "too_many", "nothing", "other",
            "terabytes", "deep_space", "bad_dtype", "no_space",
        )
    ),
    Attack("introduce_error_of_numbers", "construct", _START, _PROCESS),
    Attack("introduce_escapes", "construct", _START, _PROCESS),
    Attack("introduce_failure", "construct", _START, _PROCESS),
    Attack("introduce_wrong_types", "construct", _ON, _PROCESS),
    Attack("introduce_odd_id", "construct", _ON, _PROCESS),
    Attack("introduce_by_a_child", "construct", _LIE, _PROCESS),
    Attack("introduce_odd_name", "construct", _ON, _PROCESS),
    Attack("announce_4_gb", "construct", _LIE, _PROCESS),
    Attack("announce_more_than_sent", "construct", _LATE, _PROCESS),
    Attack("dribble_introduction", "construct", _LATE, _PROCESS),
]  # fmt: skip

_CLOSE = [
    Attack(name, "close", _ON, _PROCESS)
    for name in ("hang", "spin", "raise", "exit_3", "ignore_everything", "leave_orphans", "die_by_SIGSEGV")
]

ATTACKS: tuple[Attack, ...] = (*_STEP, *_RESET, *_CONSTRUCT, *_CLOSE)
"""Every attack of the suite."""
