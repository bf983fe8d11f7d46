"""Archives: what other tools write is read as they mean it, and what nobody may say is one kind of error."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.archives import LONGEST_HEADERS, Archive, DamagedArchive, Member
from hand_made_tar import Endless, block, end, pax, records


def members(data: bytes) -> list[tuple[Member, bytes]]:
    archive = Archive(io.BytesIO(data))
    return [(member, b"".join(archive.content())) for member in archive]


def read_all(data: bytes) -> list[tuple[Member, bytes]] | None:
    """None where it is damaged; any other error is a mistake."""
    try:
        return members(data)
    except DamagedArchive:
        return None


KINDS = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "character device": tarfile.CHRTYPE,
    "block device": tarfile.BLKTYPE,
}
NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=300)
ENTRIES = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from(sorted(KINDS)),
        st.binary(max_size=2000),
        NAMES,
        st.integers(0, 0o7777),
        st.integers(0, (1 << 21) - 1),
        st.integers(0, 1 << 32),
    ),
    max_size=5,
)


def write(entries: list[tuple[str, str, bytes, str, int, int, int]], form: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, encoding="utf-8") as tar:
        for name, kind, data, leads, mode, uid, mtime in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.uid, member.mtime = KINDS[kind], mode, uid, mtime
            member.linkname = leads if "link" in kind else ""
            member.size = len(data) if kind == "file" else 0
            if "device" in kind:
                member.devmajor, member.devminor = 8, 3
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


@given(ENTRIES, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_what_another_writes_is_read_as_another_reads_it(
    entries: list[tuple[str, str, bytes, str, int, int, int]], form: int
) -> None:
    data = write(entries, form)
    if not entries:
        assert members(data) == []
        return
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as tar:
        expected = [
            (one.name, one.type, one.linkname, one.mode, one.uid, one.size, one.mtime, (one.devmajor, one.devminor))
            for one in tar
        ]
        contents = [entry[2] if entry[1] == "file" else b"" for entry in entries]
    found = members(data)
    told = [(one.name, one.type, one.leads, one.mode, one.uid, one.size, one.mtime, one.device) for one, _ in found]
    assert told == expected
    assert [content for _, content in found] == contents
    assert [KINDS[one.kind] for one, _ in found] == [KINDS[entry[1]] for entry in entries]


def test_what_is_said_for_all_entries_holds_until_one_says_otherwise() -> None:
    data = pax({"mtime": "5", "uid": "7"}, kind=tarfile.XGLTYPE)
    data += (
        block("a") + pax({"uid": "8", "SCHILY.xattr.user.a": b"\xff\0="}) + block("b") + pax({"uid": ""}) + block("c")
    )
    first, second, third = (member for member, _ in members(data + end()))
    assert (first.mtime, first.uid, first.xattrs) == (5.0, 7, {})
    assert (second.mtime, second.uid, second.xattrs) == (5.0, 8, {"user.a": b"\xff\0="})
    assert (third.mtime, third.uid) == (5.0, 0)
    assert (first.header_bytes, second.header_bytes) == (3 * 512, 3 * 512)


def test_an_end_without_blocks_of_zeros_is_one() -> None:
    assert [member.name for member, _ in members(block("a", data=b"x" * 600))] == ["a"]


LATEST = 2.0**34 - 2**31 - 1


@pytest.mark.parametrize(
    ("said", "mtime"), [("inf", LATEST), ("1e300", LATEST), ("-inf", -(2.0**31)), ("nan", 0.0), ("1.5", 1.5)]
)
def test_times_are_such_as_a_file_can_have(said: str, mtime: float) -> None:
    ((member, _),) = members(pax({"mtime": said}) + block("a") + end())
    assert member.mtime == mtime


WRONG = {
    "nothing": (b"", "empty"),
    "no archive": (b"x" * 2000, "in a header"),
    "cut in a header": (block("a")[:100], "in the middle"),
    "cut in a content": (block("a", data=b"x" * 5000)[:3000], "content of a file"),
    "cut in the padding": (block("a", data=b"x")[:-1], "in the middle"),
    "garbage after an entry": (block("a") + b"x" * 512, "in a header"),
    "a header for nothing": (block("a") + pax({"path": "b"}) + end(), "between the headers"),
    "a size below zero": (pax({"size": "-1"}) + block("a") + end(), "63 bits as size"),
    "a size of many digits": (pax({"size": "9" * 5000}) + block("a") + end(), "63 bits as size"),
    "a real size below zero": (pax({"GNU.sparse.realsize": "-1099511627776"}) + block("a") + end(), "stored whole"),
    "a real size that is none": (pax({"GNU.sparse.realsize": "abc"}) + block("a") + end(), "stored whole"),
    "a sparse file": (block("a", tarfile.GNUTYPE_SPARSE) + end(), "stored whole"),
    "a sparse map for all": (pax({"GNU.sparse.map": "x"}, kind=tarfile.XGLTYPE) + block("a"), "stored whole"),
    "an owner below zero": (pax({"uid": "-1"}) + block("a") + end(), "32 bits as owner"),
    "a group of many bits": (pax({"gid": str(1 << 32)}) + block("a") + end(), "32 bits as group"),
    "a time that is none": (pax({"mtime": "soon"}) + block("a") + end(), "expected a time"),
    "a name with a zero": (pax({"path": b"a\0b"}) + block("a") + end(), "none of them zero"),
    "a target with a zero": (pax({"linkpath": b"\0"}) + block("a", tarfile.SYMTYPE) + end(), "none of them zero"),
    "a long name": (pax({"path": "n" * 4097}) + block("a") + end(), "at most 4096 bytes"),
    "a long name of GNU's": (block("x", tarfile.GNUTYPE_LONGNAME, b"n" * 4097 + b"\0") + block("a"), "at most 4096"),
    "records without length": (block("x", tarfile.XHDTYPE, b"path=a\n") + block("a"), "LENGTH KEY=VALUE"),
    "records that are too long": (block("x", tarfile.XHDTYPE, b"99 path=a\n") + block("a"), "LENGTH KEY=VALUE"),
    "records of length 0": (block("x", tarfile.XHDTYPE, b"0 path=a\n") + block("a"), "LENGTH KEY=VALUE"),
    "records of many digits": (block("x", tarfile.XHDTYPE, b"1" * 100_000) + block("a"), "LENGTH KEY=VALUE"),
    "records without value": (block("x", tarfile.XHDTYPE, b"7 path\n") + block("a"), "KEY=VALUE"),
    "a header below zero": (block("x", tarfile.XHDTYPE, size=-1) + block("a"), "bytes of headers"),
    "much for all": (pax({"SCHILY.xattr.user.a": "x" * 70_000}, kind=tarfile.XGLTYPE) + block("a"), "for all entries"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_damage(name: str) -> None:
    data, words = WRONG[name]
    with pytest.raises(DamagedArchive, match=words):
        members(data)


ENDLESS = {
    "a long header": (block("x", tarfile.XHDTYPE, size=60 << 30), b"x" * 512),
    "a long name": (block("x", tarfile.GNUTYPE_LONGNAME, size=60 << 30), b"x" * 512),
    "headers of headers": (b"", pax({"path": "a"})),
    "headers without content": (b"", block("x", tarfile.XHDTYPE)),
    "headers for all": (b"", pax({"mtime": "1"}, kind=tarfile.XGLTYPE)),
    "long headers of headers": (b"", pax({"SCHILY.xattr.user.a": "x" * 100_000})),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_headers_are_not_read_for_ever(name: str) -> None:
    stream = Endless(*ENDLESS[name])
    with pytest.raises(DamagedArchive, match="bytes of headers"):
        list(Archive(stream))
    assert stream.count < LONGEST_HEADERS + (1 << 20)


@given(st.binary(max_size=3000))
def test_no_bytes_are_another_error(data: bytes) -> None:
    read_all(data)
    read_all(block("a", tarfile.XHDTYPE, data) + block("b", data=data) + end())
    read_all(block("a", tarfile.XGLTYPE, data) + block("b") + end())


FIELDS = st.sampled_from(
    """
    path linkpath size mtime uid gid uname hdrcharset GNU.sparse.major GNU.sparse.minor GNU.sparse.map GNU.sparse.size
    GNU.sparse.realsize GNU.sparse.name SCHILY.xattr.user.a
    """.split()  # noqa: SIM905 (one a line would be a page)
)
VALUES = st.one_of(
    st.binary(max_size=30),
    st.integers().map(lambda number: str(number).encode()),
    st.floats().map(lambda number: str(number).encode()),
    st.sampled_from([b"", b"-1", b"1e999", b"BINARY", b"9" * 5000, b"../x"]),
)


@given(
    st.dictionaries(FIELDS, VALUES), st.sampled_from(sorted(KINDS)), st.sampled_from([tarfile.XHDTYPE, tarfile.XGLTYPE])
)
def test_no_extended_header_is_another_error(said: dict[str, bytes], kind: str, header: bytes) -> None:
    for member, content in read_all(pax(said, kind=header) + block("a", KINDS[kind], leads="b") + end()) or ():
        assert 0 <= member.size == len(content)
        assert 0 <= member.uid < 1 << 32
        assert "\0" not in member.name + member.leads
        assert member.mtime == member.mtime


@settings(max_examples=300)
@given(ENTRIES, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]), st.data())
def test_no_damage_to_a_real_archive_is_another_error(
    entries: list[tuple[str, str, bytes, str, int, int, int]], form: int, data: st.DataObject
) -> None:
    whole = bytearray(write(entries, form))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(whole), 4096) - 1))
        whole[at : at + 1] = data.draw(st.binary(max_size=3))
    mended = bytes(whole)
    for at in range(0, min(len(mended), 4096), 512):  # or the checksums would keep most of it from being read
        mended = mended[:at] + mend(mended[at : at + 512]) + mended[at + 512 :]
    for damaged in (bytes(whole), mended, mended[: data.draw(st.integers(0, len(mended)))]):
        read_all(damaged)


def mend(header: bytes) -> bytes:
    """The checksum it would have to have, where it may be a header."""
    if len(header) < 512 or not header.strip(b"\0"):
        return header
    return header[:148] + b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:])) + header[156:]


def test_an_archive_of_gnu_tar(tmp_path: Path) -> None:
    program = shutil.which("tar")
    if program is None:
        pytest.skip("tar is not installed")
    folder, file = "d" * 90, "f" * 90
    (tmp_path / "in" / folder).mkdir(parents=True)
    (tmp_path / "in" / folder / file).write_bytes(b"x" * 10_000)
    (tmp_path / "in/link").symlink_to(folder)
    for form in ("gnu", "pax", "ustar", "oldgnu"):
        argv = [program, f"--format={form}", "-C", str(tmp_path / "in"), "-c", "."]
        found = members(subprocess.run(argv, capture_output=True, check=True).stdout)
        assert sorted((member.name.removeprefix("./"), member.kind) for member, _ in found) == [
            (".", "directory"),
            (folder, "directory"),
            (f"{folder}/{file}", "file"),
            ("link", "link"),
        ], form
        assert {len(content) for member, content in found if member.kind == "file"} == {10_000}


def test_records_are_what_they_are_written_as() -> None:
    assert records({"path": "a"}) == b"9 path=a\n"
    assert records({"path": "ab"}) == b"11 path=ab\n"
