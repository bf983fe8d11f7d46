"""Whether the process that owns a run still lives, told from every process that only looks like it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from agentenv.fleet.owner import Owner, _start_ticks


def _owner_of(pid: int) -> Owner:
    ticks = _start_ticks(pid)
    assert ticks is not None
    return replace(Owner.current(), pid=pid, start_ticks=ticks)


def test_this_process_is_alive() -> None:
    owner = Owner.current()
    assert owner.alive()
    assert Owner.from_record(owner.as_record()) == owner


def test_a_number_used_anew_and_another_boot_are_told_apart() -> None:
    owner = Owner.current()
    assert not replace(owner, start_ticks=owner.start_ticks - 1).alive()
    assert not replace(owner, boot_id="another").alive()


def test_a_killed_process_is_not_alive_even_as_a_zombie() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        owner = _owner_of(process.pid)
        assert owner.alive()
        process.kill()
        assert process.stdin is not None
        # Wait for the death without reaping, so that the zombie is there to be looked at.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.alive()
    assert not owner.alive()


_REST = {"start_ticks": 1, "boot_id": "", "host": ""}


@pytest.mark.parametrize(
    "record",
    [None, 3, [], {}, {"pid": 1}, {"pid": "1", **_REST}, {"pid": 0, **_REST}, {"pid": True, **_REST}],
)
def test_damaged_records_name_nobody(record: object) -> None:
    assert Owner.from_record(record) is None
