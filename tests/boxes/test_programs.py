"""Programs in a sandbox: one machine for all of them."""

from __future__ import annotations

import errno
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import pytest

from agentenv import Sandbox
from agentenv.errors import ConfigError, ProgramFailed
from agentenv.testing.leftovers import becomes_true

pytestmark = pytest.mark.timeout(300)


def test_a_program_runs_and_its_end_and_output_come_back(box: Sandbox) -> None:
    done = box.exec(["python3", "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"])
    assert (done.exit_code, done.signal, done.stdout, done.stderr) == (3, None, b"1\n", b"2\n")
    assert (done.timed_out, done.truncated, done.text) == (False, False, "1\n")
    assert done.duration_s > 0
    with pytest.raises(ProgramFailed, match="exit status 3") as caught:
        done.check()
    assert caught.value.exit_code == 3
    assert box.exec("exit 0", check=True).exit_code == 0
    with pytest.raises(ProgramFailed, match="exit status 1"):
        box.exec("exit 1", check=True)


def test_a_text_is_for_the_shell_and_a_list_is_not(box: Sandbox) -> None:
    assert box.exec("echo $((1 + 2)) | tr 3 x").text == "x\n"
    assert box.exec(["echo", "$((1 + 2))", "a b"]).text == "$((1 + 2)) a b\n"


def test_a_signal_is_told_as_one(box: Sandbox) -> None:
    done = box.exec("kill -TERM $$")
    assert (done.exit_code, done.signal, done.shell_code) == (None, signal.SIGTERM, 143)


def test_input_is_given_and_without_any_it_is_at_its_end(box: Sandbox) -> None:
    assert box.exec(["cat"]).stdout == b""
    assert box.exec(["cat"], stdin="a text\n").stdout == b"a text\n"
    data = os.urandom(700_000)
    assert box.exec(["cat"], stdin=data, timeout_s=100).stdout == data


def test_variables_directory_and_user(box: Sandbox) -> None:
    done = box.exec("echo $FROM_CREATE $MINE; pwd; id -un", env={"MINE": "a b"}, cwd="/usr", user="nobody")
    assert done.text == "1 a b\n/usr\nnobody\n"
    assert box.exec("id -u; id -g", user="1234:5").text == "1234\n5\n"
    assert box.exec("id -u; pwd", user=1234, cwd=PurePosixPath("/usr")).text == "1234\n/usr\n"
    assert box.exec("hostname").text == "shared\n"


@pytest.mark.parametrize(
    ("command", "keywords", "kind"),
    [
        (["no-such-program"], {}, FileNotFoundError),
        (["/etc/passwd"], {}, PermissionError),
        (["true"], {"cwd": "/no/such"}, FileNotFoundError),
        (["true"], {"cwd": "/etc/passwd"}, NotADirectoryError),
        (["true"], {"cwd": "/root", "user": "nobody"}, PermissionError),
    ],
)
def test_what_cannot_be_started_is_the_right_builtin(
    box: Sandbox, command: list[str], keywords: dict[str, str], kind: type[OSError]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match="sandbox 'shared'"):
        box.exec(command, **keywords)  # type: ignore[arg-type]  # texts, by name
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unknown_user_is_named(box: Sandbox) -> None:
    with pytest.raises(OSError, match="no user 'nosuch'") as caught:
        box.exec("true", user="nosuch")
    assert caught.value.errno == errno.EINVAL


def test_at_the_end_of_its_time_all_it_has_started_is_killed(box: Sandbox) -> None:
    done = box.exec("setsid sleep 4711 & sleep 4711", timeout_s=1.0)
    assert (done.timed_out, done.signal) == (True, signal.SIGKILL)
    assert box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[1]'").text == "0\n"


def test_output_beyond_what_was_asked_for_is_cut_and_said_to_be(box: Sandbox) -> None:
    done = box.exec("head -c 400000 /dev/zero | tr '\\0' x; echo end >&2", max_output_mb=0.25)
    assert (len(done.stdout), done.truncated, done.stderr) == (1 << 18, True, b"end\n")


def test_what_it_leaves_running_does_not_hold_up_its_end(box: Sandbox) -> None:
    done = box.exec("sleep 600 & echo $!")
    assert done.exit_code == 0
    assert box.exec(f"kill {done.text.strip()}").exit_code == 0


def test_many_threads_at_once(box: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda number: box.exec(["echo", str(number)]).text, range(24)))
    assert texts == [f"{number}\n" for number in range(24)]


