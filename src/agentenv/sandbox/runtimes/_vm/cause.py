"""From what a machine left behind to the cause of its end: pure functions over the host's books, the relay's word, the
reports from inside, the serial console, and the monitor's last word.

They are believed in this order. What the host itself counted cannot be forged. What comes from inside can: by
whoever is root there, which an environment is not, and to the disadvantage of that machine only. An environment has no
rights, but chooses its name, and the kernel prints names; so a line of the console counts only where it *begins* with
the words of the kernel or of init. The monitor says last, and only what became of all of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.sandbox.cause import AT_LIMIT, Exit, classify

_MOST_WORDS = 300
_MOST_KILLS = 1 << 20
# The kernel's lines begin with the time where it was built to print that, and distributions' are.
_KERNEL = r"^(?:\[ *\d+\.\d+\] )?"
_PANIC = re.compile(_KERNEL + r"Kernel panic - not syncing: ([^\r\n]*)", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(_KERNEL + r"Out of memory: Killed process", re.MULTILINE)
_ENDED = re.compile(_KERNEL + r"reboot: (Restarting system|Power down|System halted)", re.MULTILINE)
_INIT = re.compile(r"^agentenv: init: ([^\r\n]*)", re.MULTILINE)
_AGENT = re.compile(r"^agentenv: the agent failed: ([^\r\n]*)", re.MULTILINE)
_MONITOR = re.compile(r"^((?:qemu-system|firecracker)[^\r\n]*)", re.MULTILINE)

_FROM_INSIDE = {"guest-reset": "it restarted", "guest-shutdown": "it was switched off", "guest-panic": "it panicked"}
_WANT_OF_MEMORY = ("System is deadlocked on memory", "Out of memory", "out of memory")
# A file system that did not fit into memory looks as if there had been none.
_NO_INIT = ("No working init found", "Unable to mount root fs", "Requested init")
# What init could not do, and what helps; the first that fits.
_REMEDIES = (
    (r"waiting for /dev/vd", "the kernel found no drive: use one with its virtio modules (agentenv kernel fetch)"),
    (r"loading the module", "the kernel and its modules do not fit together: agentenv kernel fetch"),
    (
        r"mounting the image",
        "the image is damaged, or neither ext4 nor squashfs: build it anew, or correct rootfs_image",
    ),
    (r"overlay|laying the scratch", "use a kernel with overlayfs: agentenv kernel fetch"),
    (r"[Nn]o space left", "raise disk_mb or memory_mb"),
    (r"tools|scratch", "agentenv image gc --now removes what is damaged in the cache; it is made anew"),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of a machine that has ended.

    Attributes:
        asked: Why the host ended it, where it did.
        monitor_oom_kills: Kills the host's kernel counted in the control group of the monitor.
        monitor_limit_mb: Limit of that group, MiB; 0 for none.
        monitor_peak_bytes: The most that was ever charged to it; 0 where the kernel does not tell.
        host_oom_kills: Kills for want of memory that the kernel counted on the whole host during the machine's life;
            only where no group counts its own.
        broken: What the relay says that came from the machine and was not the protocol; "" for nothing.
        relay_lives: Whether the process that carries all machines of the run does.
        told: What the agent told without being asked; hostile data.
        exit: How the environment's process ended, as its cell reported it; hostile data.
        console: The end of the serial console; hostile data.
        end_reason: Why the monitor ended, in its own word as QEMU has them; "" where it said nothing.
        output: The end of the environment's own output; for words only.
        memory_mb: RAM.
    """

    asked: Cause | None = None
    monitor_oom_kills: int = 0
    monitor_limit_mb: int = 0
    monitor_peak_bytes: int = 0
    host_oom_kills: int = 0
    broken: str = ""
    relay_lives: bool = True
    told: Sequence[Mapping[str, object]] = ()
    exit: Exit | None = None
    console: str = ""
    end_reason: str = ""
    output: str = ""
    memory_mb: int = 0


def find_cause(evidence: Evidence) -> Cause:
    """Why a machine ended."""
    if evidence.asked is not None:
        return evidence.asked
    if evidence.monitor_oom_kills:
        return _out_of_memory(evidence)
    if evidence.broken:
        return Cause(CauseKind.PROTOCOL, Owner.ENVIRONMENT, f"its machine {evidence.broken[:_MOST_WORDS]}")
    ended = next((event for event in evidence.told if event.get("event") == "ended"), None)
    kills = _count(ended.get("oom_kills")) if ended is not None else 0
    if evidence.exit is not None or kills:
        return classify(
            evidence.exit,
            oom_kills=kills,
            memory_mb=evidence.memory_mb,
            memory_peak_bytes=evidence.memory_mb << 20,
            output=evidence.output,
        )
    return _of_console(evidence.console, evidence.memory_mb) or _without_words(evidence, ended is not None)


