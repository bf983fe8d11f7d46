"""OCI images: from layouts, archives and a real registry, with nothing believed that has not the right digest."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, ProtocolError, RuntimeUnavailable
from agentenv.images.blobs import Blob, decompressed
from agentenv.images.fetching import open_archive
from agentenv.images.image import resolve_image
from agentenv.images.oci import OciImage, Start, read_layout, unpack
from agentenv.images.programs import need_program
from agentenv.images.progress import LINES
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from agentenv.images.trees import Tree
from cli_watch import poll
from hand_made_oci import File, archive, folder, link, pack, write_layout
from hand_made_tar import block

CONFIG = {
    "User": "1000:100",
    "Env": ["PATH=/usr/bin", "EMPTY=", "EQUALS=a=b", "odd", "=x"],
    "WorkingDir": "/work",
    "Entrypoint": ["/bin/run", "-x"],
    "Cmd": ["go"],
}
LAYERS = [
    [folder("bin"), File("bin/run", b"#!/bin/sh\n", 0o755), File("old", b"old"), folder("home", uid=1000, gid=100)],
    [File("new", b"new", 0o4755), File(".wh.old"), link("sh", "bin/run")],
]


class _Task:
    def advance(self, amount: float) -> None:
        return None


def ask(image: Path, request: str) -> str:
    argv = [need_program("debugfs", "to look"), "-R", request, str(image)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def unpacked(layout: Path, place: Path) -> Tree:
    place.mkdir()
    tree = Tree.make(place)
    unpack(read_layout(layout, layout / "blobs"), tree, LINES)
    return tree


def test_an_archive_becomes_an_image_that_says_how_it_starts(store: Store, tmp_path: Path) -> None:
    file = pack(write_layout(tmp_path / "layout", LAYERS, CONFIG), tmp_path / "image.tar")
    made = build_image("mine", Recipe(f"oci-archive:{file}"), store)
    assert made.start.user == "1000:100"
    assert made.start.env == {"PATH": "/usr/bin", "EMPTY": "", "EQUALS": "a=b"}
    assert made.start.workdir == "/work"
    assert made.start.entrypoint == ("/bin/run", "-x")
    assert made.start.cmd == ("go",)
    assert ask(made.path, "cat /new") == "new"
    assert "04755" in ask(made.path, "stat /new")
    shown = " ".join(ask(made.path, "ls -l /").split())
    assert "old" not in shown
    assert " 40755 (2) 1000 100 " in shown
    assert resolve_image("mine", store) == made
    # Another store and another time: the same bytes.
    again = build_image("x", Recipe(f"oci-archive:{file}"), Store(tmp_path / "other"))
    assert again.digest == made.digest


def test_an_image_of_one_file_and_what_lies_beside_it(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "root.ext4"
    path.write_bytes(b"x")
    assert resolve_image(str(path), store).start.env == {}
    path.with_name("root.ext4.json").write_text(json.dumps({"env": {"A": "1"}, "user": "me", "cmd": ["x"]}))
    image = resolve_image(str(path), store)
    assert (image.start.env, image.start.user, image.start.cmd) == ({"A": "1"}, "me", ("x",))
    with pytest.raises(RuntimeUnavailable, match=r"images here: none yet\)\n  remedy: agentenv image build nothing"):
        resolve_image("nothing", store)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON in /"),
        ("[1]", r"expected a JSON object in /.*, got \[1\]"),
        ('{"env": ["A=1"]}', "expected an object of strings as 'env'"),
        ('{"env": {"A": 1}}', "expected an object of strings as 'env'"),
        ('{"cmd": "go"}', "expected a list of strings as 'cmd'"),
        ('{"user": 1000}', "expected a string as 'user'"),
        (r'{"user": "a\u0000"}', "expected a string as 'user'"),
        (r'{"env": {"A": "\ud800"}}', "expected an object of strings as 'env'"),
    ],
)
def test_what_lies_beside_an_image_and_is_wrong(store: Store, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "root.ext4"
    path.write_bytes(b"x")
    path.with_name("root.ext4.json").write_text(text)
    with pytest.raises(RuntimeUnavailable, match=rf"{words}[\s\S]*\n  remedy: such as"):
        resolve_image(str(path), store)


@pytest.mark.parametrize(("said", "expected"), [("app", "/app"), ("", "/"), ("/a/b", "/a/b"), (7, "/"), (None, "/")])
def test_working_directories_begin_at_the_root(tmp_path: Path, said: object, expected: str) -> None:
    layout = write_layout(tmp_path / "layout", [[folder("bin")]], {"WorkingDir": said})
    assert read_layout(layout, layout / "blobs").start.workdir == expected


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
@pytest.mark.parametrize("key", ["Env", "User", "WorkingDir", "Entrypoint", "Cmd"])
def test_what_no_program_can_be_given_is_refused(tmp_path: Path, key: str, text: str) -> None:
    said = f"PATH=/{text}" if key == "Env" else text
    config = {key: said if key in ("User", "WorkingDir") else [said]}
    layout = write_layout(tmp_path / "layout", [[folder("bin")]], config)
    with pytest.raises(ProtocolError, match=f"expected text .*as '{key}' of an OCI image"):
        read_layout(layout, layout / "blobs")


@pytest.mark.parametrize("compression", ["none", "gzip", "members", "zstd"])
def test_layers_however_they_are_compressed(tmp_path: Path, need, compression: str) -> None:
    plain = archive([File("a", os.urandom(300_000)), File("b", b"b")])
    data = plain
    if compression == "gzip":
        data = gzip.compress(plain)
    elif compression == "members":
        data = gzip.compress(plain[:100_000]) + gzip.compress(plain[100_000:]) + bytes(512)
    elif compression == "zstd":
        need("zstd")
        data = subprocess.run(["zstd", "-c", "-q"], input=plain, capture_output=True, check=True).stdout
    (tmp_path / "blob").write_bytes(data)
    blob = Blob(tmp_path / "blob", hashlib.sha256(data).hexdigest(), _Task())
    with decompressed(blob) as stream:
        found = stream.read()
    assert found.rstrip(b"\0") == plain.rstrip(b"\0")
    blob.finish()
    blob.close()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [0.2, 0.9])
def test_layers_that_end_in_the_middle_are_refused(tmp_path: Path, need, compression: str, cut: float) -> None:
    plain = archive([File("a", os.urandom(300_000))])
    if compression == "zstd":
        need("zstd")
        data = subprocess.run(["zstd", "-c", "-q"], input=plain, capture_output=True, check=True).stdout
    else:
        data = gzip.compress(plain)
    layout = write_layout(tmp_path / "layout", [data[: int(len(data) * cut)]])
    with pytest.raises(ProtocolError, match=r"expected a (layer compressed|tar archive)"):
        unpacked(layout, tmp_path / "place")


def test_nothing_is_believed_that_has_another_digest(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS, CONFIG)
    image = read_layout(layout, layout / "blobs")
    blob = layout / "blobs/sha256" / image.layers[1][0]
    other = gzip.compress(archive([File("new", b"evil")]))
    good = blob.read_bytes()
    blob.write_bytes(other)
    with pytest.raises(ProtocolError, match="expected a layer with digest"):
        unpacked(layout, tmp_path / "1")
    assert not blob.exists(), "what is damaged is not found again"
    with pytest.raises(ProtocolError, match="missing"):
        unpacked(layout, tmp_path / "2")
    blob.write_bytes(good)
    manifest = layout / "blobs/sha256" / image.digest
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(ProtocolError, match="digest"):
        unpacked(layout, tmp_path / "3")


def test_a_lying_archive_does_not_reach_the_shared_layers(store: Store, tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS, CONFIG)
    image = read_layout(layout, layout / "blobs")
    (layout / "blobs/sha256" / image.layers[0][0]).write_bytes(b"evil")
    file = pack(layout, tmp_path / "image.tar")
    with pytest.raises(ProtocolError, match="digest"):
        build_image("mine", Recipe(f"oci-archive:{file}"), store)
    assert not (store.blobs / "sha256" / image.layers[0][0]).exists()
    assert os.listdir(store.root / "tmp") == []


@pytest.mark.parametrize("which", ["layer", "manifest"])
@pytest.mark.parametrize("damage", [lambda data: data[:-5], lambda data: data[:-1] + b"x"])
def test_what_the_disk_lost_of_a_layer_is_brought_again(store: Store, tmp_path: Path, which: str, damage) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS, CONFIG)
    file = pack(layout, tmp_path / "image.tar")
    made = build_image("mine", Recipe(f"oci-archive:{file}"), store)
    image = read_layout(layout, layout / "blobs")
    kept = store.blobs / "sha256" / (image.layers[0][0] if which == "layer" else image.digest)
    kept.write_bytes(damage(kept.read_bytes()))
    recipe = Recipe(f"oci-archive:{file}", fresh=True)
    with pytest.raises(ProtocolError, match=r"digest .*; the damaged file was removed, and the same command brings it"):
        build_image("mine", recipe, store)
    assert build_image("mine", recipe, store).digest == made.digest


def test_what_follows_an_archive_in_its_layer_is_read_by_one_alone(tmp_path: Path, need) -> None:
    need("zstd")
    plain = archive([File("a", b"a")]) + os.urandom(8 << 20)
    data = subprocess.run(["zstd", "-c", "-q"], input=plain, capture_output=True, check=True).stdout
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "sha256").mkdir()
    (tmp_path / "sha256" / digest).write_bytes(data)
    tree = Tree.make(tmp_path)
    unpack(OciImage("", ((digest, "", 0),), Start({}), tmp_path), tree, LINES)
    assert (tree.root / "a").read_bytes() == b"a"


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index.update(manifests=[]),
        lambda index: index.update(manifests="x"),
        lambda index: index["manifests"][0].update(digest="sha256:../../../etc/passwd"),
        lambda index: index["manifests"][0].update(digest="md5:00"),
        lambda index: index["manifests"][0].update(platform={"architecture": "s390x"}),
        lambda index: index["manifests"][0].pop("digest"),
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, damage) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS)
    index = json.loads((layout / "index.json").read_text())
    damage(index)
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(ProtocolError, match="expected"):
        read_layout(layout, layout / "blobs")


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", "{", '{"manifests": [{"digest": 3}]}', "\xff"])
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text, encoding="latin-1")
    with pytest.raises(ProtocolError, match="expected"):
        read_layout(tmp_path, tmp_path)


def test_what_is_too_large_to_be_json_is_not_read(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS, CONFIG)
    image = read_layout(layout, layout / "blobs")
    for place in (layout / "blobs/sha256" / image.digest, layout / "index.json"):
        os.truncate(place, 1 << 40)  # of which next to nothing is on the disk; reading it would not end well
        with pytest.raises(ProtocolError, match=r"expected at most 8 MiB of JSON in .*, got 1,099,511,627,776 bytes"):
            read_layout(layout, layout / "blobs")


def test_sizes_of_layers_are_for_the_progress_alone(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS)
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((layout / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_text())
    for layer, size in zip(manifest["layers"], (10**400, -5), strict=True):
        layer["size"] = size
    data = json.dumps(manifest).encode()
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(data)
    index["manifests"][0]["digest"] = f"sha256:{digest}"
    (layout / "index.json").write_text(json.dumps(index))
    assert [size for _, _, size in read_layout(layout, layout / "blobs").layers] == [0, 0]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_archives_may_be_compressed_as_a_whole(store: Store, tmp_path: Path, compress) -> None:
    file = pack(write_layout(tmp_path / "layout", LAYERS, CONFIG), tmp_path / "image.tar")
    whole = compress(file.read_bytes())
    file.write_bytes(whole)
    (tmp_path / "work").mkdir()
    image = open_archive(file, store.blobs, tmp_path / "work", LINES)
    assert image.start.user == "1000:100"
    for number, damaged in enumerate((whole[: len(whole) // 2], whole[:50] + b"x" * 50 + whole[100:])):
        file.write_bytes(damaged)
        (tmp_path / f"{number}").mkdir()
        with pytest.raises(ProtocolError, match="expected"):
            open_archive(file, store.blobs, tmp_path / f"{number}", LINES)


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("blobs/sha256/" + "0" * 64, 65 << 30, "an image of at most 64 GiB"),
        ("something/else", 65 << 30, "an image of at most 64 GiB"),
        ("index.json", 9 << 20, "an index.json of at most 8 MiB"),
    ],
)
def test_archives_that_would_fill_the_disk(store: Store, tmp_path: Path, name: str, size: int, words: str) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(block(name, size=size) + b"\0" * 100_000)
    os.truncate(file, 66 << 30)  # a hole
    (tmp_path / "work").mkdir()
    with pytest.raises(ProtocolError, match=words):
        open_archive(file, store.blobs, tmp_path / "work", LINES)
    assert [path for path in (tmp_path / "work").rglob("*") if path.is_file()] == []


def test_other_archives_are_refused_with_what_to_do(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(archive([File("manifest.json", b"[]")]))
    with pytest.raises(ProtocolError, match=r"skopeo copy docker-archive:x\.tar"):
        build_image("mine", Recipe(f"oci-archive:{file}"), store)
    file.write_bytes(b"no archive")
    with pytest.raises(ProtocolError, match="expected an OCI archive"):
        build_image("mine", Recipe(f"oci-archive:{file}"), store)


def test_an_image_of_another_system_is_passed_by(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", [[folder("bin")]])
    index = json.loads((layout / "index.json").read_text())
    (right,) = index["manifests"]
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    other = {**right, "digest": f"sha256:{'0' * 64}", "platform": {"architecture": architecture, "os": "windows"}}
    index["manifests"] = [other, {**right, "platform": {"architecture": architecture, "os": "linux"}}]
    (layout / "index.json").write_text(json.dumps(index))
    assert f"sha256:{read_layout(layout, layout / 'blobs').digest}" == right["digest"]
    index["manifests"] = [other]
    (layout / "index.json").write_text(json.dumps(index))
    with pytest.raises(ProtocolError, match=f"expected an image for linux/{architecture}, got windows/{architecture}"):
        read_layout(layout, layout / "blobs")


def test_the_first_fitting_image_of_an_index_of_several(tmp_path: Path) -> None:
    layout = write_layout(tmp_path / "layout", LAYERS)
    index = json.loads((layout / "index.json").read_text())
    (right,) = index["manifests"]
    nested = json.dumps({"manifests": [{**right, "platform": {"architecture": "s390x"}}, right]}).encode()
    digest = hashlib.sha256(nested).hexdigest()
    (layout / "blobs/sha256" / digest).write_bytes(nested)
    entry = {"digest": f"sha256:{digest}", "mediaType": "application/vnd.oci.image.index.v1+json"}
    (layout / "index.json").write_text(json.dumps({"manifests": [entry]}))
    assert f"sha256:{read_layout(layout, layout / 'blobs').digest}" == right["digest"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, need) -> Iterator[str]:
    """A real one, on the loopback interface."""
    need("docker-registry", "skopeo")
    place = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = place / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {place}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    argv = [need_program("docker-registry", "to test"), "serve", str(config)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None, "the registry has ended"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    poll(answers, "an answer of the registry", 30)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


def push(layout: Path, reference: str) -> None:
    argv = ["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false"]
    subprocess.run([*argv, f"oci:{layout}:image", f"docker://{reference}"], check=True, capture_output=True)


def test_an_image_of_a_registry(store: Store, tmp_path: Path, registry: str) -> None:
    push(write_layout(tmp_path / "1", LAYERS, CONFIG), f"{registry}/team/env:1")
    made = build_image("mine", Recipe(f"oci:{registry}/team/env:1"), store)
    assert ask(made.path, "cat /new") == "new"
    assert made.start.cmd == ("go",)
    blobs = {path: path.stat().st_mtime_ns for path in (store.blobs / "sha256").iterdir()}
    # The tag moves: the next build sees it, and fetches only the layer that is new.
    push(write_layout(tmp_path / "2", [*LAYERS, [File("newer", b"newer")]], CONFIG), f"{registry}/team/env:1")
    newer = build_image("mine", Recipe(f"oci:{registry}/team/env:1"), store)
    assert newer.digest != made.digest
    assert ask(newer.path, "cat /newer") == "newer"
    after = {path: path.stat().st_mtime_ns for path in (store.blobs / "sha256").iterdir()}
    assert {path: after.get(path) for path in blobs} == blobs
    assert len(after) == len(blobs) + 3
    assert os.listdir(store.root / "tmp") == []


def test_an_image_that_is_not_there(store: Store, registry: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"fetching .*/nothing.*skopeo ended with exit code"):
        build_image("mine", Recipe(f"oci:{registry}/nothing:1"), store)
    assert os.listdir(store.root / "tmp") == []


def test_a_dockerfile(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need) -> None:
    (tmp_path / "Dockerfile").write_text('FROM scratch\nCOPY hello /bin/hello\nENV A=1\nCMD ["/bin/hello"]\n')
    (tmp_path / "hello").write_text("hello")
    recipe = Recipe(str(tmp_path / "Dockerfile"))
    with monkeypatch.context() as patch:
        patch.setattr("agentenv.images.fetching.find_program", lambda name: None)
        with pytest.raises(RuntimeUnavailable, match="apt-get install buildah"):
            build_image("mine", recipe, store)
    need("buildah")
    made = build_image("mine", recipe, store)
    assert ask(made.path, "cat /bin/hello") == "hello"
    assert made.start.cmd == ("/bin/hello",)
    assert made.start.env["A"] == "1"


_AS_A_USER = """
import os, sys
from pathlib import Path
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
os.setgroups([]); os.setgid(53999); os.setuid(53999); os.umask(0o022)
os.environ.update(HOME=sys.argv[1], XDG_RUNTIME_DIR="")
store = Store(Path(sys.argv[1]) / "store")
print(build_image("mine", Recipe(sys.argv[1] + "/Dockerfile"), store).size_bytes)
print(os.listdir(store.root / "tmp"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give numbers of others to a user")
def test_nothing_is_left_of_a_dockerfile_that_a_user_builds(tmp_path: Path, need) -> None:
    need("buildah", "newuidmap", "unshare", "mkfs.ext4", "mount")
    user = "agentenv-test:x:53999:53999::/:/bin/sh\n"
    for name, line in (("passwd", user), ("group", "agentenv-test:x:53999:\n"), ("subuid", ""), ("subgid", "")):
        there = Path("/etc", name).read_text() if Path("/etc", name).exists() else None
        if there is None:
            pytest.skip(f"no /etc/{name} here to show another one in its place")
        (tmp_path / name).write_text(f"{there}{line or 'agentenv-test:2000000:65536'}\n")
    shown = "".join(
        f"mount --bind {tmp_path}/{name} /etc/{name} && " for name in ("passwd", "group", "subuid", "subgid")
    )
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="agentenv-test-") as home:
        (Path(home) / "Dockerfile").write_text("FROM scratch\nCOPY --chown=1000:100 file /home/app/below/file\n")
        (Path(home) / "file").write_text("x")
        os.chmod(home, 0o755)
        os.chown(home, 53999, 53999)
        argv = ["unshare", "-m", "sh", "-c", f'{shown} exec "$@"', "sh", sys.executable, "-c", _AS_A_USER, home]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    if "cannot" in done.stderr and "user namespace" in done.stderr:
        pytest.skip(f"buildah does not run as a user here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["[]"]


def test_a_directory_that_is_none_of_the_forms(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--project: expected a directory"):
        build_image("mine", Recipe(str(tmp_path), project=tmp_path / "none"), store)


def test_reading_in_pieces(tmp_path: Path) -> None:
    data = gzip.compress(bytes(range(256)) * 4000)
    (tmp_path / "blob").write_bytes(data)
    blob = Blob(tmp_path / "blob", hashlib.sha256(data).hexdigest(), _Task())
    pieces = io.BytesIO()
    with decompressed(blob) as stream:
        while piece := stream.read(777):
            pieces.write(piece)
    assert pieces.getvalue() == bytes(range(256)) * 4000
    blob.close()
