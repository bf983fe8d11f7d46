"""What the commands for sandboxes are given, checked here as far as it can be before anything is started.

What is said of a mistake has the name of the option that was written, not of the keyword it becomes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from agentenv.errors import ConfigError, Problem, SnapshotError

_POSITIONAL = {"command": "COMMAND", "path": "NAME:PATH"}


@contextmanager
def in_options(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Have what is said of keyword arguments said of the options they come from.

    Args:
        names: What is called otherwise on the command line, by the keyword.
    """
    called = {**_POSITIONAL, **(names or {})}
    try:
        yield
    except ConfigError as error:
        raise ConfigError([_in_options(one, called) for one in error.problems]) from error
    except SnapshotError as error:
        if "replace=True" not in str(error):
            raise
        raise type(error)(str(error).replace("replace=True", "--replace")) from error


def _in_options(problem: Problem, called: Mapping[str, str]) -> Problem:
    if problem.where != "keyword argument":
        return problem
    keyword, _, rest = problem.path.partition(".")
    if keyword == "network" and rest:  # of a list by the list's name
        keyword = rest.partition("[")[0]
    option = called.get(keyword) or f"--{keyword.replace('_', '-')}"
    hint = problem.hint.replace('set network = "internet"', "add --network internet")
    message = problem.message.replace(", or None for no limit", " (leave it out for no limit)")
    return replace(problem, where="command line", path=option, message=message, hint=hint)


def check_runtime(runtime: str | None) -> None:
    """See that there is a runtime of that name.

    Raises:
        ConfigError: There is none; names those whose sandboxes can be worked in.
    """
    from agentenv.boxes.ground import CANDIDATES
    from agentenv.config.nearest import suggest_value
    from agentenv.sandbox.registry import REGISTRY

    if runtime is not None and runtime != "auto" and runtime not in REGISTRY:
        what = f"expected {' or '.join(CANDIDATES)}, got {runtime!r}"
        raise ConfigError([Problem("command line", "--runtime", what, suggest_value(runtime, CANDIDATES))])


def check_sizes(**sizes: float | None) -> None:
    """See that a machine can have these sizes, as far as no monitor needs to be asked.

    Args:
        sizes: By the keywords of a configuration; None is not looked at.

    Raises:
        ConfigError: They are beyond what configurations may say, or what this host has.
    """
    from agentenv.config.load import config_from_keywords
    from agentenv.sandbox.runtimes.qemu.command import MOST_CPUS

    with in_options():
        config_from_keywords(None, **sizes)
    has_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    most: Sequence[tuple[str, float, str]] = (
        ("memory_mb", has_mb, f"at most the {has_mb} MiB of this host"),
        ("vcpu_count", MOST_CPUS, f"at most {MOST_CPUS}, the most a machine can have"),
    )
    problems = [
        Problem("command line", f"--{key.replace('_', '-')}", f"expected {what}, got {size:g}")
        for key, limit, what in most
        if (size := sizes.get(key)) is not None and size > limit
    ]
    if problems:
        raise ConfigError(problems)


def check_files(image: str | None, kernel: str | None) -> None:
    """See that an image and a kernel are there.

    Raises:
        ConfigError: One is none.
        RuntimeUnavailable: One is not there; says how to get it.
    """
    from agentenv.images.image import resolve_image
    from agentenv.images.kernels import resolve_kernel
    from agentenv.images.store import Store

    if image:
        resolve_image(image, Store.default(), "--image")
    if kernel:
        resolve_kernel(kernel, Store.default(), "--kernel")
