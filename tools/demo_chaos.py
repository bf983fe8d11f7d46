"""The demonstration of recovery: a run whose processes are killed every second plays what a quiet run plays.

    python tools/demo_chaos.py [--config examples/chaos.toml] [--run-dir runs]

The configuration is run twice, by ``agentenv run``. Once quietly and at full speed; then slowed down to some hundred
steps a second (``Unhurried``), so that it lasts twenty seconds, while one process of it is sent SIGKILL every second:
the process of an environment or the copy parked beside it, the first process of a sandbox, and every seventh time the
one that all sandboxes are forked from. The digests of all episodes must be the same. A digest is over every
observation, reward, flag, info and action of an episode.

Exit code 0: they are, and somebody was killed; 1: they are not; 2: wrong usage; 3: a run did not come to its end.

Only processes below the run that this program started are killed, each through a pidfd after a look that it still is
one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import psutil
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
EVERY_S = 1.0
ZYGOTE_EVERY = 7
ENVIRONMENT, CELL, ZYGOTE = "environment or parked copy", "first process of a sandbox", "what all are forked from"


class Unhurried(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes its time for every step, and changes nothing else.

    Args:
        env: The environment.
        step_s: Seconds to sleep before each step.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], step_s: float) -> None:
        super().__init__(env)
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return self.env.step(action)


class RunFailed(Exception):
    """A run did not come to its end; says with which exit code."""


def sort_victims(root: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes below a run by what they are, from the shape of their tree.

    From the run down there is one process below the other, to the one that has all sandboxes as children; below those
    are the environments and their copies. Where each environment has a bubblewrap of its own, nobody is that one.
    """
    found: dict[str, list[psutil.Process]] = {ENVIRONMENT: [], CELL: [], ZYGOTE: []}
    with contextlib.suppress(psutil.NoSuchProcess):
        node, members = root, root.children()
        while len(members) == 1:
            node = members[0]
            members = node.children()
        if node == root:
            found[ENVIRONMENT] = root.children(recursive=True)
            return found
        if members:
            found[ZYGOTE], found[CELL] = [node], members
            for cell in members:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found[ENVIRONMENT] += cell.children(recursive=True)
    return found


def kill(victim: psutil.Process) -> bool:
    """Send SIGKILL, unless somebody else has its number by now; returns whether it was sent."""
    try:
        pidfd = os.pidfd_open(victim.pid)
    except OSError:
        return False
    try:
        if not victim.is_running():  # compares the time of its start
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


class Killer:
    """Chooses whom to kill.

    Attributes:
        kills: How many of each kind were killed.
    """

    def __init__(self, root: int, seed: int) -> None:
        """Kill below the process ``root``."""
        self._root = psutil.Process(root)
        self._random = random.Random(seed)
        self.kills: Counter[str] = Counter()

    def strike(self) -> None:
        """Kill one, if anybody is there."""
        victims = sort_victims(self._root)
        kind = ZYGOTE if self.kills.total() % ZYGOTE_EVERY == ZYGOTE_EVERY - 1 else self._pick()
        if not victims[kind]:
            kind = ENVIRONMENT
        if victims[kind] and kill(self._random.choice(victims[kind])):
            self.kills[kind] += 1

    def _pick(self) -> str:
        return CELL if self._random.random() < 0.3 else ENVIRONMENT


