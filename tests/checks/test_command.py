"""``agentenv check`` as a user runs it: output, exit codes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from agentenv.checks.rows import ROWS
from cli_watch import descendants, groups, poll, running

TESTS = Path(__file__).resolve().parent.parent

EXAMINED = {
    "type": "object",
    "required": ["config", "steps", "verdict", "environments", "refused"],
    "additionalProperties": False,
    "properties": {
        "config": {"type": "string"},
        "steps": {"type": "integer"},
        "verdict": {"enum": ["ok", "warn", "fail"]},
        "refused": {"type": "array", "items": {"type": "object", "required": ["env_id", "reason"]}},
        "environments": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": [
                    "env_id",
                    "env",
                    "runtime",
                    "seed",
                    "same_as_this",
                    "verdict",
                    "counts",
                    "duration_s",
                    "rows",
                ],
                "properties": {
                    "env_id": {"type": "string"},
                    "env": {"type": "string"},
                    "runtime": {"type": "string"},
                    "seed": {"type": "integer"},
                    "same_as_this": {"type": "array", "items": {"type": "string"}},
                    "verdict": {"enum": ["ok", "warn", "fail"]},
                    "counts": {"type": "object", "required": ["ok", "skip", "warn", "fail"]},
                    "duration_s": {"type": "number"},
                    "rows": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["name", "states", "verdict", "found", "remedy", "evidence"],
                            "properties": {
                                "name": {"enum": list(ROWS)},
                                "states": {"type": "string"},
                                "verdict": {"enum": ["ok", "skip", "warn", "fail"]},
                                "found": {"type": "string", "minLength": 1},
                                "remedy": {"type": "string"},
                                "evidence": {"type": "object"},
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    # Root's sandboxes belong to nobody, who must be able to read the project.
    tmp_path.chmod(0o755)
    return tmp_path


def start(directory: Path, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    code = f"import sys; sys.path.append({str(TESTS)!r}); from agentenv.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "check", *arguments],
        cwd=directory,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(directory: Path, *arguments: str, **environ: str) -> tuple[int, str, str]:
    with start(directory, *arguments, **environ) as process:
        out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def write(directory: Path, *tables: str) -> str:
    path = directory / "test.toml"
    text = "[global]\nseed = 1\n" + "".join(f"\n[[environments]]\n{table}\n" for table in tables)
    path.write_text(text, encoding="utf-8")
    return str(path)


def checked_json(directory: Path, *arguments: str, code: int, **environ: str) -> dict[str, Any]:
    status, out, err = check(directory, *arguments, "--json", **environ)
    assert status == code, err
    found: dict[str, Any] = json.loads(out)
    jsonschema.validate(found, EXAMINED)
    return found


def test_one_in_order_and_one_with_a_fault(directory: Path) -> None:
    config = write(
        directory,
        'id = "good"\nenv = "checks_faulty:Sound"\ncount = 2',
        'id = "bad"\nenv = "checks_faulty:NanReward"',
        'id = "program"\ncommand = ["true"]',
    )
    found = checked_json(directory, config, "--steps", "500", code=1)
    assert found["verdict"] == "fail"
    assert found["refused"][0]["env_id"] == "program"
    good, bad = found["environments"]
    assert (good["env_id"], good["same_as_this"], good["verdict"]) == ("good-0", ["good-1"], "ok")
    assert [row["name"] for row in good["rows"]] == list(ROWS)
    assert {row["name"] for row in bad["rows"] if row["verdict"] == "fail"} == {"reward"}


def test_the_table_has_every_row_and_what_to_do(directory: Path) -> None:
    config = write(directory, 'id = "bad"\nenv = "checks_faulty:Clock"', 'id = "other"\nenv = "CartPole-v1"')
    status, out, err = check(directory, config, "--env", "bad", "--steps", "500")
    assert status == 1, err
    lines = out.splitlines()
    assert lines[0] == "bad: checks_faulty:Clock"
    assert [line.split()[0] for line in lines[2 : 2 + len(ROWS)]] == list(ROWS)
    clock = next(line for line in lines if line.startswith("clock "))
    assert "failed" in clock
    assert "checks_faulty.py:" in clock, "the line that reads the clock is named"
    assert any("count steps instead" in line for line in lines)
    assert "other: " not in out
    assert not list(directory.glob("runs*")), "no run directory"


def test_a_warning_is_no_failure(directory: Path) -> None:
    config = write(directory, 'id = "loud"\nenv = "checks_faulty:LargeReward"')
    assert checked_json(directory, config, "--steps", "500", code=0)["verdict"] == "warn"


@pytest.mark.parametrize("name", ["HashOrder", "Sound"])
def test_it_finds_the_same_whatever_this_interpreter_hashes_with(directory: Path, name: str) -> None:
    config = write(directory, f'id = "one"\nenv = "checks_faulty:{name}"')
    found = checked_json(directory, config, "--steps", "500", code=int(name == "HashOrder"), PYTHONHASHSEED="4242")
    rows = {row["name"]: row["verdict"] for row in found["environments"][0]["rows"]}
    assert [name for name, verdict in rows.items() if verdict == "fail"] == (["hash_seed"] if name != "Sound" else [])


def test_without_isolation_it_finds_the_same(directory: Path) -> None:
    config = write(directory, 'id = "one"\nenv = "checks_faulty:GlobalRandom"')
    found = checked_json(directory, config, "--steps", "500", "--runtime", "process", code=1)
    (one,) = found["environments"]
    assert one["runtime"] == "process"
    assert [row["name"] for row in one["rows"] if row["verdict"] == "fail"] == ["random"]


def test_one_seed_gives_one_result(directory: Path) -> None:
    config = write(directory, 'id = "one"\nenv = "checks_faulty:Sound"')
    results = []
    for _ in range(2):
        (one,) = checked_json(directory, config, "--steps", "500", "--seed", "9", code=0)["environments"]
        reward = next(row for row in one["rows"] if row["name"] == "reward")
        results.append((one["seed"], reward["evidence"]))
    assert results[0] == results[1]


def test_what_cannot_be_examined_is_refused_in_words(directory: Path) -> None:
    config = write(directory, 'id = "program"\ncommand = ["true"]')
    status, out, err = check(directory, config)
    assert (status, out) == (2, "")
    assert "a command is a program of its own" in err
    config = write(directory, 'id = "one"\nenv = "CartPole-v1"')
    status, _out, err = check(directory, config, "--env", "two")
    assert status == 2
    assert "--env: expected one of one, got 'two'" in err
    assert "Traceback" not in err
    assert check(directory, "missing.toml")[0] == 2
    assert check(directory, config, "--steps", "0")[0] == 2


def test_an_environment_that_does_not_exist_fails_its_first_row(directory: Path) -> None:
    config = write(directory, 'id = "one"\nenv = "nowhere:Env"')
    (one,) = checked_json(directory, config, code=1)["environments"]
    assert [row["name"] for row in one["rows"] if row["verdict"] == "fail"] == ["start"]
    assert all(row["verdict"] == "skip" for row in one["rows"][1:])


def test_an_interruption_leaves_nothing(directory: Path) -> None:
    (directory / "slow.py").write_text(
        "import time\nfrom checks_faulty import Sound\n\n\nclass Slow(Sound):\n    def step(self, action):\n"
        "        with open('/proc/self/comm', 'w') as stream:\n            stream.write('in-step')\n"
        "        time.sleep(600)\n"
    )
    config = write(directory, 'id = "slow"\nenv = "slow:Slow"')
    with start(directory, config) as process:
        poll(lambda: any(_name(child) == "in-step" for child in descendants(process.pid)), "its first step", 60)
        below = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        out, _err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert len(below) >= 3
    assert running(below) == []
    assert groups(f"{process.pid}-") == []


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