def _out_of_memory(evidence: Evidence) -> Cause:
    """Of a monitor that the host's kernel killed: at its group's own limit, or at one around it."""
    limit_mb, peak_mb = evidence.monitor_limit_mb, evidence.monitor_peak_bytes / 2**20
    if not limit_mb or 0 < peak_mb < AT_LIMIT * limit_mb:
        used = f": its monitor had used {peak_mb:.0f} MB, below its own limit of {limit_mb} MB" if limit_mb else ""
        return Cause(
            CauseKind.HOST_OUT_OF_MEMORY,
            Owner.RESOURCES,
            "its machine was killed by the kernel for want of memory on this host, or in the container it runs in"
            f"{used}; run fewer environments at once or free memory",
            signal=9,
            oom_kills=evidence.monitor_oom_kills,
        )
    return Cause(
        CauseKind.OUT_OF_MEMORY,
        Owner.RESOURCES,
        f"its machine's monitor went over the limit of its control group, {limit_mb} MB (memory_mb ="
        f" {evidence.memory_mb} and what a monitor may need besides), and was killed by the kernel; raise memory_mb",
        signal=9,
        oom_kills=evidence.monitor_oom_kills,
    )


def _of_console(console: str, memory_mb: int) -> Cause | None:
    if failed := _last(_INIT, console):
        return Cause(CauseKind.START_FAILED, Owner.INFRASTRUCTURE, f"its machine did not start: {_with_remedy(failed)}")
    if failed := _last(_AGENT, console):
        return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, f"the agent in its machine failed: {failed}")
    panic = _last(_PANIC, console)
    if any(words in panic for words in _WANT_OF_MEMORY) or (not panic and _OUT_OF_MEMORY.search(console)):
        size = f" of {memory_mb} MB" if memory_mb else ""
        detail = f"its machine{size} ran out of memory, and its kernel ended what holds it together; raise memory_mb"
        return Cause(CauseKind.OUT_OF_MEMORY, Owner.RESOURCES, detail, signal=9)
    if any(words in panic for words in _NO_INIT):
        detail = f"its kernel found nothing to start ({panic}): raise memory_mb, or use another kernel"
        return Cause(CauseKind.START_FAILED, Owner.INFRASTRUCTURE, detail)
    if "Attempted to kill init" in panic:
        detail = f"the agent, first process of its machine, was killed inside, and its kernel panicked: {panic}"
        return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, detail)
    if panic:
        return Cause(CauseKind.SANDBOX_LOST, Owner.ENVIRONMENT, f"its kernel panicked: {panic}")
    if how := _last(_ENDED, console):
        detail = f"its machine was ended from inside ({how})"
        return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, detail)
    return None


def _without_words(evidence: Evidence, ended: bool) -> Cause:
    if ended:
        detail = "its cell ended without a report: what environments are started from was killed inside its machine"
    elif how := _FROM_INSIDE.get(evidence.end_reason):
        detail = f"its machine was ended from inside ({how}), and its kernel said nothing of it"
    elif evidence.host_oom_kills and not _last(_MONITOR, evidence.console):
        return Cause(
            CauseKind.HOST_OUT_OF_MEMORY,
            Owner.RESOURCES,
            "its machine was killed while the kernel killed processes for want of memory on this host"
            f" ({evidence.host_oom_kills} since it started); run fewer environments at once or free memory",
            signal=9,
        )
    elif not evidence.relay_lives:
        detail = "the relay, which carries every machine of the run, was killed from outside"
    else:
        detail = "its machine's monitor was killed from outside, or ended without a word"
        if evidence.end_reason:
            detail += f" (it says: {evidence.end_reason})"
        if said := _last(_MONITOR, evidence.console):
            detail += f"; the last word on its console: {said}"
    return Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, detail)


def _with_remedy(failed: str) -> str:
    remedy = next((words for pattern, words in _REMEDIES if re.search(pattern, failed)), "")
    return f"{failed}; {remedy}" if remedy else failed


def _last(pattern: re.Pattern[str], console: str) -> str:
    found = pattern.findall(console)
    return str(found[-1]).strip()[:_MOST_WORDS] if found else ""


def _count(value: object) -> int:
    """A number that came from inside."""
    return min(value, _MOST_KILLS) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
