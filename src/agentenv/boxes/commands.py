"""What a user may give as a command, as variables, as a name: checked before anything is sent."""

from __future__ import annotations

import contextlib
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from agentenv.boxes.arguments import read_directory, read_size, read_user, sendable
from agentenv.boxes.reach import Setting, read_reach
from agentenv.config.record import MAX_MB
from agentenv.errors import ConfigError, Problem
from agentenv.sandbox.contract import SandboxSpec
from agentenv.sandbox.network import NONE
from agentenv.sandbox.workbench import Task
from agentenv.telemetry.text import one_line

_SHOWN = 100
# They name hosts, control groups and sockets.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")


def read_name(name: Any) -> str:
    """A name of a sandbox.

    Raises:
        ConfigError: It cannot be one.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        what = f"expected 1 to 48 letters, digits, '-' and '_', the first one no sign; got {name!r}"
        raise ConfigError([Problem("keyword argument", "name", what)])
    return name


def new_name(stem: str = "box") -> str:
    """A name that nobody has."""
    return f"{stem[:39]}-{secrets.token_hex(4)}"


def read_command(command: Any) -> tuple[str, ...]:
    """Program and arguments from what a user gives: a text for the shell, or a sequence.

    Raises:
        ConfigError: It is neither, is empty, or holds a zero byte.
    """
    words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    if isinstance(words, bytes) or not isinstance(words, list | tuple):
        got = type(command).__name__
        raise ConfigError(
            [Problem("keyword argument", "command", f"expected a text for /bin/sh -c, or a list of texts, got {got}")]
        )
    bad = [word for word in words if not sendable(word)]
    if bad or not words or not words[0]:
        got = f"got {one_line(repr(bad[0]), _SHOWN)} among them" if bad else "got none"
        what = f"expected program and arguments, texts without zero bytes; {got}"
        raise ConfigError([Problem("keyword argument", "command", what)])
    return tuple(words)


def read_variables(variables: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables as a user gives them.

    Raises:
        ConfigError: A name or a value cannot be one.
    """
    if variables is not None and not isinstance(variables, Mapping):
        what = f"expected names with their values, as in {{'NAME': 'value'}}, got {type(variables).__name__}"
        raise ConfigError([Problem("keyword argument", "env", what)])
    what = "expected a name without '=' and line breaks, and a text, both without zero bytes; got"
    problems = [
        # Values may be secrets, and are not shown.
        Problem(
            "keyword argument",
            one_line(f"env.{name}", _SHOWN),
            f"{what} {one_line(repr(name), _SHOWN)} with a value of type {type(value).__name__}",
        )
        for name, value in (variables or {}).items()
        if not sendable(name) or not sendable(value) or not name or set(name) & set("=\n\r")
    ]
    if problems:
        raise ConfigError(problems)
    return dict(variables or {})


def make_task(command: Any, env: Any, cwd: Any, user: Any, terminal: Any = None) -> Task:
    """A program to run, as a user gives it.

    Raises:
        ConfigError: A value cannot be used; has all of them.
    """
    problems: list[Problem] = []
    words: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    directory = who = size = None
    with _gathering(problems):
        words = read_command(command)
    with _gathering(problems):
        variables = read_variables(env)
    with _gathering(problems):
        directory = read_directory(cwd)
    with _gathering(problems):
        who = read_user(user)
    with _gathering(problems):
        size = None if terminal is None else read_size(terminal)
    if problems:
        raise ConfigError(problems)
    return Task(argv=words, variables=variables, directory=directory, user=who, terminal=size)


def make_spec(
    *,
    image: str | None,
    name: str | None,
    memory_mb: int = 512,
    vcpu_count: float = 1.0,
    disk_mb: int = 1024,
    kernel: str | None = None,
    env: Mapping[str, str] | None = None,
    network: Setting = NONE,
    network_mbps: float | None = None,
    start_timeout_s: float = 120.0,
) -> SandboxSpec:
    """What the runtime is asked for.

    Raises:
        ConfigError: A value cannot be used; has all of them.
    """
    problems: list[Problem] = []
    numbers: list[tuple[str, object, tuple[type, ...], str, float]] = [
        ("memory_mb", memory_mb, (int,), "a whole number of MiB", MAX_MB),
        ("disk_mb", disk_mb, (int,), "a whole number of MiB", MAX_MB),
        ("vcpu_count", vcpu_count, (int, float), "a number", math.inf),
        ("start_timeout_s", start_timeout_s, (int, float), "a number of seconds", math.inf),
    ]
    for key, value, kinds, what, most in numbers:
        if type(value) not in kinds or not isinstance(value, int | float) or not 0 < value < math.inf:
            problems.append(Problem("keyword argument", key, f"expected {what} above 0, got {value!r}"))
        elif value > most:
            problems.append(Problem("keyword argument", key, f"expected {what} of {most} at most, got {value!r}"))
    for key, text in (("image", image), ("kernel", kernel)):
        if text is not None and (not isinstance(text, str) or not text or "\0" in text):
            problems.append(Problem("keyword argument", key, f"expected a name or the path of a file, got {text!r}"))
    reach, variables, called = None, {}, ""
    with _gathering(problems):
        reach = read_reach(network, network_mbps)
    with _gathering(problems):
        variables = read_variables(env)
    with _gathering(problems):
        called = read_name(name) if name is not None else new_name()
    if problems:
        raise ConfigError(problems)
    return SandboxSpec(
        called,
        variables=variables,
        memory_mb=memory_mb,
        vcpu_count=vcpu_count,
        disk_mb=disk_mb,
        network=reach,
        kernel=kernel,
        image=image,
        start_timeout_s=start_timeout_s,
    )


@contextlib.contextmanager
def _gathering(problems: list[Problem]) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def new_names(count: int, stem: str | None, default: str) -> list[str]:
    """Names for several: numbered where a stem is given, else such that nobody has."""
    if stem is None:
        return [new_name(default) for _ in range(count)]
    return [read_name(f"{read_name(stem)}-{number}") for number in range(1, count + 1)]