def play(config: Path, run_dir: Path, *settings: str, kill_seed: int | None = None) -> tuple[Path, Counter[str]]:
    """Run a configuration, with somebody killed every second where there is a ``kill_seed``.

    Returns:
        The run's directory, and who was killed.

    Raises:
        RunFailed: Its exit code is not 0.
    """
    path = os.pathsep.join(part for part in (str(Path(__file__).parent), os.environ.get("PYTHONPATH")) if part)
    command = [sys.executable, "-m", "agentenv", "run", str(config), "--run-dir", str(run_dir), "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    kills: Counter[str] = Counter()
    before = set(run_dir.glob("*"))
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdout=said, env={**os.environ, "PYTHONPATH": path}) as process,
    ):
        try:
            killer = None if kill_seed is None else Killer(process.pid, kill_seed)
            begun = False
            while True:
                try:
                    process.wait(EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    begun = begun or has_begun(run_dir, before)
                    if killer is not None and begun:
                        killer.strike()
        except BaseException:
            process.terminate()  # it takes down what it started; Popen waits for it
            raise
        if killer is not None:
            kills = killer.kills
        said.seek(0)
        text = said.read()
    if process.returncode != 0:
        raise RunFailed(f"agentenv run {config} ended with exit code {process.returncode}")
    return Path(json.loads(text)["run_dir"]), kills


def has_begun(run_dir: Path, before: set[Path]) -> bool:
    """Whether a run that was not there before has started all its environments: from then on they are brought back."""
    for events in {*run_dir.glob("*")} - before:
        with contextlib.suppress(OSError):
            text = (events / "events.jsonl").read_bytes()
            wanted = re.search(rb'"kind":"run_started".*?"environments":(\d+)', text)
            return wanted is not None and text.count(b'"kind":"env_started"') >= int(wanted[1])
    return False


def read_digests(run: Path) -> dict[str, list[str]]:
    """The digest of every episode, by environment."""
    return {
        file.parent.name: [str(record["digest"]) for record in read_lines(file)]
        for file in sorted(run.glob("environments/*/episodes.jsonl"))
    }


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


def count_recoveries(run: Path) -> dict[str, Counter[str]]:
    """For each environment, how often it was brought back, and how."""
    found: dict[str, Counter[str]] = {}
    for event in read_lines(run / "events.jsonl"):
        if event["kind"] == "env_recovered":
            found.setdefault(event["env_id"], Counter())[event["fields"]["how"]] += 1
    return found


def differing(quiet: Sequence[str], killed: Sequence[str]) -> int:
    """How many episodes are not the same, those that only one of them has included."""
    return sum(a != b for a, b in zip(quiet, killed, strict=False)) + abs(len(quiet) - len(killed))


def compare(quiet: Path, killed: Path, kills: Counter[str], console: Console) -> int:
    """Print what came out; returns the exit code."""
    expected, found, recoveries = read_digests(quiet), read_digests(killed), count_recoveries(killed)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "episodes", "restarts", "from", "last digest", "when killed", "verdict"):
        table.add_column(name, justify="right" if name in ("episodes", "restarts") else "left", no_wrap=True)
    wrong = episodes = restarts = 0
    for env_id in sorted(expected.keys() | found.keys()):
        one, other = expected.get(env_id, []), found.get(env_id, [])
        bad, ways = differing(one, other), recoveries.get(env_id, Counter())
        wrong, episodes, restarts = wrong + bad, episodes + max(len(one), len(other)), restarts + ways.total()
        how = ", ".join(f"{number} {way}" for way, number in sorted(ways.items())) or "-"
        last = [digests[-1][:12] if digests else "-" for digests in (one, other)]
        verdict = f"{bad} differ" if bad else "same"
        table.add_row(env_id, f"{len(other)}", f"{ways.total()}", how, *last, verdict)
    console.print(table, highlight=False)
    whom = "; ".join(f"{number} x {kind}" for kind, number in kills.most_common())
    console.print(f"killed: {whom or 'nobody'}", highlight=False)
    where = f"quiet run: {quiet}\nkilled run: {killed}; its crashes: agentenv crashes {killed}"
    console.print(where, highlight=False, soft_wrap=True)
    if wrong or not episodes:
        console.print(f"DIFFERENT: {wrong} of {episodes} episodes", style="bold red", highlight=False)
        return 1
    if not restarts:
        console.print("NOTHING SHOWN: it was over before anybody had died", style="bold red", highlight=False)
        return 1
    text = f"SAME: {kills.total()} kills, {restarts} restarts, all {episodes} episodes are those of the quiet run"
    console.print(text, style="bold green", highlight=False, soft_wrap=True)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the demonstration; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Kill processes of a run every second and compare it with a quiet one."
    )
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "chaos.toml", help="the TOML file")
    parser.add_argument("--run-dir", type=Path, default=Path("runs"), help="the directory of all runs")
    parser.add_argument("--step-ms", type=float, default=1.8, help="milliseconds a step of the killed run is slowed by")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of whom to kill")
    given = parser.parse_args(arguments)
    # What ends this program ends the run it started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console() if sys.stdout.isatty() else Console(width=200, no_color=True)
    slower = f'{{ wrapper = "demo_chaos:Unhurried", kwargs = {{ step_s = {given.step_ms / 1000} }} }}'
    try:
        console.print("A quiet run:", style="bold")
        quiet, _ = play(given.config, given.run_dir)
        console.print("The same, slower, with one of its processes killed every second:", style="bold")
        setting = f"global.defaults.wrappers=[{slower}]"
        killed, kills = play(given.config, given.run_dir, setting, kill_seed=given.seed)
    except RunFailed as error:
        console.print(f"error: {error}", style="bold red", highlight=False, soft_wrap=True)
        return 3
    except KeyboardInterrupt:
        return 130
    return compare(quiet, killed, kills, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
