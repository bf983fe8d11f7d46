"""Whether a runtime works on this machine, found out by running something in it to its end, with a deadline.

That a program is installed or a device can be opened proves nothing: a /dev/kvm on which no guest ever boots opens
like any other. So nothing is claimed here that was not seen to work.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentenv.errors import AgentEnvError, CauseKind, RuntimeUnavailable
from agentenv.sandbox.contract import Probe, Runtime, RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.registry import REGISTRY, open_runtime
from agentenv.sandbox.runtimes._cgroup import detect
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm

FindFiles = Callable[[SandboxSpec], MachineFiles]

_STATUS = 42
_DEADLINE_S = {"process": 20.0, "sandbox": 20.0, "vm": 120.0}
_MACHINES_PYTHON = "/.agentenv/bin/python"
_TAIL_BYTES = 4096
_LATE = "look at the processes of this user: something holds up new namespaces or the start of Python"
_LATE_MACHINE = "give it longer (--deadline), or look at what keeps this host busy; without KVM a machine boots slowly"


def probe(
    name: str,
    *,
    deadline_s: float | None = None,
    find_files: FindFiles | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Probe:
    """Try one runtime.

    Args:
        name: A name of the registry.
        deadline_s: Seconds after which it counts as not working; None for enough.
        find_files: As in ``RuntimeOptions``.
        settings: Likewise.
    """
    if deadline_s is None:
        deadline_s = _DEADLINE_S[REGISTRY[name].isolation]
    entry = REGISTRY[name]
    attempt = _Attempt(name, find_files, settings or {})
    thread = threading.Thread(target=attempt.run, name=f"agentenv-probe-{name}", daemon=True)
    thread.start()
    thread.join(deadline_s)
    late = thread.is_alive()
    attempt.close()
    if late:
        remedy = _LATE_MACHINE if entry.isolation == "vm" else _LATE
        return Probe(name, entry.isolation, False, f"had not run a program to its end after {deadline_s:g} s", remedy)
    if attempt.failure is not None:
        message, remedy = _explain(attempt.failure)
        return Probe(name, entry.isolation, False, message, remedy)
    remedy = _missing_limits()
    return Probe(name, entry.isolation, True, attempt.detail, remedy, attempt.limits)


@dataclass
class _Output:
    """Takes the output of one command into memory; see the contract's ``Output``."""

    fds: list[int] = field(default_factory=list)
    text: bytes = b""

    def take(self, sandbox_id: str, stream: str, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fds.append(fd)

    def drain(self, sandbox_id: str) -> None:
        for fd in self.fds:
            try:
                self.text += os.read(fd, _TAIL_BYTES)
            except OSError:
                continue

    def tail(self, sandbox_id: str, lines: int = 20) -> str:
        return self.text[-_TAIL_BYTES:].decode("utf-8", "replace")

    def release(self, sandbox_id: str) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class _Attempt:
    """Opens a runtime and runs a command in it; ``close`` may come from another thread and ends both."""

    def __init__(self, name: str, find_files: FindFiles | None, settings: Mapping[str, Any]) -> None:
        self._find_files = find_files
        self._settings = settings
        self.detail = ""
        self.limits: Mapping[str, str] = {}
        self.failure: Exception | None = None
        self._name = name
        self._runtime: Runtime | None = None

    def run(self) -> None:
        try:
            self._try()
        except Exception as error:
            self.failure = error

    def close(self) -> None:
        if self._runtime is not None:
            try:
                self._runtime.close()
            except AgentEnvError as error:
                self.failure = self.failure or error

    def _try(self) -> None:
        paths = tuple(dict.fromkeys(os.path.abspath(path) for path in sys.path if path))
        runtime = self._runtime = open_runtime(
            self._name,
            RuntimeOptions(new_run_id(), paths, find_files=self._find_files, settings=self._settings),
        )
        # A status that nothing but this program would give is proof that it ran.
        machine = REGISTRY[self._name].isolation == "vm"
        python = (_MACHINES_PYTHON,) if machine else (sys.executable, "-I", "-S")
        command = (*python, "-c", f"raise SystemExit({_STATUS})")
        memory_mb = 256 if machine else 64
        specs = [SandboxSpec(f"probe-{number}", command=command, memory_mb=memory_mb) for number in range(2)]
        times = []
        for spec in specs:
            started = time.monotonic()
            self._run_one(runtime, spec)
            times.append(time.monotonic() - started)
        self.limits = dict(runtime.limits())
        self.detail = (
            f"a program ran in a sandbox and ended with the status it should ({times[0] * 1000:.0f} ms with everything,"
            f" {times[1] * 1000:.0f} ms for the second)"
        )
        if getattr(runtime, "accelerator", "") == "tcg":
            self.detail += f"; emulated, which is slow: {probe_kvm().detail}"
        if self._name == "process":
            self.detail += "; NO isolation: environments have all rights of this user"

    @staticmethod
    def _run_one(runtime: Runtime, spec: SandboxSpec) -> None:
        output = _Output()
        (sandbox,) = runtime.create([spec], output)
        try:
            poller = select.poll()
            poller.register(sandbox.pidfd, select.POLLIN)
            poller.poll()
            cause = sandbox.cause()
            if cause.kind is not CauseKind.EXIT or cause.exit_code != _STATUS:
                raise RuntimeUnavailable(f"a program that should exit with status {_STATUS}: {cause.detail}")
        finally:
            sandbox.destroy()


def _explain(error: Exception) -> tuple[str, str]:
    if isinstance(error, RuntimeUnavailable):
        return str(error).partition("\n  remedy: ")[0], error.remedy or _namespaces_remedy()
    return f"{type(error).__name__}: {error}", _namespaces_remedy()


def _namespaces_remedy(read: Callable[[str], str] | None = None) -> str:
    """What the kernel's settings about user namespaces ask for."""
    value = read or _read
    if sys.platform != "linux":
        return "namespaces are Linux's: use a Linux virtual machine"
    if value("/proc/sys/user/max_user_namespaces") == "0" or value("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        return (
            "user namespaces are switched off:"
            " sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000"
        )
    if value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor restricts user namespaces (Ubuntu 23.10 and later): install a profile for bwrap (apt-get install"
            " bubblewrap apparmor-profiles), or sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return ""


def _missing_limits() -> str:
    """What would make all limits enforced, or ""."""
    support = detect()
    return f"{support.reason}: {support.remedy}" if support.remedy else ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""
