"""Starting sandboxes: one that is killed from outside while it is built is begun again, it is no fault of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from agentenv.errors import SandboxError
from agentenv.fleet.reported import cleaned
from agentenv.sandbox.cause import is_killed_from_outside
from agentenv.sandbox.contract import Output, Runtime, Sandbox, SandboxSpec

logger = logging.getLogger("agentenv.fleet")

_BIRTHS = 3
"""How often one is begun."""


def start_all(runtime: Runtime, specs: Sequence[SandboxSpec], output: Output) -> list[Sandbox]:
    """All of them, in order, or none; raises as ``Runtime.create`` does, what an environment says made readable."""
    for birth in range(1, _BIRTHS + 1):
        try:
            return runtime.create(specs, output)
        except SandboxError as error:
            if birth == _BIRTHS or not is_killed_from_outside(error.cause):
                raise cleaned(error) from None
            _say(error)
    raise AssertionError("the last one returns or raises")


def start_each(
    runtime: Runtime,
    specs: Sequence[SandboxSpec],
    output: Output,
    failures: dict[str, SandboxError],
) -> list[Sandbox]:
    """Those that can be built; why the others cannot is put into ``failures`` under their ids."""
    made = runtime.create(specs, output, failures)
    for _ in range(_BIRTHS - 1):
        again = [spec for spec in specs if spec.id in failures and is_killed_from_outside(failures[spec.id].cause)]
        if not again:
            break
        for spec in again:
            _say(failures.pop(spec.id))
        made += runtime.create(again, output, failures)
    return made


def start_another(
    failed: SandboxError, number: int, replace: Callable[[Sequence[int]], Mapping[int, SandboxError]]
) -> None:
    """In place of one that was started and failed before it served; raises what ended the last, or all but a kill."""
    for _ in range(_BIRTHS - 1):
        if not is_killed_from_outside(failed.cause):
            break
        _say(failed)
        if number not in (failures := replace([number])):
            return
        failed = failures[number]
    raise failed


def _say(error: SandboxError) -> None:
    logger.warning("%s; it is begun again", error)
