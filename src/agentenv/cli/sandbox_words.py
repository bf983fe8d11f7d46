"""What the commands for sandboxes print, and what they are given as words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentenv.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

    from rich.status import Status

    from agentenv.boxes.access import Description
    from agentenv.boxes.reach import Setting
    from agentenv.boxes.results import Copied
    from agentenv.images.progress import Report
    from agentenv.sandbox.workbench import Shutdown

_SHOWN = 2
_NAMED = 10


class _Said:
    """A report on the line of a terminal that changes."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def say(self, text: str) -> None:
        """Something worth one line."""
        from agentenv.telemetry.text import one_line

        self._status.update(one_line(text, 100))

    @contextmanager
    def task(self, text: str, total: float | None = None) -> Iterator[_Said]:
        """Work that begins now."""
        self.say(text)
        yield self

    def advance(self, amount: float) -> None:
        """How far it is is not shown."""


@contextmanager
def open_status(text: str, verbose: int) -> Iterator[Report]:
    """Show that something goes on, and what is said of it: on one line of a terminal, as log lines elsewhere."""
    from agentenv.cli.console import open_stderr, start_logging
    from agentenv.images.progress import LINES

    console = open_stderr()
    start_logging(console, "info" if verbose or not console.is_terminal else "warning", quiet=False, verbose=verbose)
    if not console.is_terminal:
        yield LINES
        return
    with console.status(text) as status:
        yield _Said(status)


def read_pairs(pairs: Sequence[str] | None) -> dict[str, str]:
    """Variables from words like ``K=V``.

    Raises:
        ConfigError: One is no such word.
    """
    problems = [
        Problem("command line", "--env", f"expected NAME=VALUE, got {pair!r}")
        for pair in pairs or ()
        if not pair.partition("=")[0] or "=" not in pair
    ]
    if problems:
        raise ConfigError(problems)
    split = (pair.partition("=") for pair in pairs or ())
    return {name: value for name, _, value in split}


def read_network(word: str | None, allow: Sequence[str], deny: Sequence[str], mbps: float | None) -> Setting:
    """What is reached, from the options that say it.

    Args:
        word: "none" or "internet"; None for what the lists say.
        allow: What is open; with "internet", besides everything public.
        deny: What is closed all the same.
        mbps: As ``--network-mbps``.

    Raises:
        ConfigError: They cannot be, or not together; by the names of the options.
    """
    from agentenv.boxes.reach import read_reach
    from agentenv.cli.sandbox_options import in_options

    if word == "none" and (allow or deny):
        what = f"expected no {'--allow' if allow else '--deny'} with --network none, which opens nothing"
        raise ConfigError([Problem("command line", "--network", what, "leave --network out")])
    setting: Setting = word or "none"
    if word in (None, "internet") and (allow or deny):
        opened = [*(["internet"] if word and allow else []), *allow]
        setting = {name: entries for name, entries in (("allow", opened), ("deny", list(deny))) if entries}
    with in_options():
        read_reach(setting, mbps)
    return setting


def network_text(one: Description) -> str:
    """What a sandbox reaches, in few words."""
    setting = one.network
    if isinstance(setting, str):
        text = setting or "-"
    else:
        text = "; ".join(f"{name} {_few(entries)}" for name, entries in setting.items())
    return text if one.network_mbps is None else f"{text}; {one.network_mbps:g} Mbit/s"


