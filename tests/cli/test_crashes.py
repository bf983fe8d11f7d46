"""``agentenv crashes`` and what ``agentenv logs`` shows of restarts, on a run's folder with reports in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from agentenv.cli.crashes import crashes
from agentenv.cli.exits import guarded
from agentenv.cli.logs import logs
from agentenv.errors import Cause, CauseKind, Owner
from agentenv.fleet.crashes import CrashReport, finish_crash, write_crash
from agentenv.fleet.output import SandboxOutput
from agentenv.fleet.rundir import RunDir

SEGFAULT = Cause(CauseKind.SIGNAL, Owner.ENVIRONMENT, "killed by SIGSEGV: a crash in native code", signal=11)
LOST = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "the outer sandbox was killed")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path, "test", "id")
    first = CrashReport(
        "agent_1",
        0,
        1000.0,
        SEGFAULT,
        output="last words \x1b[31mred",
        stack='Current thread 0x1 (most recent call first):\n  File "env.py", line 3 in step',
        last_actions=list(range(20)),
        last_rewards=[float(n) for n in range(20)],
        usage={"cpu_s": 2.5, "memory_bytes": 1048576},
    )
    path = write_crash(run.environment("agent_1"), first)
    finish_crash(path, {"how": "replay", "replayed_steps": 1234, "duration_ms": 56.78, "checkpoint": "t=100"})
    write_crash(run.environment("agent_2"), CrashReport("agent_2", 0, 2000.0, LOST))
    run.environment("quiet")
    return run


@pytest.fixture
def call(run: RunDir, capsys: pytest.CaptureFixture[str]):
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(guarded(crashes))
    app.command()(guarded(logs))

    def run_command(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app([*arguments, "--run-dir", str(run.path.parent)], prog_name="agentenv")
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run_command


def test_the_table_tells_cause_owner_and_recovery(call) -> None:
    code, out, _ = call("crashes", "latest")
    assert code == 0
    head, first, second = out.splitlines()
    assert head.split() == ["environment", "#", "when", "owner", "recovered", "by", "replayed", "ms", "cause"]
    for words in ("agent_1", "environment", "replay", "1,234", "56.8", "signal: killed by SIGSEGV"):
        assert words in first
    for words in ("agent_2", "infrastructure", " - ", "sandbox_lost: the outer sandbox"):
        assert words in second


def test_one_environment_and_none(call) -> None:
    assert len(call("crashes", "latest", "agent_2")[1].splitlines()) == 2
    code, out, _ = call("crashes", "latest", "quiet")
    assert (code, out.endswith("of quiet\n"), "no crashes in" in out) == (0, True, True)


def test_one_crash_is_shown_whole(call) -> None:
    code, out, _ = call("crashes", "latest", "agent_1", "1")
    assert code == 0
    assert "how replay, replayed_steps 1234, duration_ms 56.78, checkpoint t=100" in out
    assert "cpu_s 2.5, memory_bytes 1048576" in out
    assert "20 kept" in out
    assert "  19 -> 19.0" in out
    assert "  9 -> 9.0" not in out
    assert 'File "env.py", line 3 in step' in out
    assert "last words red" in out
    assert "\x1b" not in out
    shown = call("crashes", "latest", "agent_2", "1")[1]
    assert "recovery     not finished" in shown
    assert "Python stack: none" in shown


def test_json_beside_the_table(call) -> None:
    code, out, _ = call("crashes", "latest", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(c["env_id"], c["number"], c["cause"]["owner"]) for c in found["crashes"]] == [
        ("agent_1", 1, "environment"),
        ("agent_2", 1, "infrastructure"),
    ]
    assert found["crashes"][0]["recovery"]["replayed_steps"] == 1234
    assert len(found["crashes"][0]["last_actions"]) == 20
    assert len(json.loads(call("crashes", "latest", "agent_1", "1", "--json")[1])["crashes"]) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("latest", "agent_3"), ("ENV", "did you mean 'agent_", "got 'agent_3'")),
        (("latest", "agent_1", "7"), ("NUMBER", "got 7", "there is a report of: 1")),
        (("nothing",), ("nothing",)),
    ],
)
def test_what_is_not_there(call, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    code, out, err = call("crashes", *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    assert "Traceback" not in err


def test_logs_show_restarts_and_where_to_read_on(call, run: RunDir) -> None:
    place = run.environment("agent_1")
    place.stdout.write_bytes(b"first life")
    output = SandboxOutput(lambda _: place.path)
    output.mark("agent_1", f"restarted after: {SEGFAULT.detail}")
    output.close()
    with place.stdout.open("ab") as file:
        file.write(b"second life\n")
    code, out, err = call("logs", "latest", "agent_1")
    assert code == 0
    assert out == (
        "first life\n--- agentenv: restarted after: killed by SIGSEGV: a crash in native code ---\nsecond life\n"
    )
    assert err == f"crashes: agent_1 1; why: agentenv crashes {run.path}\n"
    assert call("logs", "latest", "quiet")[2] == ""
