"""Layers: applied as the specification says, and never outside the tree."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.images.files import remove_tree
from agentenv.images.inside import make_parents, parts_of, resolve
from agentenv.images.layers import Bounds, Layer
from agentenv.images.trees import Meta, Table, Tree
from hand_made_oci import File, archive, folder, hard, link
from hand_made_tar import Endless, block, end, pax


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "place").mkdir()
    return Tree.make(tmp_path / "place")


def apply(tree: Tree, *layers: list[File]) -> list[str]:
    notes: list[str] = []
    for entries in layers:
        Layer(tree, notes=notes).apply(io.BytesIO(archive(entries)))
    return notes


def names(tree: Tree) -> list[str]:
    return sorted(str(path.relative_to(tree.root)) for path in tree.root.rglob("*"))


def test_entries_become_files_and_what_only_root_has_is_noted(tree: Tree) -> None:
    notes = apply(
        tree,
        [
            folder("./etc"),
            File("./etc/shadow", b"secret", 0o640, gid=42),
            File("usr/bin/sudo", b"#!", 0o4755),
            File("/absolute", b"inside"),
            link("bin", "usr/bin"),
            hard("usr/bin/twin", "usr/bin/sudo"),
            hard("usr/bin/through", "bin/sudo"),
            File("dev/null", kind=tarfile.CHRTYPE, mode=0o666, device=(1, 3)),
            File("pipe", kind=tarfile.FIFOTYPE, mode=0o600),
            File("locked", b"", 0o000, xattrs={"user.a": b"\0\xff", "security.selinux": b"label", "user.x\ny": b"z"}),
            File("odd", kind=b"Z"),
        ],
    )
    assert (tree.root / "absolute").read_bytes() == b"inside"
    assert (tree.root / "etc/shadow").stat().st_mode & 0o7777 == 0o640
    assert tree.table["etc/shadow"] == Meta(0o640, 0, 42)
    assert stat.S_IMODE((tree.root / "usr/bin/sudo").stat().st_mode) == 0o755
    assert (
        tree.table["usr/bin/sudo"].mode
        == tree.table["usr/bin/twin"].mode
        == tree.table["usr/bin/through"].mode
        == 0o4755
    )
    assert (tree.root / "usr/bin/twin").samefile(tree.root / "usr/bin/through")
    assert tree.table["dev/null"].device == ("c", 1, 3)
    assert not (tree.root / "dev/null").exists()
    assert tree.table["locked"] == Meta(0, 0, 0, {"user.a": b"\0\xff"})
    assert stat.S_ISFIFO((tree.root / "pipe").stat().st_mode)
    assert (tree.root / "etc/shadow").stat().st_mtime == 1e9
    assert notes == ["/odd is of a kind that tar calls b'Z' and was left out"]


def test_whiteouts_remove_what_lies_below(tree: Tree) -> None:
    apply(
        tree,
        [
            File("keep/a"),
            File("keep/b", mode=0o4755),
            File("gone/x/y"),
            File("opaque/old"),
            File("opaque/sub/old"),
            File("file"),
            link("link", "keep"),
        ],
        [
            File("keep/.wh.b"),
            File(".wh.gone"),
            # Wherever it stands: what this layer brings stays.
            File("opaque/early"),
            File("opaque/sub/early"),
            File("opaque/.wh..wh..opq"),
            File("opaque/late"),
            File(".wh..wh.plnk"),
            File("link/.wh.a"),
            File(".wh.not there"),
            File("file"),
            File(".wh.file"),
        ],
    )
    assert names(tree) == [
        "file",
        "keep",
        "link",
        "opaque",
        "opaque/early",
        "opaque/late",
        "opaque/sub",
        "opaque/sub/early",
    ]
    assert "keep/b" not in tree.table


def test_devices_of_the_layers_below_are_hidden_too(tree: Tree) -> None:
    device = {"kind": tarfile.CHRTYPE, "mode": 0o666, "device": (1, 3)}
    apply(
        tree,
        [File("dev/null", **device), File("dev/sub/zero", **device), File("kept/null", **device)],
        [File("dev/own", **device), File("dev/.wh..wh..opq"), File(".wh.dev")],
    )
    assert sorted(tree.table) == ["dev/own", "kept/null"]


@pytest.mark.parametrize(
    "layers",
    [
        lambda names: [[File(name, uid=1) for name in names], [File(name, uid=2) for name in names]],
        lambda names: [[File(name, uid=1) for name in names], [File(f"d/.wh.{name[2:]}") for name in names]],
        lambda names: [[*map(File, names), *(File(f"d/.wh.x{name[2:]}") for name in names)]],
        lambda names: [[*map(File, names), *[File(".wh.d")] * len(names)]],
        lambda names: [[*map(File, names), *[File("d/.wh..wh..opq")] * len(names)]],
    ],
    ids=["replaced", "removed", "whiteouts of nothing", "one whiteout", "one opaque whiteout"],
)
def test_many_entries_cost_no_more_each_than_few(tree: Tree, layers) -> None:
    def calls(number: int) -> int:
        """How many functions of ours and of the standard library are called, and how many paths are looked at."""
        names = [f"d/{index}" for index in range(number)]
        seen = 0

        def count(_frame: object, event: str, _what: object) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            apply(tree, *layers(names))
        finally:
            sys.setprofile(None)
        remove_tree(tree.root)
        tree.root.mkdir()
        tree.table = Table()
        return seen

    assert calls(400) < 2.1 * calls(200)


def test_later_layers_replace(tree: Tree) -> None:
    apply(
        tree,
        [File("a", b"1", 0o4755), folder("d", 0o1777), File("d/below"), link("l", "d"), File("f/g")],
        [File("a", b"2"), folder("d", 0o755), folder("l"), File("f", b"file now")],
        [File("f/h", b"and back")],
    )
    assert (tree.root / "a").read_bytes() == b"2"
    assert tree.table == {}
    assert names(tree) == ["a", "d", "d/below", "f", "f/h", "l"]
    assert (tree.root / "l").is_dir()
    assert not (tree.root / "l").is_symlink()


def test_a_file_through_a_link_lands_where_the_link_leads_inside(tree: Tree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    apply(
        tree,
        [
            link("lib", "usr/lib"),
            File("lib/a", b"a"),
            link("absolute", str(outside)),
            File("absolute/b", b"b"),
            link("up", "../../../../../../.." + str(outside)),
            File("up/c", b"c"),
            link("etc/deep", "../../../outside"),
            File("etc/deep/d", b"d"),
            File("etc/deep/.wh..wh..opq"),
            File("up/.wh.kept"),
            hard("stolen", "usr/lib/a"),
        ],
    )
    assert os.listdir(outside) == ["kept"]
    assert (tree.root / "usr/lib/a").read_bytes() == b"a"
    assert (tree.root / str(outside)[1:] / "b").read_bytes() == b"b"
    assert (tree.root / str(outside)[1:] / "c").read_bytes() == b"c"
    assert (tree.root / "outside/d").read_bytes() == b"d"


@pytest.mark.parametrize(
    "entries",
    [
        [File("../escape")],
        [File("a/../../escape")],
        [File("a/..")],
        [File("x/.wh...")],
        [File(".wh...")],
        [File(".wh.")],
        [link("a", "b"), link("b", "a"), File("a/x")],
        [hard("passwd", "/etc/passwd")],
        [hard("passwd", "../../../../../../etc/passwd")],
        [link("etc", "/etc"), hard("passwd", "etc/passwd")],
        [folder("d"), hard("twin", "d")],
        [File("n" * 256)],
        [File("a/" * 3000 + "b")],
        [File("a/" * 300 + "b")],
        [link("d", "a/" * 200), File("d/" + "a/" * 200 + "b")],
        [link("a", "")],
        [link("a", "b" * 4096), File("a/c")],
    ],
    ids=lambda entries: entries[-1].name[:20] + "-" + entries[-1].link[:20],
)
def test_what_wants_out_or_makes_no_sense_is_refused(tree: Tree, tmp_path: Path, entries: list[File]) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        apply(tree, entries)
    assert sorted(os.listdir(tmp_path)) == ["place"]


def test_a_damaged_archive_is_refused(tree: Tree) -> None:
    whole = archive([File("a", b"x" * 5000), File("b", b"y" * 5000)])
    for data in (b"not a tar archive" * 100, whole[:3000], whole[:700]):
        with pytest.raises(ProtocolError, match="tar archive"):
            Layer(tree).apply(io.BytesIO(data))


def test_bounds_hold(tree: Tree) -> None:
    with pytest.raises(ProtocolError, match="larger one"):
        Layer(tree, Bounds(bytes_left=99)).apply(io.BytesIO(archive([File("a", b"x" * 100)])))
    with pytest.raises(ProtocolError, match="larger one"):
        Layer(tree, Bounds(entries_left=2)).apply(io.BytesIO(archive([File(name) for name in "abc"])))
    with pytest.raises(ProtocolError, match="larger one"):
        Layer(tree, Bounds(names_left=999)).apply(io.BytesIO(archive([File("b", xattrs={"user.a": b"x" * 900})])))
    with pytest.raises(ProtocolError, match="larger one"):
        Layer(tree, Bounds(entries_left=9)).apply(io.BytesIO(archive([File("deep/" * 9 + "file")])))


def test_no_entry_makes_room_for_others(tree: Tree) -> None:
    for said in ({"GNU.sparse.realsize": "-1099511627776"}, {"size": "-1099511627776"}):
        data = pax(said) + block("a") + block("b", data=b"x" * 200) + end()
        bounds = Bounds(bytes_left=99)
        with pytest.raises(ProtocolError, match="expected"):
            Layer(tree, bounds).apply(io.BytesIO(data))
        assert bounds.bytes_left <= 99
    assert names(tree) == []


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_are_not_read_into_memory_whatever_they_say(tree: Tree, kind: bytes) -> None:
    stream = Endless(block("x", kind, size=60 << 30))
    with pytest.raises(ProtocolError, match="bytes of headers"):
        Layer(tree).apply(stream)
    assert stream.count < 1 << 20


@pytest.mark.parametrize(
    ("said", "when"), [("inf", 2**31 - 1), ("nan", 0), ("1e300", 2**31 - 1), ("-1", 0), ("7.9", 7)]
)
def test_times_are_such_as_an_image_can_have(tree: Tree, said: str, when: int) -> None:
    Layer(tree).apply(io.BytesIO(pax({"mtime": said}) + block("a") + end()))
    assert (tree.root / "a").stat().st_mtime == when


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_layer_ends_in_another_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    jail = tmp_path_factory.mktemp("fuzz")
    (jail / "place").mkdir()
    said = st.dictionaries(
        st.sampled_from(["path", "linkpath", "size", "mtime", "uid", "gid", "SCHILY.xattr.user.a", "GNU.sparse.map"]),
        st.sampled_from(["a", "b/c", "../a", "-1", "9" * 500, "nan", "abc", "1", "n" * 300, "\0", "c/.wh.b"]),
    )
    kinds = st.sampled_from(
        [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"Z"]
    )
    paths = st.lists(PART, min_size=1, max_size=4).map("/".join)
    entries = st.tuples(said, paths, kinds, TARGET, st.binary(max_size=2000))
    sent = b""
    for headers, path, kind, leads, content in data.draw(st.lists(entries, max_size=5)):
        content = content if kind == tarfile.REGTYPE else b""
        sent += (pax(headers) if headers else b"") + block(path, kind, content, leads=leads)
    damaged = bytearray(sent + end())
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        Layer(Tree.make(jail / "place")).apply(io.BytesIO(bytes(damaged)))
    assert os.listdir(jail) == ["place"]
    assert os.listdir(jail / "place") == ["root"]


PART = st.sampled_from(["a", "b", "c", "..", ".", "deep"])
TARGET = st.builds(lambda up, parts: up + "/".join(parts), st.sampled_from(["", "/", "../", "../../"]), st.lists(PART))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    links=st.dictionaries(st.sampled_from(["a", "b", "deep/a", "deep/b"]), TARGET.filter(bool)),
    name=st.lists(st.sampled_from(["a", "b", "c", "deep"]), min_size=1, max_size=6),
)
def test_no_links_lead_out(tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], name: list[str]) -> None:
    root = tmp_path_factory.mktemp("links") / "jail/root"
    (root / "deep").mkdir(parents=True)
    for place, target in links.items():
        os.symlink(target, root / place)
    try:
        path = resolve(root, parts_of("/".join(name)))
    except ProtocolError:
        return
    place = root
    for part in path.split("/")[:-1]:
        assert part not in ("", ".", "..")
        place = place / part
        assert not place.is_symlink()
    if path:
        make_parents(root, path)
        assert os.path.realpath((root / path).parent).startswith(str(root.resolve()))
    assert os.listdir(root.parent) == ["root"]