def test_a_program_is_talked_to_while_it_runs(box: Sandbox) -> None:
    with box.start(["cat"]) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one", b"two"):
            process.stdin.write(word)
            assert process.stdout.read(3) == word
        assert process.ending is None
        with pytest.raises(TimeoutError, match=r"^sandbox 'shared': 'cat' still runs after 0\.05 s$"):
            process.wait(0.05)
        process.stdin.close()
        ending = process.wait(60)
        assert (ending.exit_code, ending.signal) == (0, None)
        assert process.wait() == ending == process.ending


def test_signals_reach_a_process_and_kill_ends_it(box: Sandbox) -> None:
    with box.start("trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.1; done") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"got\n"
        assert process.wait(60).exit_code == 7
        process.signal(signal.SIGUSR1)  # it has ended: nobody minds
    with box.start(["sleep", "600"]) as process:
        process.kill()
        assert process.wait(60).signal == signal.SIGKILL


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1", 10])
def test_a_signal_has_a_name_and_a_number(box: Sandbox, name: str | int) -> None:
    with box.start("trap 'exit 7' USR1; echo ready; while :; do sleep 0.1; done") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.signal(name)
        assert process.wait(60).exit_code == 7


def test_what_is_no_signal_no_size_and_no_time_does_nothing(box: Sandbox) -> None:
    wrong: list[Any] = ["NONE", 0, 65, True, None, 9.0]
    with box.start(["sleep", "600"], terminal=(24, 80)) as process:
        for one in wrong:
            with pytest.raises(ConfigError, match="signal: expected a signal's name or its number"):
                process.signal(one)
        sides: list[Any] = [0, -1, 1 << 16, "24", 24.0, True, None]
        for side in sides:
            with pytest.raises(ConfigError, match="rows, columns: expected rows and columns"):
                process.resize(24, side)
        times: list[Any] = ["5", True, float("nan"), float("inf"), 1e9]
        for time in times:
            with pytest.raises(ConfigError, match="timeout_s: expected a number of seconds"):
                process.wait(time)
        assert process.ending is None


def test_of_a_long_command_only_the_beginning_is_named(box: Sandbox) -> None:
    with (
        box.start(["sleep", "600", *["0"] * 500]) as process,
        pytest.raises(TimeoutError, match="'sleep 600 0 0 ") as caught,
    ):
        process.wait(-1.0)
    assert len(str(caught.value)) < 300


def test_the_end_of_the_block_ends_the_program_and_closes_its_files(box: Sandbox) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with box.start(["sleep", "4712"]) as process:
        pass
    process.close()
    assert len(os.listdir("/proc/self/fd")) == before
    probe = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[2]'"
    assert becomes_true(lambda: box.exec(probe).text == "0\n", 30)


def test_a_wait_in_one_thread_sees_the_kill_of_another(box: Sandbox) -> None:
    with box.start(["sleep", "600"]) as process:
        killer = threading.Timer(0.2, process.kill)
        killer.start()
        assert process.wait(60).signal == signal.SIGKILL
        killer.join()


def test_a_terminal_has_a_size_that_can_be_changed(box: Sandbox) -> None:
    with box.start(["sh"], terminal=(24, 80)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is None
        process.stdin.write(b"test -t 0 && test -t 1 && stty size; echo x$((1 + 1))\n")
        seen = b""
        while b"x2" not in seen:
            seen += process.stdout.readline()
        assert b"24 80\r\n" in seen
        process.resize(40, 132)
        process.stdin.write(b"stty size; exit 5\n")
        assert b"40 132\r\n" in process.stdout.read()
        assert process.wait(60).exit_code == 5


@pytest.mark.parametrize("terminal", [(0, 80), (24,), (24, 80, 1), (24.0, 80), (24, 1 << 16), (True, 80)])
def test_sizes_that_cannot_be(box: Sandbox, terminal: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="expected rows and columns"):
        box.start(["sh"], terminal=terminal)


def test_what_it_says_of_itself_and_what_it_uses(box: Sandbox) -> None:
    health, usage = box.health(), box.usage()
    assert health["uptime_s"] > 0
    assert 0 < health["memory_bytes"] < 256 << 20
    assert usage is not None
    assert usage.memory_bytes > 0
    assert box.state == "running"
    assert box.id == "shared"
    assert "shared" in repr(box)


def test_nothing_is_left_open_by_many_programs(box: Sandbox) -> None:
    box.exec("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        box.exec("echo a", stdin="b")
    assert len(os.listdir("/proc/self/fd")) == before


def test_interrupting_exec_kills_the_program(box: Sandbox) -> None:
    mark = "sleep 4713"

    def interrupt() -> None:
        becomes_true(lambda: "4713" in box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        box.exec(mark, timeout_s=120)
    thread.join()
    probe = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[3]'"
    assert becomes_true(lambda: box.exec(probe).text == "0\n", 30)
