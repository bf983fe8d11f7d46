"""Who may start now: a pure decision from declared needs and what the machine has.

Memory is a bar: what environments declare together must fit into what was free when the run began, because the
declared limit is what each of them may really take. Processor time is not: cores are shared, and more environments
than cores is the normal case. It looks at nothing but its arguments; ``Machine.measure`` does the looking.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil

from agentenv.errors import RuntimeUnavailable

_MIB = 1 << 20
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Need:
    """What one environment declares.

    Attributes:
        env_id: Its id.
        memory_mb: Its memory limit, MiB.
        vcpu_count: Its limit of processor time, cores.
    """

    env_id: str
    memory_mb: int
    vcpu_count: float = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run may count on.

    Attributes:
        available_mb: Memory that was free for new programs when the run began, MiB.
        cpus: Processors this process may use.
    """

    available_mb: int
    cpus: int

    @classmethod
    def measure(cls) -> Machine:
        """Looks at this machine, and at the limit of the container around it where there is one."""
        available = psutil.virtual_memory().available
        for name in _CONTAINER_LIMITS:
            try:
                text = Path(name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdigit():
                available = min(available, int(text))
        return cls(available // _MIB, count_cpus())


def count_cpus() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Verdict(StrEnum):
    """What becomes of a request to start."""

    START = "start"
    QUEUE = "queue"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and its reason.

    Attributes:
        verdict: What to do.
        reason: Why, in words; empty for START.
    """

    verdict: Verdict
    reason: str = ""


def decide(need: Need, running: Iterable[Need], machine: Machine, *, max_parallel: int | None = None) -> Decision:
    """Whether an environment may start beside those that run.

    A refusal does not depend on who runs: what is refused now would never fit. What is queued starts at the latest when
    nobody else runs.

    Args:
        need: Who asks.
        running: Who runs, or is being started.
        machine: What there is.
        max_parallel: Most environments at once, or None for no limit.
    """
    if need.memory_mb > machine.available_mb:
        return Decision(
            Verdict.REFUSE,
            f"environment {need.env_id!r} declares memory_mb = {need.memory_mb}, and this machine has"
            f" {machine.available_mb} MB available",
        )
    others = list(running)
    if max_parallel is not None and len(others) >= max_parallel:
        return Decision(Verdict.QUEUE, f"{len(others)} run, and max_parallel_envs = {max_parallel}")
    taken_mb = sum(other.memory_mb for other in others)
    if taken_mb + need.memory_mb > machine.available_mb:
        return Decision(
            Verdict.QUEUE,
            f"{taken_mb} of {machine.available_mb} MB are declared by those that run; {need.memory_mb} MB do not fit",
        )
    return Decision(Verdict.START)


def next_starts(
    waiting: Sequence[Need], running: Iterable[Need], machine: Machine, *, max_parallel: int | None = None
) -> int:
    """How many of the queue may start now, from its head: nobody is overtaken, so nobody starves."""
    taken = list(running)
    count = 0
    for need in waiting:
        if decide(need, taken, machine, max_parallel=max_parallel).verdict is not Verdict.START:
            break
        taken.append(need)
        count += 1
    return count


def refuse_impossible(needs: Iterable[Need], machine: Machine) -> None:
    """Check before anything is started that everybody will fit some time.

    Raises:
        RuntimeUnavailable: Names everybody who never will.
    """
    reasons = [d.reason for need in needs if (d := decide(need, (), machine)).verdict is Verdict.REFUSE]
    if reasons:
        shown = reasons[:5] + ([f"and {len(reasons) - 5} more"] if len(reasons) > 5 else [])
        raise RuntimeUnavailable(
            "; ".join(shown), "lower memory_mb (it is a limit: what the environment needs at most), or free memory"
        )
