"""From what a machine left behind to a cause: a table of texts as QEMU, Linux and init print them, and of some that
must not be believed.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.sandbox.cause import Exit
from agentenv.sandbox.runtimes._vm.cause import Evidence, find_cause

ENVIRONMENT, RESOURCES, INFRASTRUCTURE = Owner.ENVIRONMENT, Owner.RESOURCES, Owner.INFRASTRUCTURE
LOST, MEMORY, FAILED = CauseKind.SANDBOX_LOST, CauseKind.OUT_OF_MEMORY, CauseKind.START_FAILED

SYSRQ = """\
[   14.204183] sysrq: Trigger a crash
[   14.204581] Kernel panic - not syncing: sysrq triggered crash
[   14.205023] CPU: 0 PID: 1 Comm: python3 Not tainted 6.1.0-57-cloud-amd64 #1  Debian 6.1.187-1
[   14.206120] Call Trace:
[   14.208331] Rebooting in 1 seconds..
"""
INIT_ENDED = """\
[   11.530312] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000300
[   11.530312] CPU: 0 PID: 1 Comm: python3 Not tainted 6.1.0-57-cloud-amd64 #1  Debian 6.1.187-1
[   11.530312] ---[ end Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000300 ]---
"""
AGENT_FAILED = """\
agentenv: the agent failed: RuntimeError: a mistake in the agent
Traceback (most recent call last):
  File "/run/traitor.py", line 56, in _hear
