"""What every runtime promises: the text all drivers obey and the conformance suite checks.

A ``Runtime`` makes ``Sandbox`` objects; a sandbox is one isolated machine-like thing holding one or more
environments or a command. The rules, for every driver:

- ``create`` returns sandboxes that have built their environments, or raises (or reports) with nothing left behind.
- A sandbox touches nothing outside it: its death, a flood of output, a full disk or exhausted memory are its own.
- ``destroy`` is synchronous, idempotent, never raises for a sandbox that is already dead, and leaves no process,
  mount, control group, socket or file.
- ``cause`` tells why a dead sandbox died; failures of the machinery are never reported as the environment's.
- When the process that owns the runtime dies, by whatever means, its sandboxes end without help.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentenv.errors import Cause, SandboxError
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.network import Network
from agentenv.sandbox.workbench import Workbench

Order = Callable[[Mapping[str, Any], Sequence[int]], None]
"""Has a copy of an environment's process made that serves with an attach message and descriptors."""
ISOLATION_ORDER = ("process", "sandbox", "vm")
"""Kinds of isolation, weakest first."""


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """One environment to build inside a sandbox.

    Attributes:
        env: Gymnasium id, ``module:Id-v0`` or ``module:callable``.
        imports: Modules to import first, which register the id.
        kwargs: Keyword arguments for it; plain data.
        wrappers: Each ``{"wrapper": "module:callable", "kwargs": {...}}``, innermost first.
        max_episode_steps: Truncate after so many steps; None keeps the environment's own limit.
        render_mode: Passed to the environment when not None.
        global_seed: Seeds ``random`` and ``numpy.random`` in the sandbox; None draws from the system.
    """

    env: str
    imports: Sequence[str] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Mapping[str, Any]] = ()
    max_episode_steps: int | None = None
    render_mode: str | None = None
    global_seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data for the control socket."""
        return {
            "env": self.env,
            "imports": list(self.imports),
            "kwargs": dict(self.kwargs),
            "wrappers": [dict(wrapper) for wrapper in self.wrappers],
            "max_episode_steps": self.max_episode_steps,
            "render_mode": self.render_mode,
            "global_seed": self.global_seed,
        }


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything a runtime needs to know about one sandbox.

    Attributes:
        id: Unique in the run; names the host, the control group and the logs.
        envs: The environments to build; empty for a command.
        command: Program and arguments to run instead of environments. With neither, it only has a ``workbench``.
        variables: Environment variables, complete but for what the runtime itself adds.
        memory_mb: Limit of memory, MiB.
        vcpu_count: CPUs' worth of time; fractions allowed.
        pids: Limit of processes and threads.
        disk_mb: Size of each of /tmp and /dev/shm, MiB.
        network: What of the network is reachable; None for nothing.
        directory: Working directory inside; must be visible there.
        out: Host directory shown as /out, writable; None for no /out.
        kernel: For machines: the kernel, as configured; None for the usual one.
        image: For machines: the root file system, as configured; None for the usual one.
        origin: A directory that ``Workbench.snapshot`` wrote, from which it is brought back; None for a new one.
        start_timeout_s: Seconds until ``create`` gives up.
    """

    id: str
    envs: tuple[EnvRequest, ...] = ()
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int = 512
    vcpu_count: float = 1.0
    pids: int = 128
    disk_mb: int = 64
    network: Network | None = None
    directory: str = "/"
    out: Path | None = None
    kernel: str | None = None
    image: str | None = None
    origin: Path | None = None
    start_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """What a runtime needs once, before its first sandbox.

    Attributes:
        run_id: Names control groups; carries the owner's pid and start time for the sweep.
        paths: ``sys.path`` for the environments, in order.
        preload: Installed modules worth importing once instead of in every sandbox.
        network: Whether any sandbox will ask for network.
        network_settings: The table [network] of the configuration, as plain data.
        out_root: Directory under which every ``SandboxSpec.out`` lies, or None.
        settings: The runtime's own table of the configuration, as plain data, with paths made absolute.
        hidden: Host files and directories not to be shown, where they lie in a directory that is: other runs, the
            configuration with everybody's variables.
        find_files: For runtimes that boot machines: the files of a sandbox's machine.
        warm: For runtimes that boot machines: how many of each kind are kept ready beyond those that were asked for.
    """

    run_id: str
    paths: tuple[str, ...]
    preload: tuple[str, ...] = ()
    network: bool = False
    out_root: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    find_files: Callable[[SandboxSpec], MachineFiles] | None = None
    warm: int = 0
    network_settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe:
    """What trying a runtime on this machine showed.

    Attributes:
        name: The runtime's name.
        isolation: "vm", "sandbox" or "process".
        works: Whether something really ran in it.
        detail: What was found, in a sentence.
        remedy: What to do where it does not work or enforces less than it could; may be empty.
        limits: For each of memory, cpu, pids, disk, network: what enforces it, or "not enforced".
    """

    name: str
    isolation: str
    works: bool
    detail: str
    remedy: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox, or a set of processes, uses now.

    Attributes:
        cpu_s: Processor time in seconds: of the processes and the children they have waited for, or of everything that
            ever ran in the control group.
        memory_bytes: Unshared memory. From /proc: pages no other process maps. From a control group: anonymous and
            shared-memory pages charged to it.
        rss_bytes: Resident memory, shared pages counted once per process. From a control group: all that is charged,
            page cache included.
        processes: Processes found alive. From a control group: processes and threads.
        io_read_bytes: Read from disks, page cache hits not included.
        io_write_bytes: Written, or to be written, to disks.
        oom_kills: Kills by the memory limit so far.
        partial: Some process belongs to another user: its memory is counted as resident minus file pages, its I/O not.
    """

    cpu_s: float
    memory_bytes: int
    rss_bytes: int
    processes: int
    io_read_bytes: int
    io_write_bytes: int
    oom_kills: int = 0
    partial: bool = False


class Output(Protocol):
    """Where the standard output and error of sandboxes go. Owned by the caller of the runtime."""

    def take(self, sandbox_id: str, stream: str, fd: int) -> None:
        """Own the read end of a pipe; ``stream`` is "stdout" or "stderr"."""

    def drain(self, sandbox_id: str) -> None:
        """Read what is still in the pipes of a sandbox that ended, without waiting."""

    def tail(self, sandbox_id: str, lines: int = 20) -> str:
        """Its last lines, safe for a terminal."""

    def release(self, sandbox_id: str) -> None:
        """Close what was taken for this sandbox."""


class ParkedCopy(Protocol):
    """A copy of an environment's process that waits to be copied in turn; it is part of its sandbox."""

    def alive(self) -> bool:
        """Whether it can be copied."""

    def order(self, attach: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Have it copied; the copy serves with these.

        Raises:
            ConnectionError: It is gone.
        """

    def drop(self) -> None:
        """End it. Idempotent."""


class Sandbox(Protocol):
    """One running sandbox.

    Attributes:
        spec: What was asked.
        pid: Its first process, as the host numbers it.
        pidfd: Becomes readable when it ends: the process of its environment, or the first one where it runs a command.
        control: The host's end of its control socket.
        introductions: For each environment: its spaces and metadata, as the guest described them (hostile data).
        destroyed: Whether nothing of it is left; one in which forks live on is not.
        log_id: The id under which its output is kept: its own, or that of the one it was forked from.
        last_usage: What it had used when ``cause`` was found; None before, and where nothing counts it.
        copying: What its processes are copied by; None where this kind of sandbox does not copy them.
        workbench: What programs and files are reached by; None where this kind of sandbox has none.
    """

    spec: SandboxSpec
    pid: int
    control: socket.socket
    introductions: list[dict[str, Any]]
    last_usage: Usage | None

    @property
    def copying(self) -> Copying | None: ...

    @property
    def workbench(self) -> Workbench | None: ...

    @property
    def pidfd(self) -> int: ...

    @property
    def log_id(self) -> str: ...

    @property
    def destroyed(self) -> bool: ...

    def attach(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Hand over shared memory and bells; the guest starts serving."""

    def alive(self) -> bool:
        """Whether it serves, or its command runs."""

    def kill(self, reason: Cause | None = None) -> None:
        """End it at once, with everything in it; ``reason`` is what ``cause`` will then say."""

    def cause(self) -> Cause:
        """Why it ended. Only for a sandbox that is not alive."""

    def await_end(self, timeout_s: float) -> None:
        """After the first sign that it has ended: wait until ``cause`` can say why."""

    def usage(self) -> Usage | None:
        """What it uses now, or None when it is gone."""

    def destroy(self) -> None:
        """End it and free everything; see the module's rules."""


class Copying(Protocol):
    """A part of a sandbox: copies of the process of its environment, made by forking it."""

    def order_park(self) -> ParkedCopy:
        """Order the environment's process to fork a copy that waits. The order is carried out when it is asked next.

        Raises:
            ConnectionError, OSError: It is gone.
        """

    def settle(self, parked: Any) -> None:
        """Take hold of the copy that was made; from now on the sandbox outlives its environment's process.

        Raises:
            ConnectionError, TimeoutError, OSError: The copy is gone.
        """

    def shelters(self, parked: Any) -> bool:
        """Whether a parked copy lives in this sandbox."""

    def renew_control(self) -> None:
        """Make a new ``control`` for ``serve_from``."""

    def serve_from(self, parked: Any, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Have a parked copy copied in place of the environment's process, and hand the copy shared memory and bells.

        Raises:
            RuntimeUnavailable: The parked copy is gone.
        """

    def branch(self, spec: SandboxSpec, order: Order) -> Sandbox:
        """A sandbox whose environment is forked from this one's when it is attached; it shares everything else.

        Args:
            spec: As this one's, under another id.
            order: Has the copy made; raises if that is refused.
        """

    def order_copy(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Order the environment's process to fork a copy that serves. It is carried out when it is asked next.

        Args:
            message: The attach message of the copy.
            fds: Its control socket, memory, and two bells.

        Raises:
            ConnectionError, OSError: It is gone.
        """


class Runtime(Protocol):
    """A way to run sandboxes, opened for one run."""

    name: str
    isolation: str

    def create(
        self, specs: Sequence[SandboxSpec], output: Output, failures: dict[str, SandboxError] | None = None
    ) -> list[Sandbox]:
        """Start sandboxes, all at once, and wait until their environments are built.

        Args:
            specs: What to start.
            output: Takes their output.
            failures: Given one, a sandbox that cannot be built is ended and its error put there under its id, and the
                others are returned, in order. Without, the first failure ends all and is raised.

        Raises:
            EnvError: An environment's own constructor raised.
            SandboxDied, StepTimeout: It ended or did not finish building in time.
            RuntimeUnavailable: The machinery refuses.
        """

    def limits(self) -> Mapping[str, str]:
        """As ``Probe.limits``, for the run as opened."""

    def weigh(self, modestly: bool) -> None:
        """Say whether environments wait by giving way from now on: the trainer must have its turn all the same."""

    def close(self) -> None:
        """End every sandbox and the runtime itself. Synchronous and idempotent."""
