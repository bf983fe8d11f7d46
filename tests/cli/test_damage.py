"""Every file of a run damaged in every way: each command that reads it says so by name, and claims nothing it lost."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.cli.app import run_app
from agentenv.config import load_config
from agentenv.errors import Cause, CauseKind, Owner, RunDamaged
from agentenv.fleet.crashes import CrashReport, write_crash
from agentenv.fleet.play import Play
from agentenv.fleet.resuming import read_resumption
from agentenv.fleet.rundir import RunDir
from agentenv.fleet.tracefile import read_trace

GARBAGE = b'{"run_id": [3], "process": 7, "seeds": "x", "versions": 5, "started_unix": 1e300, "environments": {"a": 1}}'


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"in the way")


def become_nonsense(path: Path) -> None:
    path.write_bytes(GARBAGE)


FILES = [
    "config.toml", "manifest.json", "summary.json", "events.jsonl", "resume.0", "resume.1",
    "environments/a/episodes.jsonl", "environments/a/trace.bin", "environments/a/stdout.log",
    "environments/a/stderr.log", "environments/a/crashes/1/report.json", "environments/a/crashes/1/output.txt",
]  # fmt: skip
FOLDERS = ["environments", "environments/a", "environments/a/crashes", "environments/a/crashes/1"]
CASES = [(n, how) for n in FILES for how in (delete, empty, cut, flip, become_a_folder, become_a_pipe, become_nonsense)]
CASES += [(name, how) for name in FOLDERS for how in (delete, become_a_file)]


def ways(*names: str, but: tuple[Callable[[Path], None], ...] = ()) -> set[tuple[str, str]]:
    return {(name, how.__name__) for name, how in CASES if name in names and how not in but}


# Where nobody can tell: a number may be any other number, a text any other text, and an output may be empty.
TEXTS = (empty, cut, flip, become_nonsense, delete)
REPORT = "environments/a/crashes/1/report.json"
NAMED = {
    "diff": ways("environments/a/episodes.jsonl", "environments/a/trace.bin", "environments", "environments/a"),
    "replay": ways("environments/a/trace.bin", "environments", "environments/a"),
    "logs": ways("environments/a/stdout.log", but=TEXTS) | ways("environments", "environments/a"),
    "crashes": ways(REPORT, but=(flip,))
    | ways("environments", "environments/a")
    | ways("environments/a/crashes", "environments/a/crashes/1", but=(delete,)),
    "runs": ways("manifest.json", but=(flip, become_nonsense))
    | ways("summary.json", but=(delete, flip, become_nonsense))
    | ways("environments", but=(delete,)),
}
FAILS = ("diff", "logs", "crashes")
WRITTEN = {*FILES[:4], *FILES[6:8], *FOLDERS[:2]}
"""What a run that is gone on with writes to."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, made once."""
    root = tmp_path_factory.mktemp("recorded")
    environment = {"id": "a", "env": "wayward:Seeded", "episodes": 3}
    settings = {"seed": 3, "run_dir": str(root), "runtime": "process"}
    run = RunDir.open(Play(load_config({"global": settings, "environments": [environment]})).run().run_dir)
    cause = Cause(CauseKind.SIGNAL, Owner.ENVIRONMENT, "killed by SIGSEGV", signal=11)
    write_crash(run.environment("a"), CrashReport("a", 0, 1000.0, cause, output="last words"))
    for log in (run.environment("a").stdout, run.environment("a").stderr):
        log.write_text("said something\n" * 5)
    manifest = json.loads(run.manifest.read_bytes())
    manifest["process"]["start_ticks"] += 1  # as if the process that made it were gone
    run.manifest.write_text(json.dumps(manifest, indent=2))
    return run.path


@pytest.fixture
def run(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be damaged; the whole one lies beside it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded, tmp_path / "whole")
    return shutil.copytree(recorded, tmp_path / "runs" / recorded.name)


@pytest.fixture(autouse=True)
def logging_kept() -> Iterator[None]:
    """Commands say where log lines go; that is theirs alone."""
    logger = logging.getLogger("agentenv")
    kept = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = kept[0], kept[1], kept[2]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = run_app([*arguments])
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert code in (0, 1, 2, 3), said
        for word in ("Traceback", "fault of agentenv", "Errno", "DirectoryError"):
            assert word not in said, f"{arguments}: {said}"
        return code, captured.out, captured.err

    return run_command


