"""What changed between two files is enough to make one from the other, whatever they contain."""

from __future__ import annotations

import io
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.snapshots.blocks import CHUNK, copy_content, digest_content
from agentenv.snapshots.changes import DATA, EMPTY, apply, compare, read_extents, write_extents
from snapshots.making import PAGE, write_pages

pages = st.dictionaries(st.integers(0, 40), st.integers(0, 3), max_size=30)
sizes = st.integers(0, 40 * PAGE) | st.sampled_from([0, PAGE, 16 * PAGE, 40 * PAGE])


def nobody(amount: int) -> None:
    return None


def difference(old: Path, new: Path, most: int = 1 << 40) -> tuple[list[tuple[int, int, int]] | None, bytes, str]:
    sink = io.BytesIO()
    with open(old, "rb") as before, open(new, "rb") as after:
        found = compare(before.fileno(), after.fileno(), sink, most, nobody)
    return None if found.extents is None else found.extents.tolist(), sink.getvalue(), found.digest


def rebuild(old: Path, new: Path, work: Path) -> bytes:
    sink = work / "pages"
    with open(old, "rb") as before, open(new, "rb") as after, open(sink, "wb") as pages_:
        found = compare(before.fileno(), after.fileno(), pages_, 1 << 40, nobody)
    assert found.extents is not None
    write_extents(work / "extents", found.extents)
    assert found.digest == digest_content(new, nobody)
    assert found.page_bytes == sink.stat().st_size
    extents = read_extents(work / "extents", new.stat().st_size, found.page_bytes)
    copy_content(old, work / "made", nobody)
    with open(work / "made", "r+b") as target, open(sink, "rb") as source:
        apply(target.fileno(), extents, source.fileno(), new.stat().st_size, nobody)
    return (work / "made").read_bytes()


@given(pages, sizes, pages, sizes)
def test_what_changed_makes_the_new_file_of_the_old(
    before: dict[int, int], a: int, after: dict[int, int], b: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        old, new = write_pages(work / "old", before, a), write_pages(work / "new", after, b)
        assert rebuild(old, new, work) == new.read_bytes()


def test_runs_go_on_over_what_is_read_at_once(tmp_path: Path) -> None:
    apart = CHUNK // PAGE
    size = 4 * CHUNK
    old = write_pages(tmp_path / "old", dict.fromkeys(range(3 * apart), 1), size)
    new = write_pages(tmp_path / "new", dict.fromkeys(range(5, 2 * apart + 5), 2), size)
    extents, data, _ = difference(old, new)
    assert extents == [(0, 5, EMPTY), (5, 2 * apart, DATA), (2 * apart + 5, apart - 5, EMPTY)]
    assert data == bytes([2]) * (2 * apart * PAGE)
    assert rebuild(old, new, tmp_path) == new.read_bytes()


def test_a_page_that_became_empty_is_kept_as_such(tmp_path: Path) -> None:
    size = 64 * PAGE
    old = write_pages(tmp_path / "old", {1: 1, 2: 1, 9: 1, 20: 0}, size)
    new = write_pages(tmp_path / "new", {1: 1, 2: 0, 30: 0}, size)
    assert difference(old, new)[:2] == ([(2, 1, EMPTY), (9, 1, EMPTY)], b"")
    assert rebuild(old, new, tmp_path) == new.read_bytes()
    assert (tmp_path / "made").stat().st_blocks * 512 <= 2 * PAGE, "what is empty takes no room"


def test_more_than_is_wanted_is_not_written(tmp_path: Path) -> None:
    old = write_pages(tmp_path / "old", {}, 64 * PAGE)
    new = write_pages(tmp_path / "new", dict.fromkeys(range(0, 64, 2), 300), 64 * PAGE)
    extents, data, digest = difference(old, new, 10 * PAGE)
    assert extents is None
    assert len(data) <= 10 * PAGE
    assert digest == digest_content(new, nobody)
    assert difference(old, new, 32 * PAGE)[0] is not None


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([(0, 2, DATA), (1, 1, EMPTY)], "in order"),
        ([(5, 1, DATA), (0, 1, DATA)], "in order"),
        ([(9, 2, EMPTY), (0, 0, DATA)], "in order"),
        ([(2**64 - 1, 2, EMPTY)], "in order"),
        ([(0, 1, 3), (1, 2, DATA)], "kinds 1 and 2"),
        ([(0, 1, DATA)], "expected 8192 bytes of pages, it has 4096"),
    ],
)
def test_a_list_that_cannot_be_is_refused(tmp_path: Path, records: list[tuple[int, int, int]], words: str) -> None:
    path = tmp_path / "extents"
    path.write_bytes(b"".join(struct.pack("<QII", *record) for record in records))
    with pytest.raises(ValueError, match=words):
        read_extents(path, 10 * PAGE, 2 * PAGE)
    path.write_bytes(bytes(17))
    with pytest.raises(ValueError, match="records of 16 bytes"):
        read_extents(path, 10 * PAGE, 2 * PAGE)


def test_only_where_there_is_data_it_is_read(tmp_path: Path) -> None:
    size = 1 << 36
    old, new = write_pages(tmp_path / "old", {7: 1}, size), write_pages(tmp_path / "new", {size // PAGE - 1: 2}, size)
    read: list[int] = []
    with open(old, "rb") as before, open(new, "rb") as after:
        found = compare(before.fileno(), after.fileno(), io.BytesIO(), 1 << 40, read.append)
    assert sum(read) <= 1 << 17
    assert found.extents is not None
    assert found.extents.tolist() == [(7, 1, EMPTY), (size // PAGE - 1, 1, DATA)]
