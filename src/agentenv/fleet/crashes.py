"""What is left of an environment that died: one folder a crash, for whoever asks why.

    runs/20260314-101530-gridworld/environments/agent_1/crashes/3/
      report.json   cause and owner, last actions and rewards, usage, how it was recovered
      output.txt    the last lines it printed, control characters and escape sequences taken out
      stack.txt     the Python stacks of its threads, where there are any

A folder appears as a whole, by one rename. Writing never disturbs a recovery: what the disk refuses is logged and lost.
An environment that dies for ever leaves a bounded number of them: the first, which tell how it began, and the latest.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.damage import misplaced
from agentenv.fleet.rundir import EnvDir, RunDir, read_object
from agentenv.telemetry.records import to_json
from agentenv.telemetry.regular import open_regular
from agentenv.telemetry.text import printable

logger = logging.getLogger("agentenv.fleet")

How = Literal["snapshot", "state", "replay", "truncated", "quarantined", "raised"]
"""How a recovery ended: from a forked snapshot, from a saved state, by replaying actions, by cutting the episode short,
not at all because the budget was used up, or with the error raised to the caller."""

KEPT_FIRST, KEPT_LATEST = 10, 90
LAST_STEPS = 100
"""Actions and rewards kept in a report."""

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_TEXT_BYTES = 64 << 10
_ACTION_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class CrashReport:
    """One death of one environment.

    Attributes:
        env_id: Whose.
        number: Counts its crashes in this run, from 1; 0 has ``write_crash`` find the next.
        time_unix: When it was noticed, seconds since the epoch.
        cause: Why, and who has to act.
        output: Its last lines. Hostile text; stored fit for a terminal.
        stack: Python stacks; "" where none could be had.
        last_actions, last_rewards: Of the last steps, oldest first, at most 100 each.
        usage: What it used shortly before, as plain data; None where it was not measured.
        recovery: ``how`` (see ``How``), ``replayed_steps``, ``duration_ms``, and what else is known; None until it
            is over.
    """

    env_id: str
    number: int
    time_unix: float
    cause: Cause
    output: str = ""
    stack: str = ""
    last_actions: Sequence[Any] = ()
    last_rewards: Sequence[Any] = ()
    usage: Mapping[str, Any] | None = None
    recovery: Mapping[str, Any] | None = field(default=None)

    def to_json(self) -> dict[str, Any]:
        """As one JSON object; actions that are large are told by their size only."""
        return {
            "env_id": self.env_id,
            "number": self.number,
            "time_unix": self.time_unix,
            "cause": asdict(self.cause),
            "output": self.output,
            "stack": self.stack,
            "last_actions": [_bounded(action) for action in list(self.last_actions)[-LAST_STEPS:]],
            "last_rewards": list(self.last_rewards)[-LAST_STEPS:],
            "usage": None if self.usage is None else dict(self.usage),
            "recovery": None if self.recovery is None else dict(self.recovery),
        }


def write_crash(env_dir: EnvDir, report: CrashReport) -> Path:
    """Write a report as ``crashes/<number>``; never raises for a reason of the disk.

    Args:
        env_dir: The environment's folder.
        report: What to write; a number that is taken, or 0, becomes the next free one.

    Returns:
        The folder, for ``finish_crash``; where it could not be written, where it would have been.
    """
    root = env_dir.path / "crashes"
    try:
        root.mkdir(exist_ok=True)
        numbers = _numbers(root)
        number = report.number if 0 < report.number not in numbers else max(numbers, default=0) + 1
        path = root / str(number)
        _place(root, path, report, number)
        _thin([*numbers, number], root)
    except (OSError, ValueError) as error:
        logger.warning("%s: the report of a crash cannot be written: %s", report.env_id, error)
        return root / str(report.number)
    return path


def finish_crash(path: Path, recovery: Mapping[str, Any]) -> None:
    """Add to a report how the environment was recovered; never raises for a reason of the disk.

    Args:
        path: From ``write_crash``.
        recovery: ``how``, ``replayed_steps``, ``duration_ms``, and what else is known, such as ``checkpoint``.

    Raises:
        ValueError: ``how`` is not one of ``How``.
    """
    if recovery.get("how") not in get_args(How):
        raise ValueError(f"how: expected one of {', '.join(get_args(How))}, got {recovery.get('how')!r}")
    file = path / "report.json"
    record = read_object(file)
    if record is None:
        return  # it could not be written, which was said
    try:
        _replace(file, to_json({**record, "recovery": dict(recovery)}, indent=2) + b"\n")
    except (OSError, ValueError) as error:
        logger.warning("%s: how a crash was recovered cannot be written: %s", path, error)


def find_crashes(places: Sequence[EnvDir]) -> tuple[list[CrashReport], list[str]]:
    """All reports of some environments that can be read, in the order of time; and a sentence on each that cannot.

    Those of one environment are in the order of their numbers, also where the clock was set back between them.
    """
    found: list[tuple[float, CrashReport]] = []
    faults: list[str] = []
    for env_dir in places:
        root = env_dir.path / "crashes"
        if wrong := misplaced(root, "the folder of the reports of its crashes", folder=True):
            faults.append(wrong)
        latest = 0.0
        for number in _numbers(root):
            path = root / str(number)
            report = _read(env_dir.env_id, path, number)
            if report is None:
                faults.append(f"{path / 'report.json'}: the report of this crash is damaged or missing; left out")
            else:
                latest = max(latest, report.time_unix)
                found.append((latest, report))
    found.sort(key=lambda one: (one[0], one[1].env_id, one[1].number))
    return [report for _, report in found], faults


def read_crashes(run: RunDir) -> list[CrashReport]:
    """All reports of a run that can be read, in the order of time; damaged ones are left out and logged.

    Raises:
        RunDamaged: The folder of its environments cannot be read.
    """
    found, faults = find_crashes(run.environments())
    for fault in faults:
        logger.warning("%s", fault)
    return found


def count_crashes(env_dir: EnvDir) -> int:
    """How many times an environment crashed, also where the reports of some were dropped."""
    return max(_numbers(env_dir.path / "crashes"), default=0)


def _place(root: Path, path: Path, report: CrashReport, number: int) -> None:
    """Write everything aside, then give it its name."""
    aside = Path(tempfile.mkdtemp(dir=root, prefix=".new-"))
    try:
        record = report.to_json() | {"number": number}
        for name in ("output", "stack"):
            text = printable(record.pop(name)).encode()[-_TEXT_BYTES:]
            if text:
                (aside / f"{name}.txt").write_bytes(text)
        (aside / "report.json").write_bytes(to_json(record, indent=2) + b"\n")
        aside.chmod(0o755)
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _replace(file: Path, data: bytes) -> None:
    aside = file.with_name(".report.new")
    try:
        aside.write_bytes(data)
        os.replace(aside, file)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _thin(numbers: list[int], root: Path) -> None:
    numbers.sort()
    for number in numbers[KEPT_FIRST : max(KEPT_FIRST, len(numbers) - KEPT_LATEST)]:
        shutil.rmtree(root / str(number), ignore_errors=True)


def _numbers(root: Path) -> list[int]:
    try:
        names = os.listdir(root)
    except OSError:
        return []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def _read(env_id: str, path: Path, number: int) -> CrashReport | None:
    record = read_object(path / "report.json")
    if record is None:
        return None
    try:
        cause, usage, recovery = record["cause"], record.get("usage"), record.get("recovery")
        if not all(value is None or isinstance(value, dict) for value in (usage, recovery)):
            return None
        return CrashReport(
            env_id=env_id,
            number=number,
            time_unix=float(record["time_unix"]),
            cause=Cause(
                CauseKind(cause["kind"]),
                Owner(cause["owner"]),
                str(cause["detail"]),
                exit_code=cause.get("exit_code"),
                signal=cause.get("signal"),
                oom_kills=int(cause.get("oom_kills", 0)),
            ),
            output=_text(path / "output.txt"),
            stack=_text(path / "stack.txt"),
            last_actions=list(record["last_actions"]),
            last_rewards=list(record["last_rewards"]),
            usage=usage,
            recovery=recovery,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_TEXT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""  # there was none
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _bounded(action: Any) -> Any:
    try:
        size = len(to_json(action))
    except ValueError as error:  # it contains itself, or nests too deeply
        return {"omitted": str(error)}
    return action if size <= _ACTION_BYTES else {"omitted_bytes": size}
