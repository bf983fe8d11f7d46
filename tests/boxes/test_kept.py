"""Names of sandboxes that outlive their command: whose they are, and what killed keepers leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.boxes import kept
from agentenv.errors import ConfigError, RuntimeUnavailable
from agentenv.fleet.owner import Owner


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Longer than an address of a socket may be.
    deep = tmp_path / ("d" * 120)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    return deep / "agentenv"


@pytest.fixture
def keeper(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the name "other", and ends when its input does."""
    code = (
        "import sys; from agentenv.boxes import kept; kept.claim('other'); print('there', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        yield process
        process.kill()


def test_a_name_is_found_until_it_is_given_up(place: Path) -> None:
    kept.claim("web")
    assert [one.name for one in kept.find_all()] == ["web"]
    assert kept.find("web").owner == Owner.current()
    kept.give_up("web", Owner.current())
    kept.give_up("web", Owner.current())
    assert kept.find_all() == []
    assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_socket_answers_whatever_the_length_of_its_path(place: Path) -> None:
    assert len(str(place)) > 108
    kept.claim("web")
    with kept.listen("web") as listener, kept.dial("web") as caller, listener.accept()[0] as connection:
        caller.sendall(b"x")
        assert connection.recv(1) == b"x"
    with pytest.raises(ConnectionRefusedError):
        kept.dial("web")
    with pytest.raises(FileNotFoundError):
        kept.dial("nobody")
    kept.give_up("web", Owner.current())


def test_a_name_that_is_taken_stays_taken(keeper: subprocess.Popen[str]) -> None:
    with pytest.raises(ConfigError, match=f"got 'other', which process {keeper.pid} keeps"):
        kept.claim("other")
    kept.give_up("other", Owner.current())  # it is not ours
    assert [one.name for one in kept.find_all()] == ["other"]


@pytest.mark.parametrize("how", ["ls", "create", "sweep"])
def test_what_a_killed_keeper_left_is_removed(keeper: subprocess.Popen[str], place: Path, how: str) -> None:
    (place / "other.sock").touch()
    keeper.kill()
    keeper.wait()
    if how == "create":
        kept.claim("other")
        assert kept.find("other").owner == Owner.current()
        assert not (place / "other.sock").exists()
        kept.give_up("other", Owner.current())
    elif how == "ls":
        assert kept.find_all() == []
    else:
        assert kept.sweep() == ("other",)
        assert kept.sweep() == ()
    assert [path.name for path in place.iterdir()] == ["lock"]


def test_a_process_of_the_same_number_is_not_taken_for_the_keeper(place: Path) -> None:
    kept.place()
    record = Owner.current().as_record()
    record["start_ticks"] = int(record["start_ticks"]) - 1
    (place / "old.json").write_text(json.dumps({"name": "old", "owner": record}))
    assert kept.find_all() == []
    assert not (place / "old.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"owner": 3}', '{"owner": {"pid": "1"}}'])
def test_records_that_are_none_are_removed(place: Path, text: str) -> None:
    kept.place()
    (place / "bad.json").write_text(text)
    assert kept.find_all() == []
    assert not (place / "bad.json").exists()


def test_what_are_no_records_at_all_is_in_nobodys_way(place: Path) -> None:
    kept.place()
    os.mkfifo(place / "pipe.json")
    (place / "link.json").symlink_to("/etc/passwd")
    (place / "deep.json").write_text("[" * 50_000)
    for name in ("directory.json", "directory.log", "own.log", "own.sock"):
        (place / name).mkdir()
    os.mkfifo(place / "words.log")
    (place / "gone.log").symlink_to("nowhere")
    assert kept.find_all() == []
    assert kept.last_words() == {}
    kept.claim("own")
    assert [one.name for one in kept.find_all()] == ["own"]
    kept.give_up("own", Owner.current())
    kept.sweep()
    assert sorted(path.name for path in place.iterdir() if not path.is_dir()) == ["lock"]
    assert Path("/etc/passwd").exists()


def test_unknown_names_come_with_the_nearest(keeper: subprocess.Popen[str]) -> None:
    with pytest.raises(ConfigError, match='did you mean "other"'):
        kept.find("othre")
    with pytest.raises(ConfigError, match="the sandboxes here are other"):
        kept.find("zzz")


def test_without_any_the_command_is_named() -> None:
    with pytest.raises(ConfigError, match="there are none: agentenv sandbox create"):
        kept.find("web")


def test_a_directory_that_others_may_enter_is_refused(place: Path) -> None:
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    with pytest.raises(RuntimeUnavailable, match="with mode 755") as caught:
        kept.place()
    assert f"chmod 700 {place}" in caught.value.remedy


def test_something_else_in_its_place_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RuntimeUnavailable, match="got something else"):
        kept.place()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    with pytest.raises(RuntimeUnavailable, match="a directory of user 65534"):
        kept.place()


def test_without_a_runtime_directory_there_is_one_in_tmp_whatever_tmpdir_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    expected = Path(f"/tmp/agentenv-{os.geteuid()}")
    before = expected.exists()
    try:
        assert kept.place() == expected
        assert kept.place().stat().st_mode & 0o777 == 0o700
    finally:
        if not before:
            expected.rmdir()
    assert list(tmp_path.glob("agentenv-*")) == []


def test_a_name_that_is_renewed_is_as_young_as_new(place: Path) -> None:
    path = kept.claim("web")
    with kept.listen("web"):
        (place / "web.log").touch()
        for one in place.iterdir():
            os.utime(one, (1e9, 1e9))
        assert kept.renew("web", path) == (path, True)
        assert {one.name for one in place.iterdir() if one.stat().st_mtime > 1.1e9} == {
            "web.json", "web.sock", "web.log", "lock",
        }  # fmt: skip
    kept.give_up("web", Owner.current())


@pytest.mark.parametrize("gone", ["web.json", "web.sock", "."])
def test_a_name_whose_files_are_gone_is_had_again(place: Path, gone: str) -> None:
    path = kept.claim("web")
    listener = kept.listen("web")
    shutil.rmtree(place) if gone == "." else (place / gone).unlink()
    assert kept.renew("web", path) == (path, False)
    listener.close()
    with kept.listen("web"), kept.dial("web"):
        assert kept.find("web").owner == Owner.current()
        assert kept.renew("web", path) == (path, True)
    kept.give_up("web", Owner.current())


def test_a_name_follows_the_runtime_directory(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes with its user's last session, and comes with the next one."""
    before = kept.claim("web")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    now, there = kept.renew("web", before)
    assert (now, there) == (other / "agentenv", False)
    assert kept.find("web").owner == Owner.current()
    assert [one.name for one in before.iterdir()] == ["lock"]
    kept.give_up("web", Owner.current())


def test_a_name_that_another_process_has_by_now_is_lost(keeper: subprocess.Popen[str], place: Path) -> None:
    with pytest.raises(ConfigError, match=f"got 'other', which process {keeper.pid} keeps"):
        kept.renew("other", place)
    assert kept.find("other").owner.pid == keeper.pid


def test_last_words_stay_until_they_are_not_wanted(keeper: subprocess.Popen[str], place: Path) -> None:
    log = place / "other.log"
    log.write_text("what went wrong\n")
    assert kept.last_words() == {}  # it lives
    keeper.kill()
    keeper.wait()
    assert kept.find_all() == []
    assert kept.last_words() == {"other": log}
    with pytest.raises(ConfigError, match=f"it ended on a fault, which {log} tells; agentenv sandbox rm other"):
        kept.find("other")
    kept.forget("other")
    assert kept.last_words() == {}
    for remove in (lambda: kept.claim("other"), kept.sweep):
        log.write_text("what went wrong\n")
        remove()
        assert not log.exists()
        kept.give_up("other", Owner.current())


def test_words_are_for_those_that_ended_on_a_fault(place: Path) -> None:
    for words, left in ((True, False), (False, True)):
        kept.claim("web")
        (place / "web.log").write_text("what went wrong\n")
        kept.give_up("web", Owner.current(), words=words)
        assert (place / "web.log").exists() is left


LEAVING = """
import sys
from agentenv.boxes import kept
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.sandbox.runtimes._vm.homes import make_homes
kept.claim("other")
print(make_homes(new_run_id()), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("see", [kept.find_all, lambda: kept.claim("other")])
def test_whoever_sees_that_a_keeper_is_gone_removes_its_machines_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, see: Callable[[], object]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with subprocess.Popen(
        [sys.executable, "-c", LEAVING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        home = Path(process.stdout.readline().strip())
        assert home.parent == tmp_path
        kept.find_all()
        assert home.is_dir(), "while the keeper lives"
        process.kill()
    see()
    assert not home.exists()


_FULL = """
mount -t tmpfs -o size=64k,mode=700 tmpfs "$XDG_RUNTIME_DIR" && mkdir -m 700 "$XDG_RUNTIME_DIR/agentenv" &&
: > "$XDG_RUNTIME_DIR/agentenv/lock"; cat /dev/zero > "$XDG_RUNTIME_DIR/rest" 2>/dev/null; exec "$0" -c "$1"
"""
_CLAIM = """
from agentenv.boxes import kept
from agentenv.errors import ResourceLimit
try:
    kept.claim("web")
except ResourceLimit as error:
    print(error)
"""


def test_a_full_directory_is_named_with_what_helps(tmp_path: Path) -> None:
    space = ["unshare", "--user", "--map-root-user", "--mount"]
    variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [*space, "sh", "-c", _FULL, sys.executable, _CLAIM], env=variables, capture_output=True, text=True, check=False
    )
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("needs user namespaces in which a file system can be mounted")
    assert done.stderr == ""
    assert f"no room on the disk for what tells where sandboxes are, in {tmp_path}/agentenv" in done.stdout
    assert "XDG_RUNTIME_DIR=DIR" in done.stdout
