"""``agentenv logs``: what the environments of a run printed, fit for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agentenv.fleet.rundir import EnvDir, RunDir


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name, beginning of a name, path, or latest.")],
    env: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="An environment's id; all without.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Standard error instead of standard output.")] = False,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The directory of all runs.")] = Path(
        "runs"
    ),
) -> None:
    """Show the output of a run's environments.

    Escape sequences and control characters are taken out; the files in the run's directory keep every byte. An
    environment that was restarted goes on in the same log, after a line "--- agentenv: restarted ... ---".

    \b
    Examples:
      agentenv logs latest
      agentenv logs latest agent_1 -f
      agentenv logs 20260314 agent_1 --stderr
    """
    from agentenv.fleet.runs import find_run

    found = find_run(run_dir.expanduser(), run)
    chosen = _choose(found, env)
    if follow:
        _follow(found, chosen, stderr=stderr)
        return
    for place in chosen:
        if len(chosen) > 1:
            sys.stdout.write(f"==> {place.env_id} <==\n")
        for text in _read(place, stderr=stderr):
            sys.stdout.write(text)
    sys.stdout.flush()
    _tell_crashes(found, chosen)


def _choose(run: RunDir, env: str | None) -> list[EnvDir]:
    from difflib import get_close_matches

    from agentenv.errors import ConfigError, Problem

    places = run.environments()
    if env is None:
        return places
    chosen = [place for place in places if place.env_id == env]
    if not chosen:
        ids = [place.env_id for place in places]
        near = get_close_matches(env, ids, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(ids[:10]) or 'none'}"
        message = f"expected an environment of run {run.path.name!r}, got {env!r}"
        raise ConfigError([Problem("argument", "ENV", message, hint)])
    return chosen


def _tell_crashes(run: RunDir, places: list[EnvDir]) -> None:
    """Where to read on, on stderr: a crash can leave nothing in the output."""
    from agentenv.fleet.crashes import count_crashes

    counts = {place.env_id: count for place in places if (count := count_crashes(place))}
    if counts:
        shown = [f"{env_id} {count}" for env_id, count in list(counts.items())[:5]]
        more = f", ... ({len(counts)} environments)" if len(counts) > len(shown) else ""
        sys.stderr.write(f"crashes: {', '.join(shown)}{more}; why: agentenv crashes {run.path}\n")


def _read(place: EnvDir, *, stderr: bool) -> Iterator[str]:
    from agentenv.telemetry.logs import printable_stream, read_log

    yield from printable_stream(read_log(place.stderr if stderr else place.stdout))


def _follow(run: RunDir, places: list[EnvDir], *, stderr: bool) -> None:
    import threading

    from agentenv.fleet.rundir import RunState
    from agentenv.telemetry.logs import follow, printable_stream

    stop = threading.Event()
    lock = threading.Lock()
    broken = threading.Event()
    many = len(places) > 1

    def show(place: EnvDir) -> None:
        start_of_line = True
        for text in printable_stream(follow(place.stderr if stderr else place.stdout, stop)):
            if many:
                lines = text.splitlines(keepends=True)
                prefix = f"{place.env_id}: "
                text = "".join(prefix + line if i or start_of_line else line for i, line in enumerate(lines))
                start_of_line = text.endswith("\n")
            try:
                with lock:
                    sys.stdout.write(text)
                    sys.stdout.flush()
            except BrokenPipeError:
                broken.set()
                stop.set()
                return

    threads = [threading.Thread(target=show, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    try:
        while not stop.wait(0.2):
            if run.state() is not RunState.RUNNING:
                stop.set()
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=5)
    if broken.is_set():
        raise BrokenPipeError
