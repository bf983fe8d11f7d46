"""What a command left in /out, as whoever owns the machine's kernel may send it."""

from __future__ import annotations

import logging
import lzma
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._vm.collect import unpack
from hand_made_tar import block, end, pax

LOST = "what was left in /out came as no whole archive, the rest is lost: "


def unpacked(place: Path, data: bytes, most_bytes: int = 1 << 20) -> dict[str, bytes | None]:
    """What is there afterwards: content by name, None for directories."""
    archive, out = place / "out.tar", place / "out"
    archive.write_bytes(data)
    out.mkdir()
    unpack(archive, out, most_bytes=most_bytes)
    found = sorted(path for path in out.rglob("*"))
    return {str(path.relative_to(out)): path.read_bytes() if path.is_file() else None for path in found}


def test_files_and_directories_arrive_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = [
        block("./", tarfile.DIRTYPE),
        block("./a", data=b"first"),
        block("./d/e/f", data=b"deep"),
        block("./d/empty/", tarfile.DIRTYPE),
        block("./link", tarfile.SYMTYPE, leads="/etc"),
        block("./link/passwd", data=b"a directory by now"),
        block("./twin", tarfile.LNKTYPE, leads="./a"),
        block("./pipe", tarfile.FIFOTYPE),
        block("/etc/absolute", data=b"no"),
        block("../outside", data=b"no"),
        block("./d/../../outside", data=b"no"),
        block("./a/under a file", data=b"no"),
        block("./a", data=b"second"),
        pax({"path": b"\xff\xfe"}) + block("x", data=b"no text"),
        end(),
    ]
    assert unpacked(tmp_path, b"".join(data)) == {
        "a": b"second",
        "d": None,
        "d/e": None,
        "d/e/f": b"deep",
        "d/empty": None,
        "link": None,
        "link/passwd": b"a directory by now",
        "\udcff\udcfe": b"no text",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tar"]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(block("p", tarfile.XHDTYPE, b"8 a=bcd\n") * 3000, "bytes of headers", id="headers of headers"),
        pytest.param(
            block("p", tarfile.GNUTYPE_LONGNAME, b"abc\0") * 3000, "bytes of headers", id="names of names of names"
        ),
        pytest.param(pax({"path": "a\0b"}) + block("x"), "none of them zero", id="a zero in a name"),
        pytest.param(pax({"GNU.sparse.map": "a,b"}) + block("x"), "stored whole", id="a map without numbers"),
        pytest.param(pax({"size": "-100"}) + block("x"), "a number of 63 bits as size", id="less than nothing"),
        pytest.param(block("p", tarfile.XHDTYPE, size=1 << 40), "bytes of headers", id="a header of a terabyte"),
        pytest.param(b"\xff" * 2000, "in a header", id="garbage"),
        pytest.param(block("cut", data=bytes(5000))[:2000], "it ends in the content", id="cut short"),
    ],
)
def test_what_is_no_archive_is_said_once_and_what_came_before_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, words: str
) -> None:
    found = unpacked(tmp_path, block("before", data=b"kept") + data + block("after"))
    assert found["before"] == b"kept"
    assert "after" not in found
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / 'out'}: {LOST}")
    assert words in said


def test_nothing_is_unpacked_that_would_grow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Some KB that become a header of 64 MB, which a reader of tar must have in memory."""
    data = lzma.compress(block("p", tarfile.XHDTYPE, bytes(64 << 20)) + block("x"), preset=0)
    assert len(data) < 64 << 10
    tracemalloc.start()
    try:
        assert unpacked(tmp_path, data) == {}
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert LOST in caplog.text


def test_a_machine_that_sent_nothing_lost_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert unpacked(tmp_path, b"") == {}
    assert caplog.messages == []


def test_names_of_thousands_of_parts_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = pax({"path": "d/" * 2000 + "f"}) + block("x", data=b"no")
    assert unpacked(tmp_path, deep + block("after", data=b"yes") + end()) == {"after": b"yes"}
    assert caplog.messages == []


def test_directories_that_only_names_speak_of_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry of half a KB may name a hundred directories, each of which takes an inode of the host's."""
    monkeypatch.setattr("agentenv.sandbox.runtimes._vm.collect._MOST_FILES", 500)
    with caplog.at_level(logging.WARNING):
        found = unpacked(tmp_path, b"".join(block(f"{i}/" * 40 + "f") for i in range(100)) + end())
    assert 400 < len(found) <= 500
    assert "the rest was dropped" in caplog.text
