"""``agentenv logs``: what the environments of a run printed, fit for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentenv.errors import counted

if TYPE_CHECKING:
    from agentenv.fleet.rundir import EnvDir, RunDir


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name, beginning of a name, path, or latest.")],
    env: Annotated[
        str | None,
        typer.Argument(metavar="[ENV]", help="An environment's id, or a table's; all without.", show_default=False),
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
    from agentenv.cli.exits import FAILED
    from agentenv.cli.places import choose_places, tell_faults
    from agentenv.errors import RunDamaged
    from agentenv.fleet.runs import find_run

    found = find_run(run_dir.expanduser(), run)
    chosen, faults = choose_places(found, env)
    if follow:
        faults += _follow(found, chosen, stderr=stderr)
    else:
        for place in chosen:
            if len(chosen) > 1:
                sys.stdout.write(f"==> {place.env_id} <==\n")
            try:
                for text in _read(place, stderr=stderr):
                    sys.stdout.write(text)
            except RunDamaged as error:
                faults.append(str(error))
        sys.stdout.flush()
        _tell_crashes(found, chosen)
    if faults:
        sys.stdout.flush()
        tell_faults(faults)
        raise typer.Exit(FAILED)


def _tell_crashes(run: RunDir, places: list[EnvDir]) -> None:
    """Where to read on, on stderr: a crash can leave nothing in the output."""
    from agentenv.fleet.crashes import count_crashes

    counts = {place.env_id: count for place in places if (count := count_crashes(place))}
    if counts:
        shown = [f"{env_id} {count}" for env_id, count in list(counts.items())[:5]]
        more = f", ... ({counted(len(counts), 'environment')})" if len(counts) > len(shown) else ""
        sys.stderr.write(f"crashes: {', '.join(shown)}{more}; why: agentenv crashes {run.path}\n")


def _read(place: EnvDir, *, stderr: bool) -> Iterator[str]:
    from agentenv.fleet.damage import reading
    from agentenv.telemetry.logs import printable_stream, read_log

    file = place.stderr if stderr else place.stdout
    with reading(file, "the log of what it printed"):
        yield from printable_stream(read_log(file))


def _follow(run: RunDir, places: list[EnvDir], *, stderr: bool) -> list[str]:
    """Show what comes until the run ends; returns a sentence on each log that could not be read."""
    import threading

    from agentenv.errors import RunDamaged
    from agentenv.fleet.damage import reading
    from agentenv.fleet.rundir import RunState
    from agentenv.telemetry.logs import follow, printable_stream

    stop = threading.Event()
    lock = threading.Lock()
    broken: list[OSError] = []
    many = len(places) > 1
    faults: list[str] = []

    def show(place: EnvDir) -> None:
        try:
            show_one(place, place.stderr if stderr else place.stdout)
        except RunDamaged as error:
            faults.append(str(error))

    def show_one(place: EnvDir, file: Path) -> None:
        start_of_line = True
        for text in pieces(file):
            if many:
                lines = text.splitlines(keepends=True)
                prefix = f"{place.env_id}: "
                text = "".join(prefix + line if i or start_of_line else line for i, line in enumerate(lines))
                start_of_line = text.endswith("\n")
            try:
                with lock:
                    sys.stdout.write(text)
                    sys.stdout.flush()
            except OSError as error:
                broken.append(error)
                stop.set()
                return

    def pieces(file: Path) -> Iterator[str]:
        with reading(file, "the log of what it printed"):
            yield from printable_stream(follow(file, stop))

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
    if broken:
        raise broken[0]
    return faults