RuntimeError: a mistake in the agent
[   13.712345] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100
"""
DEADLOCK = """\
[   40.100000] Out of memory: Killed process 61 (python3) total-vm:116000kB, anon-rss:41000kB, file-rss:0kB
[   40.200000] Out of memory and no killable processes...
[   40.300000] Kernel panic - not syncing: System is deadlocked on memory
"""
KILLED = "[   40.1] Out of memory: Killed process 61 (python3) total-vm:116000kB, anon-rss:41000kB, oom_score_adj:0\n"
NO_INIT = "[    1.2] Kernel panic - not syncing: No working init found.  Try passing init= option to kernel.\n"
NO_ROOT = "[    1.2] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\n"
NO_DRIVE = "[    2.1] Run /init as init process\nagentenv: init: waiting for /dev/vda: it did not appear within 30 s\n"
NO_IMAGE = "agentenv: init: mounting the image /dev/vda: mount: mounting /dev/vda on /lower failed: Invalid argument\n"
NO_MODULE = "agentenv: init: loading the module virtio_blk: insmod: can't insert '/modules/01-virtio_blk.ko'\n"
BUG = "[    9.9] Kernel panic - not syncing: Fatal exception in interrupt\n"
PLAIN = "Kernel panic - not syncing: Fatal exception in interrupt\r\n"  # of a kernel that prints no times
REBOOT = "[   12.9] reboot: Restarting system\n[   12.9] reboot: machine restart\n"
TERMINATED = "qemu-system-x86_64: terminating on signal 15 from pid 4711 (bash)\n"
ASKED = Cause(CauseKind.CLOSED, INFRASTRUCTURE, "was asked to")
ENDED = ({"event": "ended", "oom_kills": 0},)

TABLE = [
    ("asked by us", {"asked": ASKED, "broken": "x", "console": SYSRQ}, CauseKind.CLOSED, INFRASTRUCTURE, "asked to"),
    (
        "monitor over its limit",
        {"monitor_oom_kills": 1, "exit": Exit(code=3), "monitor_limit_mb": 768, "monitor_peak_bytes": 768 << 20},
        MEMORY,
        RESOURCES,
        "768 MB (memory_mb = 256 and what a monitor may need besides), and was killed by the kernel; raise memory_mb",
    ),
    ("over it, peak unknown", {"monitor_oom_kills": 1, "monitor_limit_mb": 768}, MEMORY, RESOURCES, "raise memory_mb"),
    (
        "host out of memory",
        {"monitor_oom_kills": 1, "monitor_limit_mb": 768, "monitor_peak_bytes": 80 << 20},
        CauseKind.HOST_OUT_OF_MEMORY,
        RESOURCES,
        "its monitor had used 80 MB, below its own limit of 768 MB; run fewer environments at once",
    ),
    ("host, no group", {"host_oom_kills": 2}, CauseKind.HOST_OUT_OF_MEMORY, RESOURCES, "2 since it started"),
    ("host, and a word", {"host_oom_kills": 2, "console": TERMINATED}, LOST, INFRASTRUCTURE, "on signal 15"),
    ("host, and a panic", {"host_oom_kills": 2, "console": SYSRQ}, LOST, ENVIRONMENT, "sysrq triggered"),
    ("broken", {"broken": "broke the protocol: a frame"}, CauseKind.PROTOCOL, ENVIRONMENT, "its machine broke the"),
    ("broken, and reports", {"broken": "x", "exit": Exit(code=3)}, CauseKind.PROTOCOL, ENVIRONMENT, "its machine x"),
    ("exit", {"exit": Exit(code=3), "told": ENDED}, CauseKind.EXIT, ENVIRONMENT, "status 3"),
    ("exit, then reboot", {"exit": Exit(code=3), "console": REBOOT}, CauseKind.EXIT, ENVIRONMENT, "status 3"),
    ("signal", {"exit": Exit(signal=11)}, CauseKind.SIGNAL, ENVIRONMENT, "SIGSEGV"),
    ("over its limit", {"told": ({"event": "ended", "oom_kills": 2},)}, MEMORY, RESOURCES, "raise memory_mb"),
    ("cell killed inside", {"told": ENDED}, LOST, INFRASTRUCTURE, "without a report"),
    ("cell killed for memory", {"told": ENDED, "console": KILLED}, MEMORY, RESOURCES, "raise memory_mb"),
    ("sysrq", {"console": SYSRQ}, LOST, ENVIRONMENT, "its kernel panicked: sysrq triggered crash"),
    ("agent exits", {"console": INIT_ENDED}, LOST, INFRASTRUCTURE, "exitcode=0x00000300"),
    ("agent fails", {"console": AGENT_FAILED}, LOST, INFRASTRUCTURE, "failed: RuntimeError: a mistake"),
    ("deadlocked on memory", {"console": DEADLOCK}, MEMORY, RESOURCES, "256 MB ran out of memory"),
    ("kernel bug", {"console": BUG}, LOST, ENVIRONMENT, "Fatal exception"),
    ("kernel bug, no times", {"console": PLAIN}, LOST, ENVIRONMENT, "Fatal exception in interrupt"),
    ("no init", {"console": NO_INIT}, FAILED, INFRASTRUCTURE, "raise memory_mb, or use another kernel"),
    ("no root", {"console": NO_ROOT}, FAILED, INFRASTRUCTURE, "raise memory_mb, or use another kernel"),
    ("no drive", {"console": NO_DRIVE}, FAILED, INFRASTRUCTURE, "agentenv kernel fetch"),
    ("no image", {"console": NO_IMAGE}, FAILED, INFRASTRUCTURE, "build it anew, or correct rootfs_image"),
    ("no module", {"console": NO_MODULE}, FAILED, INFRASTRUCTURE, "agentenv kernel fetch"),
    ("reboot", {"console": REBOOT}, LOST, INFRASTRUCTURE, "ended from inside (Restarting system)"),
    ("relay", {"relay_lives": False}, LOST, INFRASTRUCTURE, "the relay, which carries every machine"),
    ("monitor", {}, LOST, INFRASTRUCTURE, "its machine's monitor was killed from outside"),
    ("monitor with a word", {"console": TERMINATED}, LOST, INFRASTRUCTURE, "terminating on signal 15"),
    # An environment chooses its name, up to fifteen characters, and the kernel prints it.
    (
        "named like init",
        {"console": "[   12.3] agentenv: init:[88]: segfault at 0 ip 00007f sp 00007f error 4\n"},
        LOST,
        INFRASTRUCTURE,
        "killed from outside",
    ),
    (
        "named like a panic",
        {"console": "[   12.3] Kernel panic - [88]: segfault at 0 ip 00007f sp 00007f error 4\n"},
        LOST,
        INFRASTRUCTURE,
        "killed from outside",
    ),
    (
        "killed under a name",
        {"console": "[ 9.1] Memory cgroup out of memory: Killed process 7 (Kernel panic - ) total-vm:1kB\n"},
        LOST,
        INFRASTRUCTURE,
        "killed from outside",
    ),
    (
        "on the command line",
        {"console": "[    0.0] Kernel command line: console=ttyS0 agentenv: init: x Kernel panic - not syncing: y\n"},
        LOST,
        INFRASTRUCTURE,
        "killed from outside",
    ),
    (
        "said by the environment",
        {"exit": Exit(code=1), "output": SYSRQ + NO_DRIVE + AGENT_FAILED},
        CauseKind.EXIT,
        ENVIRONMENT,
        "status 1",
    ),
    (
        "another event",
        {"told": ({"event": "broken", "why": "x"}, {"event": ["ended"]})},
        LOST,
        INFRASTRUCTURE,
        "outside",
    ),
    ("reset without a word", {"end_reason": "guest-reset"}, LOST, INFRASTRUCTURE, "ended from inside (it restarted)"),
    ("with words", {"end_reason": "guest-reset", "console": SYSRQ}, LOST, ENVIRONMENT, "its kernel panicked"),
    (
        "told to end",
        {"end_reason": "host-signal"},
        LOST,
        INFRASTRUCTURE,
        "from outside, or ended without a word (it sa",
    ),
    ("no number", {"told": ({"event": "ended", "oom_kills": "many"},)}, LOST, INFRASTRUCTURE, "without a report"),
    ("no true number", {"told": ({"event": "ended", "oom_kills": True},)}, LOST, INFRASTRUCTURE, "without a report"),
]


@pytest.mark.parametrize(("evidence", "kind", "owner", "words"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_a_machine_ended(evidence: dict[str, object], kind: CauseKind, owner: Owner, words: str) -> None:
    cause = find_cause(Evidence(**{"memory_mb": 256, **evidence}))  # type: ignore[arg-type]  # a table's values
    assert (cause.kind, cause.owner) == (kind, owner), cause
    assert words in cause.detail
    assert "\n" not in cause.detail
    assert "\r" not in cause.detail


def test_a_number_from_inside_is_bounded() -> None:
    cause = find_cause(Evidence(told=({"event": "ended", "oom_kills": 10**4000},), memory_mb=256))
    assert cause.oom_kills <= 1 << 20


@given(st.text(max_size=15))
def test_no_name_of_a_process_changes_what_is_believed(name: str) -> None:
    """Whatever the kernel prints of it stands behind a time or between brackets."""
    name = name.replace("\r", "").replace("\n", "")
    console = (
        f"[   12.3] {name}[88]: segfault at 0 ip 0\n[   12.4] Memory cgroup out of memory: Killed process 8 ({name})\n"
    )
    assert find_cause(Evidence(console=console)) == find_cause(Evidence())


@given(st.text(max_size=400), st.text(max_size=100))
def test_any_console_gives_one_line(console: str, broken: str) -> None:
    cause = find_cause(Evidence(console=console, broken=broken))
    assert len(cause.detail) < 1000
