"""The size of a directory written by hostile code: counted without following it anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentenv.fleet.outsize import find_excess

MIB = 1 << 20


def test_counts_blocks_and_entries(tmp_path: Path) -> None:
    assert find_excess(tmp_path, MIB) == ""
    (tmp_path / "a").write_bytes(b"x" * MIB)
    assert find_excess(tmp_path, 2 * MIB) == ""
    assert "more than 1 MB" in find_excess(tmp_path, MIB)
    assert find_excess(tmp_path / "missing", 1) == ""


def test_sparse_files_cost_what_they_take(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert find_excess(tmp_path, MIB) == ""


def test_many_empty_files_are_not_free(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()
    assert find_excess(tmp_path, 100_000) != ""


def test_links_lead_nowhere(tmp_path: Path) -> None:
    inside = tmp_path / "out"
    inside.mkdir()
    outside = tmp_path / "big"
    outside.mkdir()
    (outside / "a").write_bytes(b"x" * MIB)
    (inside / "dir").symlink_to(outside)
    (inside / "file").symlink_to(outside / "a")
    (inside / "loop").symlink_to(inside)
    assert find_excess(inside, 100_000) == ""
    assert find_excess(inside / "dir", 100_000) == "", "not even where the directory itself was replaced by one"


def test_depth_is_bounded(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    path = tmp_path
    for _ in range(70):
        path = path / "d"
        path.mkdir()
    assert "deep" in find_excess(tmp_path, 1 << 30)
    assert len(os.listdir("/proc/self/fd")) == before


def test_other_kinds_of_files_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert find_excess(tmp_path, MIB) == ""


@pytest.mark.parametrize("mode", [0o300, 0o400, 0o000])
def test_what_may_not_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    out = tmp_path / "out"
    (out / "closed").mkdir(parents=True)
    (out / "closed" / "a").write_bytes(b"x" * MIB)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # nobody need not reach what lies above
    user = os.geteuid()
    for closed in (out / "closed", out):
        closed.chmod(mode)
        if user == 0:
            os.seteuid(65534)  # root may read everything
        try:
            found = find_excess(Path("out"), MIB // 2)
        finally:
            os.seteuid(user)
            closed.chmod(0o755)
        assert found == "a directory that may not be read"
