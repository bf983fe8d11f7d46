"""Run ids: their form, and whether the process behind one lives."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from agentenv.sandbox.runtimes._runid import is_run_id, new_run_id, run_is_alive


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def test_a_new_id_names_this_process_and_is_alive():
    run_id = new_run_id()
    assert re.fullmatch(rf"{os.getpid()}-{_start_time(os.getpid())}-[0-9a-f]{{8}}", run_id)
    assert run_is_alive(run_id)
    assert is_run_id(run_id)


def test_two_ids_of_one_process_differ():
    assert new_run_id() != new_run_id()


def test_a_reused_pid_is_not_the_run():
    pid, start, random = new_run_id().split("-")
    assert not run_is_alive(f"{pid}-{int(start) - 1}-{random}")


def test_the_dead_are_dead_also_while_nobody_waited_for_them():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        run_id = f"{child.pid}-{_start_time(child.pid)}-00000000"
        assert run_is_alive(run_id)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        assert not run_is_alive(run_id)
    assert not run_is_alive(run_id)


def test_a_command_name_with_spaces_and_parentheses_does_not_confuse(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        try:
            assert run_is_alive(f"{child.pid}-{_start_time(child.pid)}-00000000")
        finally:
            child.kill()


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "1-2-xyz", "0-2-00000000", "1-2-00000000\n", "../1-2-00000000", "-1-2-3"]
)
def test_anything_else_is_no_run_id(text):
    assert not is_run_id(text)
    with pytest.raises(ValueError, match="is not a run id"):
        run_is_alive(text)
