"""agentenv sandbox, as a user runs it: commands of their own processes, and a sandbox that outlives each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv import Sandbox
from agentenv.fleet.owner import Owner
from cli_watch import poll, running
from machines_ground import need_machines
from sandbox_shell import Shell

pytestmark = pytest.mark.timeout(300)

COMMANDS = ("create", "ls", "exec", "cp", "pause", "resume", "snapshot", "fork", "stop", "rm")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    need_machines()
    shell = Shell(tmp_path_factory.mktemp("ground"))
    shell.ground.chmod(0o700)
    yield shell
    shell("rm", "--all")
    assert sorted(path.name for path in (shell.ground / "agentenv").iterdir()) == ["lock"]


@pytest.fixture(scope="module")
def web(shell: Shell) -> str:
    given = ["--env", "GIVEN=a b", "--env", "TOKEN=only-inside"]
    (shell.ground / "gymnasium").mkdir()  # which is in no image's way
    shell("create", "--name", "web", "--runtime", "qemu", "--image", "gymnasium", "--memory-mb", "256", *given)
    return "web"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example(name: str) -> None:
    argv = [sys.executable, "-m", "agentenv.cli", "sandbox", name, "--help"]
    shown = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    assert f"agentenv sandbox {name}" in shown.partition("Example")[2]


@pytest.mark.parametrize("given", ["1e9", "inf"])
def test_a_time_that_is_none_is_told_before_anything_is_started(given: str) -> None:
    argv = [sys.executable, "-m", "agentenv.cli", "sandbox", "exec", "web", "--timeout", given, "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    told = "command line: --timeout: expected a number of seconds up to 2000000 (leave it out for no limit), got "
    assert f"{told}{float(given)}" in done.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentenv.cli import main; main(['sandbox', 'exec', '--help']); "
        "heavy = {'numpy', 'gymnasium', 'rich', 'agentenv.boxes'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--runtime", "qem"], 2, "--runtime: expected firecracker or qemu, got 'qem' (did you mean \"qemu\"?)"),
        (["--memory-mb", "10"], 2, "--memory-mb: expected an integer >= 16, got 10"),
        (["--memory-mb", "99999999"], 2, "--memory-mb: expected an integer of at most"),
        (["--memory-mb", "16777216"], 2, "MiB of this host, got"),
        (["--vcpu-count", "5000"], 2, "--vcpu-count: expected at most 255"),
        (["--vcpu-count", "-1"], 2, "--vcpu-count: expected a number from 0.01 to 65536, got -1"),
        (["--name", "a.b"], 2, "--name: expected 1 to 48 letters"),
        (["--network-mbps", "20"], 2, "--network-mbps: expected a network to limit"),
        (["--image", "nowhere"], 3, "name of an image as --image, got 'nowhere'"),
        (["--kernel", "nowhere"], 3, "name of a fetched kernel as --kernel, got 'nowhere'"),
    ],
)
def test_what_cannot_be_is_said_of_the_option_before_anything_starts(
    shell: Shell, arguments: list[str], code: int, said: str
) -> None:
    told = shell("create", *arguments, code=code).stderr.decode()
    assert said in told
    assert "keyword argument" not in told
    assert "starting sandbox" not in told


def test_a_place_in_a_sandbox_needs_a_path(shell: Shell) -> None:
    said = "expected a path in the sandbox after the colon, got 'web:' (such as web:/tmp/"
    assert said in shell("cp", ".", "web:", code=2).stderr.decode()


def test_a_sandbox_outlives_the_command_that_made_it(shell: Shell, web: str) -> None:
    keeper = shell.keeper(web)
    assert os.getsid(keeper.pid) == keeper.pid  # no terminal's, and no job of the shell
    assert {os.readlink(f"/proc/{keeper.pid}/fd/{number}") for number in (0, 1)} == {"/dev/null"}
    (listed,) = shell.json("ls")["sandboxes"]
    assert (listed["id"], listed["state"], listed["runtime"], listed["memory_mb"]) == ("web", "running", "qemu", 256)
    table = shell("ls").stdout.decode()
    assert table.splitlines()[0].split() == ["sandbox", "state", "runtime", "image", "MB", "network", "since", "from"]
    assert (shell.ground / "agentenv").stat().st_mode & 0o777 == 0o700


def test_what_variables_hold_is_on_no_command_line(shell: Shell, web: str) -> None:
    assert shell("exec", web, "--", "sh", "-c", "echo $TOKEN").stdout == b"only-inside\n"
    keeper = shell.keeper(web)
    assert keeper.cmdline()[-1] == "web"  # for people
    for one in (keeper, *keeper.children(recursive=True)):
        assert "only-inside" not in " ".join(one.cmdline())


def test_bytes_pass_untouched_and_so_does_the_exit_code(shell: Shell, web: str) -> None:
    data = os.urandom(300_000)
    done = shell("exec", web, "--", "sh", "-c", "cat; echo $GIVEN $MORE >&2; exit 7", stdin=data, code=7)
    assert (done.stdout, done.stderr) == (data, b"a b\n")
    done = shell(
        "exec",
        web,
        "--env",
        "MORE=x=y",
        "--cwd",
        "/usr",
        "--user",
        "nobody",
        "--",
        "sh",
        "-c",
        "echo $MORE; pwd; id -un",
    )
    assert done.stdout == b"x=y\n/usr\nnobody\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--", "sh", "-c", "kill -TERM $$"], 143, b""),
        (["--", "no-such-program"], 127, b"sandbox 'web': program 'no-such-program': No such file"),
        (["--", "/etc/passwd"], 126, b"Permission denied"),
        (["--timeout", "0.5", "--", "sleep", "600"], 124, b""),
        (["--env", "novalue", "--", "true"], 2, b"expected NAME=VALUE"),
        (["--tty", "--", "true"], 2, b"expected standard input to be a terminal"),
    ],
)
def test_exit_codes_of_exec(shell: Shell, web: str, arguments: list[str], code: int, said: bytes) -> None:
    assert said in shell("exec", web, *arguments, code=code).stderr


def test_closed_descriptors_are_nothing_to_read_and_nobody_to_write_to(shell: Shell, web: str) -> None:
    words = shell.argv("exec", web, "--", "sh", "-c", "cat; echo out; echo err >&2; exit 3")
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, env=shell.variables, timeout=100,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 3
        assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"out\n")
        assert done.stderr == (b"" if "2>&-" in closed else b"err\n")


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ('"$@" > /dev/full', b"agentenv: stdout cannot be written: No space left on device\n"),
        ('"$@" 2> /dev/full', b""),
        ('"$@" < /proc/self/mem', b"err\nagentenv: stdin cannot be read: Input/output error\n"),
    ],
)
def test_what_is_lost_on_its_way_is_no_success(shell: Shell, web: str, around: str, said: bytes) -> None:
    words = shell.argv("exec", web, "--", "sh", "-c", "cat; echo out; echo err >&2; exit 0")
    done = subprocess.run(
        ["sh", "-c", around, "sh", *words], capture_output=True, env=shell.variables, timeout=100,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith(said)


def test_a_reader_that_leaves_ends_the_writer(shell: Shell, web: str) -> None:
    with shell.start("exec", web, "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"y\ny\n"
        process.stdout.close()
        assert process.wait(100) in (141, 1)  # by the signal, or by its own handling of the error


@pytest.mark.parametrize(("number", "script", "code"), [
    (signal.SIGINT, "trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done", 9),
    (signal.SIGTERM, "echo ready; exec sleep 600", 143),
])  # fmt: skip
def test_a_signal_goes_to_the_program(shell: Shell, web: str, number: int, script: str, code: int) -> None:
    with shell.start("exec", web, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(100) == code


def test_the_second_ctrl_c_kills(shell: Shell, web: str) -> None:
    script = "trap 'echo got' INT; echo ready; while :; do sleep 0.1; done"
    with shell.start("exec", web, "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"got\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 137


def test_cp_both_ways(shell: Shell, web: str, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/file").write_bytes(b"in")
    shell("cp", str(tmp_path / "tree"), "web:/srv")
    shell("cp", "web:/srv/tree/sub/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == b"in"
    shell("cp", "web:/srv/tree", str(tmp_path / "again"))
    assert (tmp_path / "again/sub/file").read_bytes() == b"in"
    assert b"FileNotFoundError" in shell("cp", "web:/nothing", str(tmp_path), code=1).stderr
    for wrong in (("a", "b"), ("web:/a", "web:/b")):
        assert b"expected NAME:PATH once" in shell("cp", *wrong, code=2).stderr


def test_cp_says_what_it_did(shell: Shell, web: str, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/a").write_bytes(b"12345")
    (tmp_path / "tree/sub/b").write_bytes(b"123")
    (tmp_path / "tree/link").symlink_to("a")
    os.mkfifo(tmp_path / "tree/pipe")
    assert shell.json("cp", str(tmp_path / "tree"), "web:/srv/told") == {"files": 2, "bytes": 8, "left_out": ["pipe"]}
    assert shell.json("cp", "web:/srv/told/a", str(tmp_path / "x")) == {"files": 1, "bytes": 5, "left_out": []}
    shell("exec", web, "--", "sh", "-c", "mkfifo \"/srv/told/$(printf 'p\\033]0;title\\033\\\\\\033[2Jq')\"")
    told = shell.json("cp", "web:/srv/told", str(tmp_path / "back"))
    assert (told["files"], told["bytes"], told["left_out"]) == (2, 8, ["p\x1b]0;title\x1b\\\x1b[2Jq"])
    done = shell("cp", "web:/srv/told", str(tmp_path / "again"))
    assert done.stdout == b""  # for scripts; on a terminal there is a line
    assert b"left out, since no file" in done.stderr
    assert b": pq" in done.stderr
    assert b"\x1b" not in done.stderr


def test_what_the_machine_says_of_a_program_is_clean(shell: Shell, web: str) -> None:
    done = shell("exec", web, "--cwd", "/\x1b]0;title\x07\x1b[2Jnowhere", "--", "true", code=127)
    assert b"\x1b" not in done.stderr
    assert b"nowhere" in done.stderr


def test_pause_and_resume(shell: Shell, web: str) -> None:
    assert shell("pause", web).stdout == b"web: paused\n"
    assert shell.states() == {"web": "paused"}
    said = shell("exec", web, "--", "true", code=3).stderr
    assert said == b"agentenv: sandbox 'web': it is paused\n  remedy: resume it first\n"
    assert shell.json("resume", web)["state"] == "running"
    shell("exec", web, "--", "true")


def test_names_that_are_taken_unknown_or_none(shell: Shell, web: str) -> None:
    assert b"got 'web', which process" in shell("create", "--name", "web", "--runtime", "qemu", code=2).stderr
    assert b'did you mean "web"' in shell("exec", "wbe", "--", "true", code=2).stderr
    assert b"expected 1 to 48 letters" in shell("create", "--name", "a/b", code=2).stderr
    assert b"expected names, or --all" in shell("rm", code=2).stderr
    assert b"has no sandboxes to work in by hand" in shell("create", "--runtime", "bubblewrap", code=3).stderr
    assert b"expected no --memory-mb with --from" in shell("create", "--from", "x", "--memory-mb", "3", code=2).stderr
    assert b"is called 'nosuch'" in shell("create", "--from", "nosuch", code=1).stderr
    assert shell.states() == {"web": "running"}


def test_python_reaches_the_same_sandbox(shell: Shell, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shell.ground))
    with Sandbox.connect("web") as box, box.start(["cat"]) as process:
        assert [one.id for one in Sandbox.running()] == ["web"]
        assert box.exec("cat >&2; exit 3", stdin=b"x" * 500_000).stderr == b"x" * 500_000
        box.write("/root/by-python", b"1")
        assert box.list("/root")[-1].name == "by-python"
        with pytest.raises(FileNotFoundError, match="sandbox 'web'"):
            box.read("/nothing")
        assert box.health()["uptime_s"] > 0
        usage = box.usage()
        assert usage is not None
        assert usage.memory_bytes > 0
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"abc")
        assert process.stdout.read(3) == b"abc"
    assert shell.states() == {"web": "running"}  # the end of the block only let go of it


def test_snapshots_forks_and_their_ends(shell: Shell, web: str) -> None:
    shell("exec", web, "--", "sh", "-c", "echo kept > /root/note")
    assert b"snapshot first: full" in shell("snapshot", web, "first").stdout
    taken = shell("snapshot", web, "first", code=1).stderr
    assert b"give its name to this one with --replace, or" in taken
    assert b"command line: SNAPSHOT: " in shell("snapshot", web, "a/b", code=2).stderr
    made = shell.json("fork", web, "-n", "2", "--name", "kid")["sandboxes"]
    assert [one["id"] for one in made] == ["kid-1", "kid-2"]
    (back,) = shell.json("create", "--from", "first", "--name", "back")["sandboxes"]
    assert back["origin"] == "snapshot first"
    for name in ("kid-1", "back"):
        assert shell("exec", name, "--", "sh", "-c", "hostname; cat /root/note").stdout == f"{name}\nkept\n".encode()

    # The machine of one ends: that is told until it is removed.
    (pid,) = [one["pid"] for one in shell.json("ls")["sandboxes"] if one["id"] == "kid-1"]
    os.kill(pid, signal.SIGKILL)
    poll(lambda: shell.states()["kid-1"] == "died", "its end is seen", 60)
    assert b"monitor was killed" in shell("ls").stdout
    assert b"monitor was killed" in shell("exec", "kid-1", "--", "true", code=1).stderr

    # The keeper of another one is killed: its machine ends by itself, and its name is free.
    keeper = shell.keeper("kid-2")
    below = keeper.children(recursive=True)
    assert len(below) >= 2
    keeper.kill()
    poll(lambda: running([keeper, *below]) == [], "all of it has ended", 60)
    assert "kid-2" not in shell.states()
    assert sorted(path.name for path in (shell.ground / "agentenv").iterdir() if "kid-2" in path.name) == []

    below = [
        one for name in ("kid-1", "back") for one in (shell.keeper(name), *shell.keeper(name).children(recursive=True))
    ]
    assert shell.json("rm", "kid-1", "back") == {"removed": ["kid-1", "back"]}
    assert running(below) == []
    assert shell.states() == {"web": "running"}


def test_a_snapshot_is_in_the_store_of_whoever_asks_for_it(shell: Shell, web: str, tmp_path: Path) -> None:
    variables = {**shell.variables, "AGENTENV_DATA": str(tmp_path / "other")}
    done = subprocess.run(shell.argv("snapshot", web, "here"), env=variables, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    argv = [sys.executable, "-m", "agentenv.cli", "snapshot", "ls"]
    assert b"here" in subprocess.run(argv, env=variables, capture_output=True, timeout=60).stdout
    assert b"here" not in subprocess.run(argv, env=shell.variables, capture_output=True, timeout=60).stdout


def test_sigterm_to_a_keeper_ends_all_of_it(shell: Shell, web: str) -> None:
    shell("fork", web, "--name", "ended")
    keeper = shell.keeper("ended-1")
    below = keeper.children(recursive=True)
    keeper.terminate()
    poll(lambda: running([keeper, *below]) == [], "all of it has ended", 60)
    assert not (shell.ground / "agentenv/ended-1.json").exists()
    assert not (shell.ground / "agentenv/ended-1.sock").exists()


def test_who_waits_for_a_machine_that_is_deaf_gets_away(shell: Shell, web: str) -> None:
    command = shell.start("exec", web, "--", "sh", "-c", "echo on; exec sleep 1000")
    assert command.stdout is not None
    assert command.stdout.read(3) == b"on\n"
    (pid,) = [one["pid"] for one in shell.json("ls")["sandboxes"] if one["id"] == web]
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            command.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                command.wait(0.5)
        command.send_signal(signal.SIGINT)
        assert command.wait(20) == 128 + signal.SIGINT
    finally:
        os.kill(pid, signal.SIGCONT)
        command.kill()
        command.communicate()


@pytest.mark.timeout(300)
def test_a_fork_that_is_ended_leaves_none_of_its_copies(shell: Shell, web: str) -> None:
    command = shell.start("fork", web, "-n", "9", "--name", "kid")
    poll(lambda: "running" in [state for name, state in shell.states().items() if name != web], "one is there", 120)
    command.terminate()
    command.communicate(timeout=120)
    assert command.returncode == 128 + signal.SIGTERM
    poll(lambda: shell.states() == {web: "running"}, "none of them is left", 60)


def test_more_copies_than_there_is_memory_for_are_refused_at_once(shell: Shell, web: str) -> None:
    said = shell("fork", web, "-n", "1000000", code=3).stderr
    assert b"expected memory for 1,000,000 sandboxes" in said
    assert b"ask for" in said
    assert shell.states() == {web: "running"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_create_leaves_nothing(shell: Shell, web: str, number: int) -> None:
    record = shell.ground / "agentenv/never.json"
    with shell.start("create", "--name", "never", "--runtime", "qemu", "--memory-mb", "256") as process:
        poll(record.exists, "its name is claimed", 60)
        owner = Owner.from_record(json.loads(record.read_text())["owner"])
        assert owner is not None
        process.send_signal(number)
        assert process.wait(100) == (130 if number == signal.SIGINT else -number)
    poll(lambda: not owner.alive(), "its keeper has ended", 60)
    assert not record.exists()
    assert shell.states() == {"web": "running"}