def _few(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(entries[:_SHOWN]) + more


def print_made(made: Sequence[Description], *, as_json: bool) -> None:
    """Say what was made."""
    from agentenv.cli.console import open_stdout, print_json, print_result

    if as_json:
        print_json({"sandboxes": [one.to_json() for one in made]})
        return
    out = open_stdout()
    for one in made:
        reaching = "" if one.network == "none" else f", network: {network_text(one)}"
        print_result(out, f"{one.id}: {one.state}, {one.runtime}, {one.memory_mb} MB{reaching}")
    print_result(out, f"agentenv sandbox exec {made[0].id} -- COMMAND; agentenv sandbox rm {made[0].id}")


def print_state(one: Description, *, as_json: bool) -> None:
    """Say how one is now."""
    from agentenv.cli.console import open_stdout, print_json, print_result

    if as_json:
        print_json(one.to_json())
        return
    print_result(open_stdout(), f"{one.id}: {_state(one)}")


def print_list(found: Sequence[Description], ended: Mapping[str, Path], *, as_json: bool) -> None:
    """A table of them.

    Args:
        found: Those that are there.
        ended: Where the last words of keepers are that ended on a fault, by the name of the sandbox.
        as_json: Print an object instead.
    """
    from agentenv.cli.console import make_table, open_stdout, print_json, print_result

    if as_json:
        lost = [{"id": name, "log": str(log)} for name, log in ended.items()]
        print_json({"sandboxes": [one.to_json() for one in found], "ended": lost})
        return
    lines = [f"{name} ended on a fault: {log}; agentenv sandbox rm {name} removes that" for name, log in ended.items()]
    if not found:
        print_result(open_stdout(), "no sandboxes; agentenv sandbox create --name NAME", *lines)
        return
    columns = [("sandbox", "left"), ("state", "left"), ("runtime", "left"), ("image", "left"), ("MB", "right")]
    columns += [("network", "left"), ("since", "left"), ("from", "left")]
    rows = [
        [
            one.id,
            one.state,
            one.runtime or "-",
            one.image or "-",
            str(one.memory_mb) if one.memory_mb else "-",
            network_text(one),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.created_unix)) if one.created_unix else "-",
            one.origin or "-",
            one.cause,
        ]
        for one in found
    ]
    if any(one.cause for one in found):
        columns.append(("cause", "left"))
    else:
        rows = [row[:-1] for row in rows]
    print_result(open_stdout(), make_table(columns, rows), *lines)


def print_copied(copied: Copied, target: str, *, as_json: bool) -> None:
    """Say what was copied, and on stderr what was not."""
    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result
    from agentenv.errors import counted
    from agentenv.telemetry.text import one_line

    if as_json:
        print_json({"files": copied.files, "bytes": copied.bytes, "left_out": copied.left_out})
        return
    out = open_stdout()
    if out.is_terminal:
        print_result(out, f"{counted(copied.files, 'file')}, {copied.bytes:,} bytes, to {one_line(target)}")
    if left_out := [one_line(name, 200) for name in copied.left_out]:
        names = ", ".join(left_out[:_NAMED]) + (" ..." if len(left_out) > _NAMED else "")
        print_result(
            open_stderr(), f"left out, since no file, no directory and no link within, or not to be read: {names}"
        )


def print_removed(removed: Sequence[str], failed: Mapping[str, Exception], *, as_json: bool) -> None:
    """Say what is gone, and on stderr what is not."""
    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result
    from agentenv.telemetry.text import printable

    if as_json:
        record: dict[str, Any] = {"removed": list(removed)}
        print_json(record | ({"failed": {name: str(error) for name, error in failed.items()}} if failed else {}))
    elif removed or not failed:
        print_result(open_stdout(), f"removed {', '.join(removed)}" if removed else "there were none")
    for error in failed.values():
        print_result(open_stderr(), f"agentenv: {printable(str(error))}")


def print_stopped(stopped: Mapping[str, Shutdown], failed: Mapping[str, Exception], *, as_json: bool) -> None:
    """Say how programs ended, and on stderr what was not ended in order."""
    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result
    from agentenv.errors import counted
    from agentenv.telemetry.text import printable

    if as_json:
        record: dict[str, Any] = {
            "stopped": [{"id": name, "ended": one.ended, "killed": one.killed} for name, one in stopped.items()]
        }
        print_json(record | ({"failed": {name: str(error) for name, error in failed.items()}} if failed else {}))
    else:
        for name, one in stopped.items():
            killed = f", {one.killed:,} killed" if one.killed else ""
            print_result(open_stdout(), f"{name}: stopped, {counted(one.ended, 'program')} ended{killed}")
    for error in failed.values():
        print_result(open_stderr(), f"agentenv: {printable(str(error))}")


def _state(one: Description) -> str:
    from agentenv.telemetry.text import one_line

    return one_line(f"{one.state}: {one.cause}" if one.cause else one.state)
