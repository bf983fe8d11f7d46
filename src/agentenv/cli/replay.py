"""``agentenv replay``: execute recorded episodes again, and say where they differ from the record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentenv.config import Config, EnvironmentConfig
    from agentenv.fleet.replaying import Replay
    from agentenv.fleet.rundir import RunDir
    from agentenv.fleet.tracefile import EpisodeTrace


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name, beginning of a name, path, or latest.")],
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="This environment, or those of this table, only.")
    ] = None,
    episode: Annotated[int | None, typer.Option("--episode", metavar="N", min=0, help="This episode only.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Exit code 1 where anything differs or is damaged.")] = False,
    ignore_info: Annotated[
        bool, typer.Option("--ignore-info", help="Infos may differ: they may tell the time.")
    ] = False,
    render: Annotated[
        Path | None, typer.Option("--render", metavar="FILE", help="Draw one episode: a .gif, or its end as .png.")
    ] = None,
    run_dir: Annotated[Path, typer.Option("--run-dir", metavar="DIR", help="The directory of all runs.")] = Path(
        "runs"
    ),
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Execute recorded episodes again in sandboxes: same seed, same actions; every answer is compared.

    Reports the first step that differs, and in what, and what of the record is damaged. Step 0 is the reset. The run's
    folder is only read.

    \b
    Examples:
      agentenv replay latest --verify
      agentenv replay latest --env agent_1 --episode 3
      agentenv replay latest --env agent_1 --render episode.gif
    """
    from agentenv.cli.console import make_table, open_stderr, open_stdout, print_json, print_result, start_logging
    from agentenv.cli.exits import FAILED, OK
    from agentenv.cli.policy_ground import make_importable
    from agentenv.errors import counted
    from agentenv.fleet.origin import read_config
    from agentenv.fleet.runs import find_run

    console = open_stderr()
    start_logging(console, "warning", quiet=True, verbose=verbose)
    found = find_run(run_dir.expanduser(), run)
    config, cwd = read_config(found)
    make_importable(config, cwd)
    chosen, faults = _choose(found, config, env, episode, render)
    replays: list[Replay] = []
    drawn = ""
    if console.is_terminal:
        with console.status("replaying"):
            for one, text in _play(config, chosen, render, with_info=not ignore_info):
                replays.append(one)
                drawn = text
    else:
        for one, text in _play(config, chosen, render, with_info=not ignore_info):
            replays.append(one)
            drawn = text
    differing = sum(one.difference is not None for one in replays)
    same = not differing and not faults
    if json_:
        record = {"run": found.path.name, "same": same, "render": drawn or None, "damaged": faults}
        print_json(record | {"episodes": [*map(_record, replays)]})
    else:
        shown = [one for one in replays if one.difference is not None] or replays
        rows = [_row(one) for one in shown[:30]]
        columns = [("id", "left"), ("episode", "right"), ("steps", "right"), ("return", "right"), ("detail", "left")]
        parts: list[Any] = [make_table(columns, rows)]
        if len(shown) > len(rows):
            parts.append(f"... and {len(shown) - len(rows)} more with --json")
        result = "the same, as far as the record can be read" if faults else "all the same"
        if differing:
            result = "1 differs" if differing == 1 else f"{differing:,} differ"
        steps = counted(sum(one.steps for one in replays), "step")
        parts.append(f"{counted(len(replays), 'episode')}, {steps}: {result}")
        parts += [f"damaged: {fault}" for fault in faults]
        print_result(open_stdout(), *parts, *([f"written: {drawn}"] if drawn else []))
    raise typer.Exit(FAILED if verify and not same else OK)


