"""The attack suite: deeds and attempts any isolating runtime must hold against, run the same way over each.

Three environments share a vector: a hostile one between two harmless neighbours. After every deed the cause must have
come out as one of those expected, the neighbours must have taken exactly the steps that were asked of them, and the
hostile one must be startable again. What a runtime does not claim to hold (``Attack.least``) is not run over it.

    python -m agentenv.testing.attacks bubblewrap        # every attack, one line each; exit status 1 if one succeeds
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import AgentEnvError, CauseKind, SandboxError
from agentenv.sandbox.contract import ISOLATION_ORDER
from agentenv.testing.attack_table import ATTACKS, Attack

__all__ = ["ATTACKS", "ATTEMPT_NAMES", "SUBJECT", "Arena", "Attack", "attacks_for", "run_apart"]

SUBJECT = "agentenv.testing.hostile.env:Subject"
BOUND_S = 45.0
"""No attack may hold its caller up for longer. Deadlines in the suite are 1 s; the rest is for a slow machine."""
CLOSE_BOUND_S = 20.0
LIMITS: Mapping[str, Any] = {
    "memory_mb": 192, "vcpu_count": 1.0, "pids": 48, "disk_mb": 16,
    "step_timeout_s": 1.0, "reset_timeout_s": 1.0, "start_timeout_s": 20.0,
}  # fmt: skip
ATTEMPT_NAMES = (
    "host_files", "system_secrets", "neighbours_files", "write_elsewhere", "system_settings", "devices",
    "special_modes", "configuration", "processes", "signals", "others_memory", "own_memory", "variables",
    "inherited_descriptors", "interprocess", "calls", "namespaces", "identity", "limits", "tcp_to_host",
    "udp_to_host", "outside", "families",
    "own_loopback",
)  # fmt: skip
"""Attempts of ``agentenv.testing.hostile``, which run inside; named here so that the host need not import them."""
_RED, _COUNT = 1, 3


def attacks_for(isolation: str, moment: str) -> list[Attack]:
    """The attacks of a moment that a runtime of this isolation must hold against."""
    strength = ISOLATION_ORDER.index(isolation)
    return [a for a in ATTACKS if a.moment == moment and ISOLATION_ORDER.index(a.least) <= strength]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attack came to.

    Attributes:
        kinds: Causes in the order they came; None for a step that went well.
        info: What the deed said about itself.
    """

    kinds: tuple[CauseKind | None, ...]
    info: Mapping[str, Any]


