"""Large files that are mostly holes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from agentenv.snapshots.blocks import BLOCK, copy_content, data_ranges, digest_bytes, digest_content
from snapshots.making import PAGE, write_pages


def nobody(amount: int) -> None:
    return None


def ranges(path: Path, size: int, unit: int = BLOCK) -> list[tuple[int, int]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return list(data_ranges(fd, size, unit))
    finally:
        os.close(fd)


def test_ranges_are_rounded_out_and_put_together(tmp_path: Path) -> None:
    size = 10 * BLOCK + 100
    path = write_pages(tmp_path / "f", {1: 1, 17: 1, 18: 1, 70: 1, 160: 1}, size)
    assert ranges(path, size) == [(0, 2 * BLOCK), (4 * BLOCK, 5 * BLOCK), (10 * BLOCK, 11 * BLOCK)]
    assert ranges(path, size, PAGE)[:2] == [(PAGE, 2 * PAGE), (17 * PAGE, 19 * PAGE)]
    assert ranges(path, 3 * BLOCK) == [(0, 2 * BLOCK)]
    assert ranges(write_pages(tmp_path / "empty", {}, size), size) == []
    assert ranges(write_pages(tmp_path / "nothing", {}, 0), 0) == []


def test_a_digest_says_what_is_read_and_not_where_holes_are(tmp_path: Path) -> None:
    size = 40 * PAGE + 7
    pages = {3: 5, 39: 6, 40: 7}
    digest = digest_content(write_pages(tmp_path / "a", pages, size), nobody)
    written = {number: pages.get(number, 0) for number in range(41)}
    assert digest_content(write_pages(tmp_path / "b", written, size), nobody) == digest
    for number, (other, length) in enumerate(
        [({**pages, 3: 4}, size), ({4: 5, 39: 6, 40: 7}, size), (pages, size + 1), (pages, size - 1), ({}, size)]
    ):
        assert digest_content(write_pages(tmp_path / str(number), other, length), nobody) != digest


def test_the_digest_is_what_the_format_says(tmp_path: Path) -> None:
    size = 2 * BLOCK + 5
    path = write_pages(tmp_path / "f", {16: 9, 32: 8}, size)
    content = path.read_bytes()
    expected = hashlib.sha256()
    for at in (BLOCK, 2 * BLOCK):
        expected.update(at.to_bytes(8, "little") + content[at : at + BLOCK])
    expected.update(size.to_bytes(8, "little"))
    assert digest_content(path, nobody) == expected.hexdigest()
    assert digest_bytes(path, nobody) == hashlib.sha256(content).hexdigest()


def test_a_copy_has_the_same_content_mode_and_holes(tmp_path: Path) -> None:
    source = write_pages(tmp_path / "a", {5: 1, 500: 0, 999: 2}, 1000 * PAGE + 3)
    source.chmod(0o640)
    told: list[int] = []
    copy_content(source, tmp_path / "b", told.append)
    assert (tmp_path / "b").read_bytes() == source.read_bytes()
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "b").stat().st_blocks <= source.stat().st_blocks
    with pytest.raises(FileExistsError):
        copy_content(source, tmp_path / "b", nobody)
