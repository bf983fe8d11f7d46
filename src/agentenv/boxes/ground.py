"""The runtime under sandboxes: opened once for one sandbox and its copies, closed with the last of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentenv.boxes.arguments import wrong
from agentenv.errors import ClosedError, ConfigError, Problem, RuntimeUnavailable
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.watch import raise_descriptor_limit
from agentenv.images.progress import LINES, Report
from agentenv.sandbox import contract
from agentenv.sandbox.automatic import firecracker_obstacle
from agentenv.sandbox.registry import REGISTRY, choose, open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id

if TYPE_CHECKING:
    from pydantic import BaseModel

CANDIDATES = ("firecracker", "qemu")
"""Runtimes whose sandboxes have a workbench."""
_DESCRIPTORS = 24


class Ground:
    """An open runtime, shared by those who use it.

    Attributes:
        runtime: Its name.
        settings: The runtime's own table.
    """

    def __init__(
        self, runtime: str, settings: Mapping[str, Any], report: Report = LINES, *, network: bool = False
    ) -> None:
        """Open it for one user; ``share`` says that there is another.

        Args:
            runtime: A name of the registry.
            settings: The runtime's own table of a configuration; what is left out has its default.
            report: Told of what takes long.
            network: Whether any of its sandboxes has one.

        Raises:
            ConfigError: The settings are wrong.
            RuntimeUnavailable: It does not work here.
        """
        self.runtime = runtime
        self.settings = dict(settings)
        self._lock = threading.Lock()
        self._users = 1
        self._output = SandboxOutput(lambda _id: None)
        paths = tuple(dict.fromkeys(os.path.abspath(path) for path in sys.path if path and "\0" not in path))
        # Nothing of the host's project is shown: what is to be in such a sandbox is in its image or is copied in.
        options = contract.RuntimeOptions(
            new_run_id(),
            paths,
            network=network,
            settings=_table(runtime, settings),
            find_files=machine_files([], report=report),
        )
        raise_descriptor_limit(_DESCRIPTORS)
        try:
            self._opened = open_runtime(runtime, options)
        except BaseException:
            self._output.close()
            raise

    def create(self, specs: Sequence[contract.SandboxSpec]) -> list[contract.Sandbox]:
        """Start sandboxes, all or none.

        Raises:
            RuntimeUnavailable: The runtime refuses, or its sandboxes are not for work by hand.
        """
        with self._lock:
            if self._users <= 0:
                raise ClosedError("the runtime of this sandbox is closed")
        raise_descriptor_limit(_DESCRIPTORS * len(specs))
        made = self._opened.create(specs, self._output)
        if any(one.workbench is None for one in made):
            for one in made:
                one.destroy()
            raise RuntimeUnavailable(*refusal(self.runtime))
        return made

    def tail(self, sandbox_id: str) -> str:
        """The last lines of what a sandbox said."""
        self._output.drain(sandbox_id)
        return self._output.tail(sandbox_id)

    def share(self) -> None:
        """One more uses this."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One of those who use this does no longer; the last one closes it."""
        with self._lock:
            self._users -= 1
            if self._users != 0:
                return
        try:
            self._opened.close()
        finally:
            self._output.close()


def open_ground(
    runtime: str | None, settings: Mapping[str, Any] | None, report: Report = LINES, *, network: bool = False
) -> Ground:
    """A runtime whose sandboxes can be worked in.

    Args:
        runtime: Its name; None or "auto" for the first one that works here.
        settings: Its own table; only with a name.
        report: Told of what takes long.
        network: Whether any of its sandboxes has one.

    Raises:
        RuntimeUnavailable: It does not work here, none does, or its sandboxes are not for work by hand.
    """
    if runtime is not None and not isinstance(runtime, str):
        raise wrong("runtime", f"one of {', '.join(map(repr, CANDIDATES))}, or None", runtime)
    if settings is not None and not isinstance(settings, Mapping):
        raise wrong("settings", "a table, as in {'accelerator': 'tcg'},", settings)
    if runtime is not None and runtime != "auto":
        if REGISTRY[choose(runtime, None)].isolation != "vm":
            raise RuntimeUnavailable(*refusal(runtime))
        return Ground(runtime, settings or {}, report, network=network)
    if settings:
        what = "expected none without runtime: each runtime has other settings"
        raise ConfigError([Problem("keyword argument", "settings", what, f"add {_runtimes_of(settings)}")])
    # Opening it proves little: a machine is booted once, and that is remembered until this host boots anew.
    obstacle = firecracker_obstacle(_table("firecracker", {}), lambda: machine_files([], report=report))
    if not obstacle:
        return Ground("firecracker", {}, report, network=network)
    try:
        return Ground("qemu", {}, report, network=network)
    except RuntimeUnavailable as error:
        said = str(error).partition("\n  remedy: ")[0]
        raise RuntimeUnavailable(
            "no runtime whose sandboxes can be worked in by hand works here:\n"
            f"  firecracker: {obstacle}\n  qemu: {said}",
            error.remedy,
        ) from error


def refusal(runtime: str) -> tuple[str, str]:
    """Why sandboxes of a runtime are not for this, and what to do."""
    return (
        f"runtime {runtime!r} has no sandboxes to work in by hand: it runs what a configuration names",
        f"use runtime = {' or '.join(map(repr, CANDIDATES))}; `agentenv runtimes` says which of them work here",
    )


def _runtimes_of(settings: Mapping[str, Any]) -> str:
    """The keyword that these settings need; both ways of it where either runtime has them, or none has."""
    having = [name for name, table in _tables().items() if set(settings) <= set(table.model_fields)]
    return " or ".join(f'runtime="{name}"' for name in having or CANDIDATES)


def _tables() -> dict[str, type[BaseModel]]:
    """By the runtime's name, what its table may have."""
    from agentenv.config import model

    return {"firecracker": model.FirecrackerConfig, "qemu": model.QemuConfig}


def _table(runtime: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime's table with all its keys.

    Raises:
        ConfigError: It has other keys, or values of other kinds.
    """
    from pydantic import ValidationError

    tables = _tables()
    if runtime not in tables:
        return dict(settings)
    try:
        table: dict[str, Any] = tables[runtime].model_validate(dict(settings)).model_dump()
    except ValidationError as error:
        raise ConfigError(
            [
                Problem("keyword argument", ".".join(["settings", *map(str, one["loc"])]), one["msg"])
                for one in error.errors()
            ]
        ) from error
    for key in ("binary", "jailer"):
        if isinstance(table.get(key), str):
            table[key] = os.path.abspath(os.path.expanduser(table[key]))
    for drive in table.get("drives", ()):
        drive["path"] = os.path.abspath(os.path.expanduser(drive["path"]))
    return table
