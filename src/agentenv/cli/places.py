"""The environments of a run that a user means, and what is missing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentenv.errors import ConfigError
    from agentenv.fleet.rundir import EnvDir, RunDir


def choose_places(run: RunDir, env: str | None) -> tuple[list[EnvDir], list[str]]:
    """The folders of one environment, of a table's copies, or of all; and a sentence on each that is missing.

    Raises:
        ConfigError: The run has no such environment.
        RunDamaged: Its folder cannot be read, or is missing.
    """
    from agentenv.errors import RunDamaged
    from agentenv.fleet.expected import read_expected

    places, expected = run.environments(), read_expected(run)
    missing = expected.missing()
    if env is None:
        return places, list(missing.values())
    if env in missing:
        raise RunDamaged(missing[env])
    chosen = [place for place in places if place.env_id == env]
    if not chosen and env in expected.copies:
        copies = expected.copies[env]
        return [p for p in places if p.env_id in copies], [missing[copy] for copy in copies if copy in missing]
    if not chosen:
        raise unknown_environment("ENV", env, [run], [place.env_id for place in places])
    return chosen, []


def unknown_environment(option: str, env: str, runs: list[RunDir], ids: list[str]) -> ConfigError:
    """That no environment of these runs is called so; and which there are."""
    from difflib import get_close_matches

    from agentenv.errors import ConfigError, Problem

    near = get_close_matches(env, ids, n=1) or [one for one in ids if one.startswith(f"{env}-")]
    has = "it has" if len(runs) == 1 else "they have"
    hint = f"did you mean {near[0]!r}?" if near else f"{has} {', '.join(ids[:10]) or 'none'}"
    names = " or ".join(repr(run.path.name) for run in runs)
    message = f"expected an environment of run {names}, got {env!r}"
    return ConfigError([Problem("argument", option, message, hint)])


def tell_faults(faults: list[str]) -> None:
    """What is damaged, on stderr, a line each."""
    import sys

    from agentenv.telemetry.text import printable

    for fault in faults:
        sys.stderr.write(f"agentenv: {printable(fault)}\n")
