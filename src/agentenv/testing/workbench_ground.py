"""What the suite of workbenches stands on: a run and a sandbox for tests, and tasks with our ends of their pipes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from agentenv.config import load_config
from agentenv.fleet.context import RunContext
from agentenv.sandbox.contract import Sandbox, SandboxSpec
from agentenv.sandbox.workbench import Stdio, Task, Workbench
from agentenv.testing import traces

END_S = 120.0


@contextmanager
def run_of(runtime: str, environment: Mapping[str, Any]) -> Iterator[RunContext]:
    """A run of one environment that records nothing; afterwards nothing may be left of it.

    Args:
        runtime: Name of the runtime.
        environment: Its table in a configuration.
    """
    before = traces.take()
    config = load_config({"global": {"runtime": runtime}, "environments": [dict(environment)]})
    context = RunContext(config, config.expand(), record=False)
    try:
        yield context
    finally:
        context.close()
    assert traces.take().left_since(before) == []


@dataclass(frozen=True, slots=True)
class Done:
    """How a task ended, and what it wrote."""

    status: dict[str, Any]
    stdout: bytes
    stderr: bytes


class Running:
    """A task with the far ends of its descriptors."""

    def __init__(self, bench: Workbench, task: Task, stdin: bytes | None = b"") -> None:
        """Start it; None leaves its input open."""
        pipes = [os.pipe() for _ in range(4)]
        (in_reader, self.stdin), (self.stdout, out), (self.stderr, err), (self.status, status) = pipes
        try:
            self.number = bench.start(task, Stdio(in_reader, out, err, status))
        except BaseException:
            for fd in (self.stdin, self.stdout, self.stderr, self.status):
                os.close(fd)
            raise
        finally:
            for fd in (in_reader, out, err, status):
                os.close(fd)
        self._feeder: threading.Thread | None = None
        if stdin is not None:
            self._feeder = threading.Thread(target=self._feed, args=(stdin,))
            self._feeder.start()

    def _feed(self, data: bytes) -> None:
        with open(self.stdin, "wb", buffering=0) as file:
            try:
                file.write(data)
            except BrokenPipeError:
                return

    def line(self) -> bytes:
        """The next line of its output."""
        found = b""
        while not found.endswith(b"\n") and (byte := os.read(self.stdout, 1)):
            found += byte
        return found

    def end(self) -> Done:
        """Wait for its end, reading all it writes."""
        found: dict[int, bytes] = {}

        def read(fd: int) -> None:
            with open(fd, "rb") as file:
                found[fd] = file.read()

        threads = [threading.Thread(target=read, args=(fd,)) for fd in (self.stdout, self.stderr, self.status)]
        for thread in threads:
            thread.start()
        for thread in (*threads, *([self._feeder] if self._feeder else [])):
            thread.join(END_S)
            assert not thread.is_alive(), "it did not end"
        if self._feeder is None:
            os.close(self.stdin)
        status = json.loads(found[self.status]) if found[self.status] else {}
        return Done(status, found[self.stdout], found[self.stderr])


def run(bench: Workbench, *argv: str, stdin: bytes = b"", **keys: Any) -> Done:
    """Run a program to its end."""
    return Running(bench, Task(argv, **keys), stdin).end()


def work(bench: Workbench, stdin: bytes = b"", user: str | None = None, **keys: Any) -> Done:
    """Do work on files."""
    return Running(bench, Task(work=keys, user=user), stdin).end()


class WorkbenchGround:
    """What the tests of ``WorkbenchSuite`` stand on.

    Attributes:
        settings: Keys of ``[global]`` and of the environment, "runtime" above all.
    """

    settings: ClassVar[Mapping[str, Any]]

    @pytest.fixture(scope="class")
    @classmethod
    def context(cls) -> Iterator[RunContext]:
        """One run for all tests of a class: machines of one kind share what they are brought back from."""
        with run_of(cls.settings["runtime"], cls._table()) as context:
            yield context

    @classmethod
    def _table(cls) -> Mapping[str, Any]:
        return {"id": "bench", **{key: value for key, value in cls.settings.items() if key != "runtime"}}

    @classmethod
    def _spec(cls, context: RunContext, id: str, **keys: Any) -> SandboxSpec:
        members = load_config({"environments": [dict(cls._table())]}).expand()
        spec = context.spec(id, members)
        return replace(spec, id=id, envs=(), command=(), network=None, start_timeout_s=120.0, **keys)

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls, context: RunContext) -> Iterator[Sandbox]:
        """A sandbox that the tests of a class share."""
        (sandbox,) = context.runtime.create([cls._spec(context, "bench")], context.output)
        yield sandbox
        sandbox.destroy()

    @pytest.fixture
    def bench(self, sandbox: Sandbox) -> Workbench:
        """Its workbench."""
        assert sandbox.workbench is not None
        return sandbox.workbench
