"""Directories as archives: what comes out is what went in, and nothing a sandbox sends leaves its place."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.boxes.trees import lay_out, pack
from agentenv.errors import ProtocolError

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
        assert os.path.realpath(path).startswith(f"{target.resolve()}")
