"""From evidence to a cause: the table, and control groups that really ran out of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.sandbox.cause import Exit, Look, classify, classify_exception, classify_late, most_telling
from agentenv.sandbox.runtimes._cgroup import CgroupRun, CgroupStats, open_run
from agentenv.sandbox.runtimes._runid import new_run_id

ENVIRONMENT, RESOURCES, INFRASTRUCTURE = Owner.ENVIRONMENT, Owner.RESOURCES, Owner.INFRASTRUCTURE
MIB = 1 << 20
# What CPython wrote when a program without room left it to its interpreter.
FULL = "Traceback (most recent call last):\n  ...\nOSError: [Errno 28] No space left on device\n"

DEATHS = [
    ("exit 0", Exit(code=0), {}, CauseKind.EXIT, ENVIRONMENT, "called exit"),
    ("exit 3", Exit(code=3), {}, CauseKind.EXIT, ENVIRONMENT, "status 3"),
    ("a shell's word for a signal", Exit(code=139), {}, CauseKind.EXIT, ENVIRONMENT, "SIGSEGV"),
    ("not a shell's word", Exit(code=200), {}, CauseKind.EXIT, ENVIRONMENT, "status 200"),
    ("exit, speaks of its disk", Exit(code=1), {"output": FULL}, CauseKind.EXIT, ENVIRONMENT, "disk_mb"),
    ("exit, disk full", Exit(code=1, full_disks=("/tmp",)), {}, CauseKind.DISK_FULL, RESOURCES, "/tmp"),
    ("exit 0, disk full", Exit(code=0, full_disks=("/tmp",)), {}, CauseKind.EXIT, ENVIRONMENT, "status 0"),
    ("report lost", Exit(), {}, CauseKind.EXIT, ENVIRONMENT, "not known"),
    ("segfault", Exit(signal=11), {}, CauseKind.SIGNAL, ENVIRONMENT, "SIGSEGV: a crash in native code"),
    ("abort", Exit(signal=6), {}, CauseKind.SIGNAL, ENVIRONMENT, "SIGABRT"),
    ("forbidden call", Exit(signal=31), {}, CauseKind.SIGNAL, ENVIRONMENT, "does not allow"),
    ("killed", Exit(signal=9), {}, CauseKind.SIGNAL, ENVIRONMENT, "SIGKILL: from outside, or by itself"),
    ("real-time signal", Exit(signal=59), {}, CauseKind.SIGNAL, ENVIRONMENT, "signal 59"),
    ("bus error", Exit(signal=7), {}, CauseKind.SIGNAL, ENVIRONMENT, "/dev/shm"),
    ("bus error, full", Exit(signal=7, full_disks=("/dev/shm",)), {}, CauseKind.DISK_FULL, RESOURCES, "/dev/shm"),
    ("segfault, full", Exit(signal=11, full_disks=("/tmp",)), {}, CauseKind.SIGNAL, ENVIRONMENT, "SIGSEGV"),
    ("file too large", Exit(signal=25), {}, CauseKind.DISK_FULL, RESOURCES, "SIGXFSZ"),
    ("limit", Exit(signal=9), {"oom_kills": 1, "memory_mb": 64}, CauseKind.OUT_OF_MEMORY, RESOURCES, "64 MB"),
    (
        "limit, by the peak",
        Exit(signal=9),
        {"oom_kills": 1, "memory_mb": 64, "memory_peak_bytes": 64 * MIB},
        CauseKind.OUT_OF_MEMORY,
        RESOURCES,
        "raise memory_mb",
    ),
    ("limit, everything gone", None, {"oom_kills": 2, "memory_mb": 64}, CauseKind.OUT_OF_MEMORY, RESOURCES, "64 MB"),
    ("a child of it, it exits 1", Exit(code=1), {"oom_kills": 1}, CauseKind.OUT_OF_MEMORY, RESOURCES, "memory limit"),
    (
        "host, by the group",
        Exit(signal=9),
        {"oom_kills": 1, "memory_mb": 512, "memory_peak_bytes": 90 * MIB},
        CauseKind.HOST_OUT_OF_MEMORY,
        RESOURCES,
        "it had used 90 MB",
    ),
    ("host", Exit(signal=9), {"host_oom_kills": 1}, CauseKind.HOST_OUT_OF_MEMORY, RESOURCES, "on this machine"),
    ("host, everything gone", None, {"host_oom_kills": 3}, CauseKind.HOST_OUT_OF_MEMORY, RESOURCES, "3 since"),
    ("a crash while the host kills", Exit(signal=11), {"host_oom_kills": 3}, CauseKind.SIGNAL, ENVIRONMENT, "SIGSEGV"),
    ("lost", None, {}, CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "without a report"),
    ("init killed", None, {"shell_alive": True}, CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "first process"),
    ("zygote killed", None, {"shell_alive": False}, CauseKind.SANDBOX_LOST, INFRASTRUCTURE, "the outer sandbox"),
]


@pytest.mark.parametrize(
    ("exit", "evidence", "kind", "owner", "words"), [d[1:] for d in DEATHS], ids=[d[0] for d in DEATHS]
)
def test_a_death(exit: Exit | None, evidence: dict[str, object], kind: CauseKind, owner: Owner, words: str) -> None:
    cause = classify(exit, **evidence)  # type: ignore[arg-type]  # a table's values
    assert (cause.kind, cause.owner) == (kind, owner)
    assert words in cause.detail
    assert "\n" not in cause.detail


def test_evidence_is_kept_as_numbers() -> None:
    assert classify(Exit(code=7)).exit_code == 7
    assert classify(Exit(signal=11)).signal == 11
    killed = classify(Exit(signal=9), oom_kills=2)
    assert (killed.oom_kills, killed.signal) == (2, 9)
    assert classify(Exit(code=1, full_disks=("/tmp",))).exit_code == 1


@given(
    st.text(),
    st.one_of(st.none(), st.builds(Exit, code=st.integers(0, 255)), st.builds(Exit, signal=st.integers(1, 64))),
)
def test_no_output_changes_the_kind_or_the_owner(output: str, exit: Exit | None) -> None:
    silent, talking = classify(exit), classify(exit, output=output + FULL)
    assert (silent.kind, silent.owner) == (talking.kind, talking.owner)


LATE = [
    ("busy", Look("running", 0.098, 0.1), CauseKind.TIMEOUT, ENVIRONMENT, "busy computing (98 %"),
    ("busy in a thread", Look("sleeping", 0.095, 0.1), CauseKind.TIMEOUT, ENVIRONMENT, "busy computing"),
    ("busy, throttled", Look("running", 0.01, 0.1), CauseKind.TIMEOUT, ENVIRONMENT, "busy computing"),
    ("no figures", Look("running", None, 0.1), CauseKind.TIMEOUT, ENVIRONMENT, "busy computing"),
    ("starved", Look("running", 0.0, 0.1), CauseKind.TIMEOUT, RESOURCES, "no processor time in 100 ms"),
    ("blocked", Look("sleeping", 0.001, 0.1), CauseKind.TIMEOUT, ENVIRONMENT, "blocked, using no CPU"),
    ("not seen", Look("gone", None, 0.0), CauseKind.TIMEOUT, ENVIRONMENT, "blocked, using no CPU"),
    ("disk hangs", Look("blocked in the kernel", 0.0, 0.1), CauseKind.TIMEOUT, RESOURCES, "blocked in the kernel"),
    ("stopped", Look("stopped", 0.0, 0.1), CauseKind.FROZEN, ENVIRONMENT, "SIGSTOP"),
    ("stopped, all", Look("stopped", 0.0, 0.1, init_stopped=True), CauseKind.FROZEN, INFRASTRUCTURE, "from outside"),
]


@pytest.mark.parametrize(("look", "kind", "owner", "words"), [d[1:] for d in LATE], ids=[d[0] for d in LATE])
def test_being_late(look: Look, kind: CauseKind, owner: Owner, words: str) -> None:
    cause = classify_late(look)
    assert (cause.kind, cause.owner) == (kind, owner)
    assert cause.detail.startswith("did not answer before its deadline; ")
    assert words in cause.detail


def test_the_most_telling_state_of_a_family() -> None:
    assert most_telling(["sleeping", "stopped", "running"]) == "running"
    assert most_telling(["sleeping", "stopped"]) == "stopped"
    assert most_telling(["sleeping", "gone"]) == "sleeping"
    assert most_telling([]) == "gone"


def test_an_exception_about_the_disk_is_believed_where_the_disk_is_full() -> None:
    message = "[Errno 28] No space left on device: '/tmp/x'"
    believed = classify_exception("OSError", message, full_disks=("/tmp",))
    assert (believed.kind, believed.owner) == (CauseKind.DISK_FULL, RESOURCES)
    assert "/tmp" in believed.detail
    claimed = classify_exception("OSError", message)
    assert (claimed.kind, claimed.owner) == (CauseKind.EXCEPTION, ENVIRONMENT)
    assert "disk_mb" in claimed.detail
    other = classify_exception("ValueError", "no such cell", full_disks=("/tmp",))
    assert other == Cause(CauseKind.EXCEPTION, ENVIRONMENT, "its code raised ValueError")


EAT = "import sys; sys.stdin.readline(); eaten = bytearray(int(sys.argv[1]) << 20); print('had room')"


def eat(run: CgroupRun, mb: int, limit_mb: int, parent_limit_mb: int | None = None) -> tuple[int, CgroupStats]:
    """Have a process in a group of its own take memory; its wait status and the group's figures."""
    group = run.create("eater", memory_mb=limit_mb, vcpu_count=1, pids=8)
    if parent_limit_mb is not None:
        for directory in group.directories:
            for name in ("memory.max", "memory.limit_in_bytes"):
                if (file := directory.parent / name).exists():
                    file.write_text(str(parent_limit_mb * MIB))
    with subprocess.Popen([sys.executable, "-c", EAT, str(mb)], stdin=subprocess.PIPE, text=True) as process:
        group.add(process.pid)
        process.communicate("go\n", timeout=60)
    return process.returncode, group.stats()