@pytest.mark.parametrize(("name", "how"), CASES, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_every_command_says_what_is_damaged(run: Path, call, name: str, how: Callable[[Path], None]) -> None:
    how(run / name)
    # An episode that was never played: everything is read, and nothing is executed.
    commands = {
        "runs": ["runs"],
        "logs": ["logs", str(run)],
        "crashes": ["crashes", str(run)],
        "diff": ["diff", "../" + run.parts[-3] + "/whole", "latest"],
        "replay": ["replay", "latest", "--episode", "7"],
        "resume": ["run", "--resume", "latest"],
    }
    for command, arguments in commands.items():
        code, out, err = call(*arguments)
        if (name, how.__name__) in NAMED.get(command, ()):
            assert Path(name).name in out + err, f"{command}: {out}{err}"
            assert code == 1 or command not in FAILS, f"{command}: {out}{err}"
            assert "the same: " not in out.removeprefix("not known to be the same: ")
        if command == "diff":
            assert "made otherwise" not in out
            assert (code, "the same: 3 episodes of 1 environment\n" in out) in ((0, True), (1, False), (2, False))
    if name == "summary.json":
        return  # it was gone on with
    (run / "summary.json").unlink()
    if how in (become_a_folder, become_a_file, become_a_pipe) and name in WRITTEN:
        with pytest.raises(RunDamaged, match=f"{name}: expected "):
            read_resumption(RunDir.open(run))
        return
    found = read_resumption(RunDir.open(run))
    lost = name in ("environments", "environments/a")
    assert [record["episode"] for record in found.standings["a"].records] == ([] if lost else [0, 1, 2])


@pytest.mark.parametrize("how", [delete, empty, cut, flip, become_a_folder, become_a_pipe, become_nonsense])
def test_replaying_a_damaged_trace_blames_the_trace(run: Path, call, how: Callable[[Path], None]) -> None:
    trace = run / "environments/a/trace.bin"
    how(trace)
    code, out, err = call("replay", "latest", "--verify")
    assert code == 1
    assert str(trace) in out + err
    assert "--episode" not in out + err
    assert "all the same" not in out


def test_a_trace_cut_between_its_parts_is_noticed(run: Path, call) -> None:
    """No checksum tells: what is left is whole."""
    trace = run / "environments/a/trace.bin"
    held = read_trace(trace).episodes
    first = held[0].end
    assert first is not None
    trace.write_bytes(trace.read_bytes()[: first.offset + first.length])
    code, out, _ = call("diff", "whole/", "latest")
    assert code == 1
    assert f"{trace}: expected the steps of every finished episode; not whole: episodes 1, 2" in out


def test_a_record_that_is_lost_is_taken_from_the_trace_and_no_difference(run: Path, call) -> None:
    (run / "environments/a/episodes.jsonl").unlink()
    code, out, _ = call("diff", "whole/", "latest", "--json")
    found = json.loads(out)
    assert (code, found["same"], found["differences"], found["episodes"]) == (1, False, [], 3)
    assert "episodes.jsonl: expected the records of 3 episodes, it is missing" in found["faults"][0]


def test_with_record_and_trace_lost_the_other_is_not_said_to_have_finished_more(run: Path, call) -> None:
    for name in ("episodes.jsonl", "trace.bin"):
        cut(run / "environments/a" / name)
    code, out, _ = call("diff", "whole/", "latest", "--json")
    found = json.loads(out)
    assert (code, found["same"], found["differences"], found["episodes"]) == (1, False, [], 1)


def test_two_runs_of_which_nothing_is_left_are_not_the_same(run: Path, call) -> None:
    for path in (run, Path("whole")):
        for name in ("environments", "summary.json", "events.jsonl"):
            delete(path / name)
    code, out, _ = call("diff", "whole/", "latest")
    assert code == 1
    assert "nothing was compared" in out


@pytest.mark.parametrize("lost", ["manifest.json", "everything that was kept of it"])
def test_a_lost_manifest_misleads_nobody(run: Path, call, lost: str) -> None:
    run_id = json.loads((run / "manifest.json").read_bytes())["run_id"]
    (run / "manifest.json").write_bytes(b"{")
    if lost != "manifest.json":
        for copy in ("resume.0", "resume.1"):
            (run / copy).unlink()
        code, _, err = call("logs", run_id)
        assert (code, f"of {run.name} only the folder's name is known: manifest.json is lost" in err) == (2, True)
    else:
        assert call("logs", run_id)[0] == 0, "the checked copy has the id"
    code, out, _ = call("diff", "whole/", "latest")
    assert (code, "made otherwise" in out) == (0, False)
    assert (f"{run / 'manifest.json'}: damaged, and so are its checked copies" in out) == (lost != "manifest.json")
    moved = run.rename("moved")
    (moved / "manifest.json").unlink()
    assert call("logs", "./moved")[0] == (2 if lost != "manifest.json" else 0)


@pytest.mark.parametrize("ref", [".", "./", "../{name}", "{path}", "{path}/", "environments/.."])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_run_is_found_by_where_it_lies(
    run: Path, call, monkeypatch: pytest.MonkeyPatch, ref: str, has_manifest: bool
) -> None:
    if not has_manifest:
        (run / "manifest.json").unlink()
    monkeypatch.chdir(run)
    given = ref.format(name=run.name, path=run)
    for command in (["logs", given], ["crashes", given], ["run", "--resume", given]):
        code, out, err = call(*command)
        assert code == 0, out + err
    assert call("diff", given, str(run))[0] == 0
    assert json.loads(call("crashes", given, "--json")[1])["run"] == str(run)


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 1)])
def test_a_run_that_is_over_exits_as_it_ended(run: Path, call, state: str, code: int) -> None:
    summary = json.loads((run / "summary.json").read_bytes())
    (run / "summary.json").write_text(json.dumps(summary | {"state": state, "exit_code": code}))
    found = call("run", "--resume", "latest")
    assert (found[0], f"is over ({state}): nothing to resume" in found[1]) == (code, True)
    found = call("run", "--resume", "latest", "--json")
    assert (found[0], json.loads(found[1])["state"]) == (code, state)
    assert call("run", "--resume", "latest", "-q")[:2] == (code, "")


def test_following_a_log_that_is_a_folder_says_so(run: Path, call) -> None:
    become_a_folder(run / "environments/a/stdout.log")
    code, _, err = call("logs", "latest", "-f")
    assert code == 1
    assert f"{run}/environments/a/stdout.log: expected the log of what it printed, found a folder" in err


def test_a_missing_folder_is_not_an_unknown_environment(run: Path, call) -> None:
    delete(run / "environments/a")
    for command in (["logs", "latest", "a"], ["crashes", "latest", "a"], ["replay", "latest", "--env", "a"]):
        code, _, err = call(*command)
        assert (code, "/environments/a: expected the folder of an environment with 3 finished episodes" in err) == (
            1, True,
        )  # fmt: skip
    code, out, _ = call("diff", "whole/", "latest", "--env", "a")
    assert (code, "it is missing" in out) == (1, True)
