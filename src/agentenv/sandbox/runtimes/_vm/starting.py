"""How programs are started in a machine: what its image says about that, joined with what the configuration says.

As whom, in which directory and with which variables is the image's to say where it does. Its ENTRYPOINT is not put
before a command unless the command asks for it: what ``command`` means does not depend on the runtime.
"""

from __future__ import annotations

import logging
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.files import ENTRYPOINT, MachineFiles
from agentenv.sandbox.runtimes._birth import settings_for
from agentenv.sandbox.runtimes._zygote import zygote_variables

logger = logging.getLogger("agentenv.sandbox")

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOSTS = ("VIRTUAL_ENV",)
# The home of an image's user need not be writable, and what names the sandbox is no matter of images.
_KEPT = ("HOME", "AGENTENV_ID", "AGENTENV_OUT")


def shown_paths(files: MachineFiles) -> list[str]:
    """What ``sys.path`` has besides the interpreter's own: the project, and where the image has its program."""
    project = [shown for _, shown in files.places]
    return [*project, *([files.workdir] if _is_named(files.workdir) else [])]


def variables_of_zygotes(files: MachineFiles) -> dict[str, str]:
    """The environment of the process that environments are forked from, which depends on some being what they are."""
    image = dict(files.variables)
    return {**image, **zygote_variables(), "PATH": image.get("PATH", _PATH)}


def settings_of(spec: SandboxSpec, files: MachineFiles) -> dict[str, Any]:
    """The message that turns a cell of a machine into a sandbox.

    Raises:
        RuntimeUnavailable: The command asks for the image's own, and there is none.
    """
    size, shown = spec.disk_mb << 20, [place for _, place in files.places]
    view = {
        "out": "/run/agentenv/out" if spec.out is not None else None,
        "hidden": [],
        "tmpfs": [["/tmp", size], ["/dev/shm", size]],
        "keep": [place for place in shown if place.startswith(("/tmp/", "/dev/shm/"))],
    }
    settings = settings_for(spec, isolated=True, enforced=False, view=view, paths=shown)
    settings["rlimits"].pop("memory_mb", None)  # the machine has no more
    return as_image_says(settings, spec, files)


def as_image_says(settings: dict[str, Any], spec: SandboxSpec, files: MachineFiles) -> dict[str, Any]:
    """The message that turns a cell of a machine into a sandbox, from one as any runtime has it.

    Raises:
        RuntimeUnavailable: The command asks for the image's own, and there is none.
    """
    image = dict(files.variables)
    own = {name: value for name, value in settings["variables"].items() if name not in _HOSTS}
    kept = {name: value for name, value in own.items() if name in _KEPT}
    if paths := [path for path in (own.get("PYTHONPATH"), image.get("PYTHONPATH")) if path]:
        kept["PYTHONPATH"] = ":".join(paths)
    return {
        **settings,
        "command": list(command_line(spec, files)),
        "directory": files.workdir if _is_named(files.workdir) else spec.directory,
        "variables": {**own, "PATH": _PATH, **image, **kept, **spec.variables},
    }


def command_line(spec: SandboxSpec, files: MachineFiles) -> tuple[str, ...]:
    """The program to run and its arguments, as ``docker run`` has them where the command begins with ``ENTRYPOINT``.

    Raises:
        RuntimeUnavailable: The command asks for the image's own, and there is none.
    """
    if spec.command[:1] != (ENTRYPOINT,):
        if spec.command and files.entrypoint:
            logger.info(
                "%s: ENTRYPOINT %s of the image is not used; %r as the first word of command stands for it",
                spec.id,
                list(files.entrypoint),
                ENTRYPOINT,
            )
        return spec.command
    found = (*files.entrypoint, *(spec.command[1:] or files.cmd))
    if not found:
        raise RuntimeUnavailable(
            f"{spec.id}: command = [{ENTRYPOINT!r}], and the image has neither ENTRYPOINT nor CMD",
            "name the program in command; `agentenv image ls --json` shows what images have",
        )
    return found


def unfit(id: str, files: MachineFiles, purpose: str, why: str) -> RuntimeUnavailable:
    """The error about an image in which nothing can be started, or no environments.

    Args:
        id: Of the machine.
        files: What it was made from.
        purpose: "environments" or "command".
        why: What its agent says; hostile data.
    """
    message = f"{id}: image {files.image or files.root} cannot run "
    if purpose == "command":
        return RuntimeUnavailable(f"{message}a command: {why}", "USER of an image is in its /etc/passwd, or a number")
    remedy = "agentenv image build NAME --from debian:bookworm --pip gymnasium --pip numpy makes one that can"
    return RuntimeUnavailable(f"{message}environments: {why}", remedy)


def _is_named(workdir: str) -> bool:
    """Whether an image says where programs begin; what is the root directory was not said."""
    return workdir not in ("", "/")