@pytest.fixture
def run() -> CgroupRun:
    run = open_run(new_run_id())
    if run is None or "memory" not in run.controllers:
        pytest.skip("no memory controller may be written here; `agentenv runtimes` says what helps")
    with run:
        yield run


def test_the_own_limit_and_that_of_the_surroundings_are_told_apart(run: CgroupRun) -> None:
    status, stats = eat(run, mb=300, limit_mb=64)
    assert (status, stats.oom_kills) == (-9, 1)
    own = classify(Exit(signal=9), oom_kills=stats.oom_kills, memory_mb=64, memory_peak_bytes=stats.memory_peak_bytes)
    assert own.kind is CauseKind.OUT_OF_MEMORY
    assert "64 MB" in own.detail


def test_the_limit_of_a_container_around_is_not_the_environments(run: CgroupRun) -> None:
    status, stats = eat(run, mb=300, limit_mb=1024, parent_limit_mb=64)
    assert (status, stats.oom_kills) == (-9, 1)
    if stats.memory_peak_bytes == 0:
        pytest.skip("this kernel does not tell the most that was charged (Linux 5.19 and later do)")
    around = classify(
        Exit(signal=9), oom_kills=stats.oom_kills, memory_mb=1024, memory_peak_bytes=stats.memory_peak_bytes
    )
    assert around.kind is CauseKind.HOST_OUT_OF_MEMORY
    assert "its own limit of 1024 MB" in around.detail
