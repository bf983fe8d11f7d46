"""Directories as archives: what comes out is what went in, and nothing a sandbox sends leaves its place."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.boxes import trees
from agentenv.boxes.trees import lay_out, pack
from agentenv.errors import ProtocolError
from hand_made_tar import Endless, block, end, pax

MOST = 1 << 20


def archive(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            member, data = one if isinstance(one, tuple) else (one, b"")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    stream.seek(0)
    return stream


def file(name: str, data: bytes = b"data", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.mode = mode
    return member, data


def other(name: str, kind: bytes, leads: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, leads, 0o755
    return member


def take(stream: io.BytesIO, target: Path, most: int = MOST) -> list[str]:
    return lay_out(stream, target, most_bytes=most, sandbox="a")


def names(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def test_a_directory_goes_through_an_archive(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub/empty").mkdir(parents=True)
    (source / "sub/file").write_bytes(os.urandom(300_000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("sub/file")
    (source / "sub/up").symlink_to("../run")
    os.link(source / "run", source / "same")
    os.utime(source / "run", (1e9, 1e9))
    os.mkfifo(source / "pipe")
    stream = io.BytesIO()
    pack(source, stream)
    stream.seek(0)
    assert take(stream, target) == []
    assert names(target) == sorted({*names(source)} - {"pipe"})
    assert (target / "sub/file").read_bytes() == (source / "sub/file").read_bytes()
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "run").stat().st_mtime == 1e9
    assert os.readlink(target / "sub/up") == "../run"
    assert (target / "same").read_text() == "#!/bin/sh\n"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(MOST))

    class Shortening(io.BytesIO):
        """Somebody writes the file anew while it is copied."""

        def write(self, data: Any) -> int:
            os.truncate(tmp_path / "large", 0)
            return super().write(data)

    with pytest.raises(OSError, match="unexpected end of data") as caught:
        pack(tmp_path, Shortening())
    assert caught.value.filename == f"{tmp_path}/large"


def test_owners_of_this_host_are_not_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    stream = io.BytesIO()
    pack(tmp_path, stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        assert {(member.uid, member.gid, member.uname, member.gname) for member in tar} == {(0, 0, "", "")}


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out", "a/b/../../../out", ".."])
def test_names_that_lead_out_are_left_out(tmp_path: Path, name: str) -> None:
    target = tmp_path / "deep/target"
    assert take(archive(file("a/b/in"), file(name)), target) == [name]
    assert names(tmp_path) == ["deep", "deep/target", "deep/target/a", "deep/target/a/b", "deep/target/a/b/in"]


@pytest.mark.parametrize("leads", ["/etc", "../outside", "../../outside", "x/../../../outside", "sub/../..", "sub/.."])
def test_links_that_lead_out_or_may_are_left_out(tmp_path: Path, leads: str) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    assert take(archive(other("link", tarfile.SYMTYPE, leads), file("link/x")), target) == ["link"] or leads
    assert names(tmp_path / "outside") == []
    assert not (target / "link").is_symlink()


def test_nothing_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    members = [
        other("d", tarfile.DIRTYPE),
        other("d/l", tarfile.SYMTYPE, "../e"),
        file("d/l/x"),
        other("e", tarfile.DIRTYPE),
    ]
    with pytest.raises(OSError, match="d/l"):
        take(archive(*members), target)
    assert names(tmp_path / "outside") == []


def test_nothing_is_written_through_a_link_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "d").symlink_to(tmp_path / "outside")
    (target / "f").symlink_to(tmp_path / "outside/f")
    with pytest.raises(OSError, match="got a link"):
        take(archive(file("d/x")), target)
    take(archive(file("f", b"new")), target)
    assert names(tmp_path / "outside") == []
    assert (target / "f").read_bytes() == b"new"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(tmp_path: Path, kind: bytes) -> None:
    assert take(archive(other("dev", kind), file("a")), tmp_path / "t") == ["dev"]
    assert names(tmp_path / "t") == ["a"]


def test_hard_links_lead_to_files_of_the_same_archive_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host's")
    target = tmp_path / "t"
    target.mkdir()
    (target / "mine").write_text("host's")
    members = [
        file("a"),
        other("b", tarfile.LNKTYPE, "a"),
        other("c", tarfile.LNKTYPE, str(secret)),
        other("d", tarfile.LNKTYPE, "../secret"),
        other("e", tarfile.LNKTYPE, "mine"),
    ]
    assert take(archive(*members), target) == ["c", "d", "e"]
    assert names(target) == ["a", "b", "mine"]


def test_special_modes_are_not_taken_over(tmp_path: Path) -> None:
    take(archive(file("a", mode=0o6755), other("d", tarfile.DIRTYPE)), tmp_path / "t")
    assert stat.S_IMODE((tmp_path / "t/a").stat().st_mode) == 0o755


def test_a_directory_nobody_may_write_is_filled_first(tmp_path: Path) -> None:
    member = other("d", tarfile.DIRTYPE)
    member.mode = 0o500
    take(archive(member, file("d/a")), tmp_path / "t")
    assert (tmp_path / "t/d/a").read_bytes() == b"data"


def test_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        take(archive(file("a", b"x" * (MOST // 2)), file("b", b"x" * (MOST // 2 + 1))), tmp_path / "t")


def test_headers_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(ProtocolError, match="no whole archive"):
        take(io.BytesIO(header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096), tmp_path / "t")


def test_hard_links_take_no_space_however_many_there_are(tmp_path: Path) -> None:
    data = os.urandom(700_000)
    links = [other(f"b{number}", tarfile.LNKTYPE, "a") for number in range(100)]
    assert take(archive(file("a", data), *links), tmp_path / "t") == []
    assert len({path.stat().st_ino for path in (tmp_path / "t").iterdir()}) == 1
    assert (tmp_path / "t/b99").read_bytes() == data
    # What a later copy brings is not written into the files of an earlier one.
    take(archive(file("b3", b"new")), tmp_path / "t")
    assert (tmp_path / "t/a").read_bytes() == data


def test_hard_links_that_have_to_be_copies_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    monkeypatch.setattr(os, "link", refuse)
    members = [file("a", b"x" * 300_000), *(other(f"b{number}", tarfile.LNKTYPE, "a") for number in range(9))]
    assert take(archive(*members[:3]), tmp_path / "two") == []
    assert (tmp_path / "two/b1").read_bytes() == b"x" * 300_000
    with pytest.raises(OSError, match="expected at most 1 MiB") as caught:
        take(archive(*members), tmp_path / "many")
    assert caught.value.errno == errno.EFBIG
    assert used(tmp_path / "many") <= MOST


def test_no_size_makes_room_for_another(tmp_path: Path) -> None:
    for said in ({"GNU.sparse.realsize": "-1099511627776"}, {"size": "-1099511627776"}):
        data = pax(said) + block("a") + block("b", data=b"x" * (MOST + 1)) + end()
        with pytest.raises(ProtocolError, match="no whole archive"):
            take(io.BytesIO(data), tmp_path / "t")
    assert names(tmp_path / "t") == []


def test_a_size_that_is_a_lie_writes_nothing(tmp_path: Path) -> None:
    stream = Endless(block("a", size=1 << 40))
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        lay_out(stream, tmp_path / "t", most_bytes=MOST, sandbox="a")
    assert names(tmp_path / "t") == []


def test_directories_and_names_take_of_the_same_room(tmp_path: Path) -> None:
    deep = [other(f"{number}/" + "d/" * 200, tarfile.DIRTYPE) for number in range(100)]
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        take(archive(*deep), tmp_path / "deep")
    assert len(names(tmp_path / "deep")) <= MOST // 4096
    long = [other(f"{number:04}" + "/." * 2000, tarfile.SYMTYPE, "a") for number in range(300)]
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        take(archive(*long), tmp_path / "long")


def test_small_files_count_as_the_blocks_they_take(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="expected at most 1 MiB"):
        take(archive(*(file(f"{number}", b"x") for number in range(300))), tmp_path / "t")
    assert used(tmp_path / "t") <= MOST + 4096


def test_no_more_names_than_somebody_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_MOST_NAMES", 10)
    assert take(archive(*(file(f"{number}", b"") for number in range(10))), tmp_path / "ten") == []
    with pytest.raises(OSError, match="at most 10 files and directories"):
        take(archive(*(file(f"{number}", b"") for number in range(11))), tmp_path / "more")
    with pytest.raises(OSError, match="at most 10 files and directories"):
        take(archive(other("a/" * 11, tarfile.DIRTYPE)), tmp_path / "deep")


def test_what_waits_for_the_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "_MOST_HELD", 1 << 20)
    for kind in (tarfile.SYMTYPE, tarfile.DIRTYPE):
        with pytest.raises(OSError, match="at most 1 MiB of names of links"):
            take(archive(*(other("a" * 200, kind, "b") for _ in range(9000))), tmp_path / "t", most=1 << 30)


def test_what_is_left_out_is_told_up_to_a_number(tmp_path: Path) -> None:
    told = take(archive(*(other(f"{number}", tarfile.FIFOTYPE) for number in range(6234))), tmp_path / "t", 1 << 30)
    assert len(told) == 5001
    assert told[4999:] == ["4999", "... and 1,234 more"]


@pytest.mark.parametrize("said", ["inf", "-inf", "nan", "1e300", "9" * 400])
def test_a_time_that_cannot_be_is_another_one(tmp_path: Path, said: str) -> None:
    assert take(io.BytesIO(pax({"mtime": said}) + block("a") + end()), tmp_path / "t") == []
    assert names(tmp_path / "t") == ["a"]


def used(top: Path) -> int:
    """What a tree takes of the disk."""
    return sum(path.stat().st_blocks * 512 for path in top.rglob("*") if not path.is_symlink())


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"x" * 20_000])
def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="sandbox 'a'"):
        take(io.BytesIO(data), tmp_path / "t")


_PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "l"])
_PATHS = st.lists(_PARTS, min_size=1, max_size=5).map("/".join).filter(lambda path: path not in ("", "/"))
_KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.tuples(_PATHS, _KINDS, _PATHS), max_size=6), min_size=1, max_size=3))
def test_no_sequence_of_archives_reaches_outside(tmp_path: Path, sent: list[list[tuple[str, bytes, str]]]) -> None:
    """The links one copy makes are there when the next one is laid out over it."""
    top = tmp_path / os.urandom(8).hex()
    target = top / "x/y/target"
    target.mkdir(parents=True)
    (top / "guard").write_text("as it was")
    for members in sent:
        built = [file(path) if kind == tarfile.REGTYPE else other(path, kind, leads) for path, kind, leads in members]
        try:
            take(archive(*built), target)
        except (OSError, ProtocolError):
            continue
    assert (top / "guard").read_text() == "as it was"
    assert sorted(path.name for path in top.iterdir()) == ["guard", "x"]
    assert [path.name for path in (top / "x").iterdir()] == ["y"]
    assert [path.name for path in (top / "x/y").iterdir()] == ["target"]
    for path in target.rglob("*"):
        # A circle leads nowhere, and realpath says "/a" of a link from "a" to "a//a".
        assert _is_circle(path) or os.path.realpath(path).startswith(f"{target.resolve()}")


def _is_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_archive_ends_in_another_error(tmp_path: Path, data: st.DataObject) -> None:
    said = st.dictionaries(
        st.sampled_from(["path", "linkpath", "size", "mtime", "GNU.sparse.realsize", "GNU.sparse.map"]),
        st.sampled_from(["a", "b/c", "../a", "-1", "9" * 500, "nan", "abc", "1", "n" * 300, "\0"]),
    )
    kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, b"Z"])
    entries = st.tuples(said, _PATHS, kinds, _PATHS, st.binary(max_size=5000))
    sent = b""
    for headers, path, kind, leads, content in data.draw(st.lists(entries, max_size=4)):
        content = content if kind == tarfile.REGTYPE else b""
        sent += (pax(headers) if headers else b"") + block(path, kind, content, leads=leads)
    damaged = bytearray(sent + end())
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    target = tmp_path / os.urandom(8).hex()
    most = data.draw(st.sampled_from([0, 5000, 20_000]))
    with contextlib.suppress(OSError, ProtocolError):
        take(io.BytesIO(bytes(damaged)), target, most)
    assert used(target) <= most + 4096
