"""What the environments of one run share: runtime, logs, watch, seeds, run directory.

The composition root: the only place that knows how a configuration becomes a runtime's options.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from agentenv.config import Config, EnvironmentConfig
from agentenv.errors import RuntimeUnavailable
from agentenv.fleet.choosing import choose_runtime, monitor_settings
from agentenv.fleet.known import implementation, registrar
from agentenv.fleet.networks import shared_network
from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.postmortem import Postmortem
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.seeds import Seeds
from agentenv.fleet.watch import Watch, raise_descriptor_limit
from agentenv.sandbox.contract import EnvRequest, Runtime, RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import ENTRYPOINT, MachineFiles
from agentenv.sandbox.registry import REGISTRY, open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id

logger = logging.getLogger("agentenv.fleet")

GRIDWORLD = "agentenv.envs.gridworld:GridWorld"
_GRIDWORLD_STEPS = 200
_DESCRIPTORS_PER_SANDBOX = 12

_open: weakref.WeakSet[RunContext] = weakref.WeakSet()


class RunContext:
    """Everything that is opened once for a run and closed once after it.

    Attributes:
        config: The configuration.
        run: Directory of the run, or None when nothing is to be written.
        seeds: Streams of random numbers, by environment id.
        output: Standard output and error of all sandboxes.
        watch: Notices deaths and deadlines.
        crashes: Keeps the records of deaths.
        most_environments: How many may be started.
        spare_cores: Whether every environment can have a core to itself beside the trainer's.
    """

    def __init__(
        self,
        config: Config,
        environments: Sequence[EnvironmentConfig],
        *,
        record: bool,
        run: RunDir | None = None,
    ) -> None:
        """Open the runtime; the first sandbox waits until it is up.

        Args:
            config: The configuration.
            environments: The environments that may be started, expanded.
            record: Whether the run leaves a directory of its own.
            run: A directory that exists already, of a run that is continued. The run id is a new one all the same:
                control groups carry it, and those of the process that died may not be gone yet.

        Raises:
            RuntimeUnavailable: This machine cannot give what was asked.
        """
        self.config = config
        self.run_id = new_run_id()
        self.runtime_name = choose_runtime(config, environments)
        self.seeds = Seeds(config.global_.seed)
        self.most_environments = len(environments)
        self.spare_cores = len(environments) < _cores()
        self._closed = False
        self._users = 1
        self._disowners: list[weakref.WeakMethod[Callable[[], None]]] = []
        self._note_ignored(environments)
        raise_descriptor_limit(_DESCRIPTORS_PER_SANDBOX * len(environments))
        self.run: RunDir | None = None if run is None else RunDir(run.path, self.run_id)
        # As the key says: where the command is started, not where the configuration lies.
        self._run_root = Path(config.global_.run_dir).expanduser().absolute()
        if record and run is None:
            self.run = RunDir.create(self._run_root, config.name, self.run_id)
        self.output = SandboxOutput(self._log_directory)
        self.watch = Watch(self.output)
        self.crashes = Postmortem(self.run, self.output, self.watch)
        try:
            self.runtime: Runtime = open_runtime(self.runtime_name, self._options(environments))
        except BaseException:
            self.watch.close()
            self.output.close()
            raise
        _open.add(self)

    def spec(self, sandbox_id: str, environments: Sequence[EnvironmentConfig]) -> SandboxSpec:
        """What the runtime must know to start these environments in one sandbox; limits add up."""
        first = environments[0]
        out: Path | None = None
        if first.command is not None and self.run is not None:
            out = self.run.environment(sandbox_id).out
            out.mkdir(exist_ok=True)
        variables: dict[str, str] = {}
        for environment in environments:
            variables.update(environment.env_vars)
        return SandboxSpec(
            id=sandbox_id,
            envs=tuple(self._request(environment) for environment in environments if environment.command is None),
            command=tuple(first.command or ()),
            variables=variables,
            memory_mb=sum(environment.memory_mb for environment in environments),
            vcpu_count=sum(environment.vcpu_count for environment in environments),
            pids=sum(environment.pids for environment in environments),
            disk_mb=sum(environment.disk_mb for environment in environments),
            network=shared_network(sandbox_id, environments),
            directory=str(self.config.base_dir),
            out=out,
            kernel=self._file_or_name(first.kernel_image),
            image=self._file_or_name(first.rootfs_image),
            start_timeout_s=max(environment.start_timeout_s for environment in environments),
        )

    def on_fork(self, disown: Callable[[], None]) -> None:
        """Have a bound method called in a child that this process forks: what is open here is not the child's."""
        self._disowners.append(weakref.WeakMethod(disown))

    def disown(self) -> None:
        """Forget everything and end nothing, in a forked child: its exit must not reach the parent's sandboxes."""
        self._closed = True
        for reference in self._disowners:
            disown = reference()
            if disown is not None:
                disown()

    def share(self) -> None:
        """One more uses this: it stays open until as many have called ``release``."""
        self._users += 1

    def release(self) -> None:
        """One of those who use this does no longer; the last one closes it."""
        self._users -= 1
        if self._users <= 0:
            self.close()

    def close(self) -> None:
        """End every sandbox and free everything, whoever uses it. Synchronous, idempotent."""
        if self._closed:
            return
        self._closed = True
        self.watch.close()
        try:
            self.runtime.close()
        finally:
            self.output.close()

    def _log_directory(self, sandbox_id: str) -> Path | None:
        return None if self.run is None else self.run.environment(sandbox_id).path

    def _request(self, environment: EnvironmentConfig) -> EnvRequest:
        name = environment.env or GRIDWORLD
        limit = environment.max_episode_steps
        if environment.env is None and limit is None:
            limit = _GRIDWORLD_STEPS
        return EnvRequest(
            env=name,
            imports=() if ":" in name or (module := registrar(name)) is None else (module,),
            kwargs=environment.env_kwargs,
            wrappers=tuple({"wrapper": w.wrapper, "kwargs": dict(w.kwargs)} for w in environment.wrappers),
            max_episode_steps=limit,
            render_mode=environment.render_mode,
            global_seed=self.seeds.environment(environment.id, seed=environment.seed),
        )

    def _options(self, environments: Sequence[EnvironmentConfig]) -> RuntimeOptions:
        base = str(self.config.base_dir)
        paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str) and "\0" not in path]
        if base not in paths:
            paths.append(base)
        # What other environments wrote, and the file with everybody's env_vars, often lie where the code lies.
        hidden = (str(self._run_root), os.path.abspath(self.config.source))
        return RuntimeOptions(
            run_id=self.run_id,
            paths=tuple(dict.fromkeys(paths)),
            preload=_installed_modules(environments),
            network=any(environment.network != "none" for environment in environments),
            network_settings=self.config.network.model_dump(),
            out_root=None if self.run is None else self.run.path,
            settings=monitor_settings(self.config, self.runtime_name),
            hidden=hidden,
            find_files=self._find_files(paths, hidden) if self._uses_machines else None,
            warm=self.config.global_.warm,
        )

    @property
    def no_copies(self) -> str:
        """Why a process is not copied, where its sandbox does not copy any."""
        return f"runtime {self.runtime_name!r} does not copy processes"

    @staticmethod
    def _find_files(paths: Sequence[str], hidden: Sequence[str]) -> Callable[[SandboxSpec], MachineFiles]:
        # Images and kernels are a lot to import for runtimes that need none.
        from agentenv.fleet.machines import machine_files

        return machine_files(paths, hidden)

    @property
    def _uses_machines(self) -> bool:
        return REGISTRY[self.runtime_name].isolation == "vm"

    def _file_or_name(self, value: str | None) -> str | None:
        """A file as an absolute path; anything else, a directory too, may be the name of a kernel or an image."""
        if value is None:
            return None
        path = self.config.resolve(value)
        return str(path) if path.is_file() or "/" in value else value

    def _note_ignored(self, environments: Sequence[EnvironmentConfig]) -> None:
        for environment in environments:
            if (environment.kernel_image or environment.rootfs_image) and not self._uses_machines:
                logger.info(
                    "%s: kernel_image and rootfs_image are used by VM runtimes only; ignored by runtime %r",
                    environment.id,
                    self.runtime_name,
                )
            if (environment.command or ())[:1] == (ENTRYPOINT,) and not self._uses_machines:
                raise RuntimeUnavailable(
                    f"{environment.id}: {ENTRYPOINT!r} in command means an image's, and runtime"
                    f" {self.runtime_name!r} has no images",
                    'name the program in command, or use runtime = "qemu" or "firecracker"',
                )
            if environment.env is None and environment.command is None:
                logger.info("%s: neither env nor command is set: running the built-in GridWorld", environment.id)


def _installed_modules(environments: Sequence[EnvironmentConfig]) -> tuple[str, ...]:
    """Modules of installed packages that the environments come from, worth importing once for all.

    A module of the user's own project is not among them: it is imported inside each sandbox, behind the wall.
    """
    found: dict[str, None] = {}
    for environment in environments:
        name = environment.env or GRIDWORLD
        if environment.command is not None:
            continue
        modules = [name.partition(":")[0]] if ":" in name else [registrar(name), implementation(name)]
        for module in modules:
            if module and _is_installed(module):
                found[module] = None
    return tuple(found)


def _is_installed(module: str) -> bool:
    """Whether the module's top-level package lies in the Python installation (found without importing it)."""
    from importlib.machinery import PathFinder

    top = module.partition(".")[0]
    if top == "agentenv":
        return True
    spec = PathFinder.find_spec(top)
    origin = spec.origin if spec is not None else None
    if origin is None:
        return False
    roots = tuple(os.path.realpath(prefix) + "/" for prefix in (sys.prefix, sys.base_prefix))
    return os.path.realpath(origin).startswith(roots)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _close_all() -> None:
    for context in list(_open):
        context.close()


def _disown_all() -> None:
    for context in list(_open):
        context.disown()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