def _choose(
    run: RunDir, config: Config, env: str | None, episode: int | None, render: Path | None
) -> tuple[list[tuple[EnvironmentConfig, list[EpisodeTrace]]], list[str]]:
    """The recorded episodes that are meant, by environment; and a sentence on each trace that does not hold them all.

    Raises:
        ConfigError: Nothing is recorded that is meant.
        RunDamaged: It was, and cannot be read any more.
    """
    from agentenv.errors import RunDamaged
    from agentenv.fleet.expected import read_expected
    from agentenv.fleet.holdings import read_holding

    environments = {e.id: e for e in config.expand() if e.command is None}
    meant = list(environments)
    if env is not None:
        meant = [one for one in [env, *config.copies().get(env, [])] if one in environments]
    if env is not None and not meant:
        known = ", ".join(list(environments)[:10])
        raise _mistake(
            "--env", f"expected an environment of {run.path.name} that is stepped, got {env!r}", f"it has {known}"
        )
    expected = read_expected(run)
    missing = expected.missing()
    chosen, faults, last = [], [], -1
    for environment in [environments[one] for one in meant]:
        if environment.id in missing:
            faults.append(missing[environment.id])
            continue
        holding = read_holding(expected, environment.id)
        held = holding.trace.episodes
        last = max(last, expected.episodes.get(environment.id, 0) - 1, *holding.records, *held)
        episodes = [held[n] for n in sorted(held) if held[n].rows and episode in (None, n)]
        if episodes:
            chosen.append((environment, episodes))
        if episode is None or episode in holding.unheld or not episodes:
            faults += holding.trace_faults
    if not chosen and faults:
        raise RunDamaged("\n".join(faults))
    if not chosen:
        what = "episodes" if episode is None else f"episode {episode}"
        hint = "older episodes give way to newer ones where there is no room: raise trace_mb"
        if last < 0:
            hint = "no episode was finished" if environments else "commands have no episodes"
        option = "RUN" if episode is None else "--episode"
        if episode is not None and episode > last >= 0:
            raise _mistake(option, f"expected recorded episode {episode}, {run.path.name} played 0 to {last}")
        raise _mistake(option, f"expected recorded {what}, none is kept in {run.path.name}", hint)
    if render is not None:
        if len(chosen) > 1:
            ids = ", ".join(environment.id for environment, _ in chosen[:10])
            raise _mistake("--render", f"expected one environment to draw, got {len(chosen)}", f"--env, one of {ids}")
        chosen = [(environment, episodes[-1:]) for environment, episodes in chosen]
    return chosen, faults


def _play(
    config: Config, chosen: list[tuple[EnvironmentConfig, list[EpisodeTrace]]], render: Path | None, *, with_info: bool
) -> Iterator[tuple[Replay, str]]:
    from agentenv.errors import counted
    from agentenv.fleet.pictures import Pictures
    from agentenv.fleet.replaying import Replayer

    for environment, episodes in chosen:
        pictures = None if render is None else Pictures(render.expanduser(), episodes[0].rows)
        replayer = Replayer(config, environment, render=render is not None)
        with replayer:
            for recorded in episodes:
                if pictures is None:
                    yield replayer.play(recorded, with_info=with_info), ""
                    continue
                one = replayer.play(recorded, with_info=with_info, on_row=pictures.take)
                if one.difference is None or "failure" not in one.difference.what:
                    pictures.take_last(replayer.render)
                count = pictures.save(replayer.fps)
                yield one, f"{render} ({counted(count, 'frame')})"


def _row(one: Replay) -> list[str]:
    from agentenv.cli.console import format_number

    detail = "the same" if one.whole else "the same, as far as it is recorded"
    if one.difference is not None:
        place = "" if one.difference.step is None else f" at step {one.difference.step}"
        detail = f"differs{place}: {one.difference.detail}"
    return [one.env_id, str(one.episode), f"{one.steps:,}", format_number(one.return_), detail]


def _record(one: Replay) -> dict[str, Any]:
    record = asdict(one)
    record["return"] = record.pop("return_")
    return record


def _mistake(option: str, message: str, hint: str = "") -> Exception:
    from agentenv.errors import ConfigError, Problem

    return ConfigError([Problem("argument", option, message, hint)])