class Arena:
    """A hostile environment between two harmless ones, in one vector. A context manager."""

    def __init__(
        self,
        runtime: str,
        *,
        nested: str = "auto",
        environments: Sequence[Mapping[str, Any]] = (),
        tables: Mapping[str, Any] | None = None,
    ) -> None:
        """Start it.

        Args:
            runtime: Name of the runtime.
            nested: As ``[bubblewrap] nested``.
            environments: Further keys for each of the three environments.
            tables: Further tables of the configuration.
        """
        extra = environments or [{}] * _COUNT
        self.ids = tuple(f"arena-{number}" for number in range(_COUNT))
        self.vector = AgentVectorEnv(
            {
                "global": {"runtime": runtime},
                "environments": [
                    {"id": name, "env": SUBJECT, "on_crash": "raise", **LIMITS, **more}
                    for name, more in zip(self.ids, extra, strict=True)
                ],
                "bubblewrap": {"nested": nested},
                **(tables or {}),
            }
        )
        self.expected = [0] * _COUNT
        self.vector.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, and check that this did not take for ever."""
        began = time.monotonic()
        self.vector.close()
        assert time.monotonic() - began < CLOSE_BOUND_S, "close() was not bounded"

    def run(self, attack: Attack) -> Outcome:
        """Let the hostile environment do its deed, and check everything that must hold.

        Raises:
            AssertionError: Something did not hold; says what.
        """
        began = time.monotonic()
        try:
            outcome = self._observe(attack)
        except BaseException:
            self._start_over()
            raise
        self.recover()
        assert time.monotonic() - began < BOUND_S, f"{attack.name}: held its caller up for over {BOUND_S} s"
        return outcome

    def _observe(self, attack: Attack) -> Outcome:
        self.vector.set_attr("deed", ["", f"{attack.moment}:{attack.name}", ""])
        kinds: list[CauseKind | None] = []
        info: dict[str, Any] = {}
        for _ in range(1 + attack.further_steps):
            kind, said = self._reset_red(attack) if attack.moment == "reset" and not kinds else self._step(attack)
            kinds.append(kind)
            info = info or said
            if kind not in (None, CauseKind.EXCEPTION):
                break
        for kind in kinds:
            assert kind in attack.expected or (kind is None and kinds[-1] is not None and len(kinds) > 1), (
                f"{attack.name}: expected {attack.expected}, got {kinds}"
            )
        return Outcome(tuple(kinds), info)

    def recover(self) -> None:
        """Start the hostile environment anew and check that all three step as they should."""
        self._retire()
        self.vector.reset(options={"reset_mask": np.arange(_COUNT) == _RED})
        self.expected[_RED] = 0
        for _ in range(2):
            kind, _ = self._step(None)
            assert kind is None, f"after the attack a plain step failed: {kind}"

    def _retire(self) -> None:
        """End the hostile environment if it still lives: the next attack must not meet what this one left in it."""
        try:
            self.vector.set_attr("deed", ["", "step:exit_0", ""])
        except SandboxError:
            return  # dead already
        kind, _ = self._step(None, leaving=True)
        assert kind is not None, "it was told to exit and did not"

    def _start_over(self) -> None:
        """After a failure of the suite's own checks: from the beginning, so that the next attack is judged alone."""
        for _ in range(3):
            try:
                self.vector.reset()
            except SandboxError:
                continue
            self.expected = [0] * _COUNT
            return

    def _step(self, attack: Attack | None, *, leaving: bool = False) -> tuple[CauseKind | None, dict[str, Any]]:
        self.expected = [count + 1 for count in self.expected]
        name = attack.name if attack is not None else "no deed"
        try:
            observations, rewards, _, _, infos = self.vector.step(np.zeros(_COUNT, np.int64))
        except SandboxError as error:
            self._check_error(error, name)
            return error.cause.kind, {}
        for number, count in enumerate(self.expected):
            if number != _RED or (attack is None and not leaving):
                assert (observations[number], rewards[number]) == (count, count / 2), (
                    f"{name}: environment {number} is at {observations[number]}, reward {rewards[number]};"
                    f" expected {count}"
                )
        return None, {key: value[_RED] for key, value in infos.items() if not key.startswith("_")}

    def _reset_red(self, attack: Attack) -> tuple[CauseKind | None, dict[str, Any]]:
        try:
            self.vector.reset(options={"reset_mask": np.arange(_COUNT) == _RED})
        except SandboxError as error:
            self._check_error(error, attack.name)
            return error.cause.kind, {}
        self.expected[_RED] = 0
        return None, {}

    def _check_error(self, error: SandboxError, name: str) -> None:
        assert error.env_id == self.ids[_RED], f"{name}: blamed on {error.env_id!r}"
        assert error.index == _RED, f"{name}: blamed on index {error.index}"
        assert "\x1b" not in str(error), f"{name}: escape sequences in the message"
        assert len(str(error)) < 300_000, f"{name}: a message of {len(str(error))} characters"


def run_apart(attack: Attack, runtime: str, *, nested: str = "auto") -> CauseKind | None:
    """An attack from within a constructor or ``close``, in a run of its own.

    Returns:
        The cause that came out, or None.

    Raises:
        AssertionError: It was not one of those expected, or took for ever.
    """
    began = time.monotonic()
    deed = f"{attack.moment}:{attack.name}"
    limits = {**LIMITS, "start_timeout_s": 2.0}
    kind: CauseKind | None = None
    text = ""
    try:
        env = AgentENV(
            {
                "global": {"runtime": runtime},
                "environments": [{"id": "apart", "env": SUBJECT, "env_kwargs": {"deed": deed}, **limits}],
                "bubblewrap": {"nested": nested},
            }
        )
        env.close()
    except SandboxError as error:
        kind, text = error.cause.kind, str(error)
    assert "\x1b" not in text, f"{attack.name}: escape sequences in the message"
    assert kind in attack.expected, f"{attack.name}: expected {attack.expected}, got {kind}"
    assert time.monotonic() - began < BOUND_S, f"{attack.name}: held its caller up for over {BOUND_S} s"
    return kind


def main(arguments: Sequence[str]) -> int:
    """Run every attack over a runtime; print one line each. Returns the exit status."""
    runtime, nested = arguments[0], (arguments[1] if len(arguments) > 1 else "auto")
    isolation = "process" if runtime == "process" else "sandbox"
    failures = 0
    with Arena(runtime, nested=nested) as arena:
        print("limits", dict(arena.vector._context.runtime.limits()), flush=True)
        for attack in [*attacks_for(isolation, "step"), *attacks_for(isolation, "reset")]:
            failures += not _report(attack, lambda attack=attack: arena.run(attack))
    for attack in [*attacks_for(isolation, "construct"), *attacks_for(isolation, "close")]:
        failures += not _report(attack, lambda attack=attack: run_apart(attack, runtime, nested=nested))
    return 1 if failures else 0


def _report(attack: Attack, run: Any) -> bool:
    began = time.monotonic()
    try:
        came, held = run(), True
    except (AssertionError, AgentEnvError, Exception) as error:
        came, held = f"{type(error).__name__}: {error}".splitlines()[0][:300], False
    print(
        "held" if held else "NOT HELD", attack.moment, attack.name, f"{time.monotonic() - began:.2f}", came, flush=True
    )
    return held


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
