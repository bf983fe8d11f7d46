"""Kernels: out of whatever they are compressed in, with the modules they need, from packages and from files."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import http.server
import json
import lzma
import os
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, RuntimeUnavailable
from agentenv.images import vmlinux
from agentenv.images.initramfs import find_busybox, initramfs_for
from agentenv.images.kernels import Kernel, download_kernel, list_kernels, resolve_kernel, take_kernel
from agentenv.images.store import Store
from agentenv.images.vmlinux import read_kernel
from hand_made_kernels import elf


def bzimage(payload: bytes) -> bytes:
    """A setup of one sector, and in the part behind it some code and the payload."""
    setup = bytearray(1024)
    setup[0x1F1] = 1
    setup[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", setup, 0x248, 300, len(payload))
    return bytes(setup) + b"\x90" * 300 + payload + b"tail"


def compress(name: str, data: bytes) -> bytes:
    size = struct.pack("<I", len(data))
    if name == "gzip":
        return gzip.compress(data)
    if name == "xz":
        return lzma.compress(data, format=lzma.FORMAT_XZ) + size
    if name == "lzma":
        return lzma.compress(data, format=lzma.FORMAT_ALONE) + size
    if name == "bzip2":
        return bz2.compress(data) + size
    argv = {"lz4": ["lz4", "-l", "-c"], "zstd": ["zstd", "-c", "-q"]}[name]
    return subprocess.run(argv, input=data, capture_output=True, check=True).stdout + size


# The first bytes of lzma are too common to be searched for.
COMPRESSIONS = [("lzma", True)]
COMPRESSIONS += [(name, told) for name in ("gzip", "xz", "bzip2", "lz4", "zstd") for told in (True, False)]


@pytest.mark.parametrize(("name", "told"), COMPRESSIONS)
def test_an_uncompressed_kernel_from_a_bzimage(tmp_path: Path, need, name: str, told: bool) -> None:
    if name in ("lz4", "zstd"):
        need(name)
    image = bytearray(bzimage(compress(name, elf())))
    if not told:
        struct.pack_into("<II", image, 0x248, 0, 0)
    (tmp_path / "vmlinuz").write_bytes(image)
    kernel = read_kernel(tmp_path / "vmlinuz")
    assert kernel.data == elf()
    assert kernel.version == "6.9.9-test"
    assert kernel.pvh


def test_what_is_no_kernel_is_refused(tmp_path: Path, store: Store) -> None:
    for number, data in enumerate(
        [
            *(
                b"",
                b"text",
                elf(machine=183),
                bzimage(b"unknown" * 100),
                bzimage(gzip.compress(elf())[:-40]),
                elf()[:50],
            ),
            *(bzimage(b"")[:length] for length in (0x206, 0x24A, 0x250)),
        ]
    ):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="expected a"):
            take_kernel(store, path)
    path = tmp_path / "old"
    path.write_bytes(elf(pvh=False))
    with pytest.raises(RuntimeUnavailable, match="CONFIG_PVH=y"):
        take_kernel(store, path)
    with pytest.raises(RuntimeUnavailable, match="CONFIG_PVH=y"):
        resolve_kernel(str(path), store)
    with pytest.raises(ConfigError, match="expected a file"):
        take_kernel(store, tmp_path / "none")
    assert list_kernels(store) == []


def test_a_kernel_is_called_by_its_file_as_far_as_that_can_be(tmp_path: Path, store: Store) -> None:
    for file, name in (
        ("my kernel (2)", "my-kernel-2"),
        ("..", "6.9.9-test"),
        ("\u00e9", "6.9.9-test"),
        ("v6.9+", "v6.9+"),
    ):
        (path := tmp_path / f"_{file}").write_bytes(elf())
        assert take_kernel(store, path).name == name
    path.write_bytes(elf(version="6.9/../x\u00e9"))
    path = path.rename(tmp_path / "-")
    assert take_kernel(store, path).name == "6.9-..-x"
    with pytest.raises(ConfigError, match="--name: expected letters"):
        take_kernel(store, path, name="a b")
    with pytest.raises(ConfigError, match="--name: expected letters"):
        download_kernel(store, "http://127.0.0.1:1/never-asked", "00" * 32, name="../x")


@pytest.mark.parametrize("place", [32, 64 + 8], ids=["headers", "a note"])
@pytest.mark.parametrize("at", [2**64 - 1, 2**63, 2**62])
def test_a_kernel_whose_parts_lie_nowhere_is_refused(tmp_path: Path, store: Store, place: int, at: int) -> None:
    path = tmp_path / "vmlinux"
    data = bytearray(elf())
    struct.pack_into("<Q", data, place, at)
    path.write_bytes(data)
    for take in (lambda: take_kernel(store, path), lambda: resolve_kernel(str(path), store)):
        with pytest.raises(RuntimeUnavailable, match="CONFIG_PVH=y"):
            take()


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_kernel_is_unpacked_up_to_a_limit(
    tmp_path: Path, store: Store, need, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    need(name)
    monkeypatch.setattr(vmlinux, "_MOST", 1 << 20)
    (tmp_path / "bomb").write_bytes(bzimage(compress(name, elf() + bytes(8 << 20))))
    with pytest.raises(ConfigError, match=f"{name} cannot unpack .*: it is larger than 1 MiB"):
        take_kernel(store, tmp_path / "bomb")


def test_a_kernel_that_says_where_it_lies_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    decompress = vmlinux._decompress
    monkeypatch.setattr(vmlinux, "_decompress", lambda *given: tried.append(given[1]) or decompress(*given))
    for version, most in ((0x208, 0), (0x207, 100)):
        image = bytearray(bzimage(b"\0" + b"\x1f\x8b\x08" * 1000))
        struct.pack_into("<H", image, 0x206, version)
        (tmp_path / "odd").write_bytes(image)
        with pytest.raises(ConfigError, match="expected a kernel compressed by"):
            read_kernel(tmp_path / "odd")
        assert len(tried) == most


def test_which_kernel_a_configuration_means(tmp_path: Path, store: Store) -> None:
    with pytest.raises(RuntimeUnavailable, match="agentenv kernel fetch"):
        resolve_kernel(None, store)
    for version in ("6.2", "6.1"):
        (tmp_path / version).write_bytes(bzimage(gzip.compress(elf(version=version))))
        take_kernel(store, tmp_path / version, name=f"k{version}")
    assert resolve_kernel("k6.2", store).version == "6.2"
    assert resolve_kernel(None, store).version == "6.1", "the one that was fetched last"
    unnamed = resolve_kernel(str(tmp_path / "6.2"), store)
    assert (unnamed.version, unnamed.name, unnamed.path) == ("6.2", "", resolve_kernel("k6.2", store).path)
    assert resolve_kernel(None, store).version == "6.1", (
        "naming a file in a configuration does not make it the usual one"
    )
    own = tmp_path / "vmlinux"
    own.write_bytes(elf(version="own"))
    found = resolve_kernel(str(own), store)
    assert found == Kernel(own, (), "own", hashlib.sha256(elf(version="own")).hexdigest(), source=str(own))
    with pytest.raises(RuntimeUnavailable, match=r"got 'none' \(kernels here: .*k6\.2"):
        resolve_kernel("none", store)


def test_the_kernel_fetched_last_where_the_clock_was_ahead_before(tmp_path: Path, store: Store) -> None:
    for version in ("6.1", "6.2", "6.3"):
        (tmp_path / version).write_bytes(bzimage(gzip.compress(elf(version=version))))
        take_kernel(store, tmp_path / version, name=f"k{version}")
        assert resolve_kernel(None, store).version == version
        (record,) = (store.root / "names").glob(f"*/k{version}.json")
        known = json.loads(record.read_text())
        known["fetched"] = f"{2099 - known['number']}-01-01T00:00:00.000000+00:00"
        if version == "6.1":
            del known["number"]  # as an older version wrote it
        record.write_text(json.dumps(known))


def test_a_kernel_from_the_network_must_be_the_one_that_was_meant(tmp_path: Path, store: Store) -> None:
    data = elf(version="net")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/vmlinux" else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_arguments: object) -> None:
            return None

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/vmlinux"
        with pytest.raises(ConfigError, match="expected a file with SHA-256 00"):
            download_kernel(store, url, "00" * 32)
        kernel = download_kernel(store, url, hashlib.sha256(data).hexdigest().upper())
        assert (kernel.name, kernel.version, kernel.source) == ("vmlinux", "net", url)
        with pytest.raises(RuntimeUnavailable, match="404"):
            download_kernel(store, url + "x", "00" * 32)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(RuntimeUnavailable, match="expected to fetch a kernel"):
        download_kernel(store, url, "00" * 32)


@pytest.mark.parametrize(
    ("answer", "path", "error"),
    [
        (b"garbage\r\n\r\n", "k", RuntimeUnavailable),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc", "k", RuntimeUnavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nabc", "k", RuntimeUnavailable),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "a b", RuntimeUnavailable),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "..", ConfigError),
        (b"HTTP/1.1 200 OK\r\n\r\nabc", "k" * 300, ConfigError),
    ],
    ids=["no HTTP", "cut short", "no length", "no address", "no name", "a long name"],
)
def test_what_answers_in_place_of_a_kernel(store: Store, answer: bytes, path: str, error: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            server.settimeout(20)
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error, match=r"expected to fetch a kernel|expected a file with SHA-256"):
            download_kernel(store, f"http://127.0.0.1:{server.getsockname()[1]}/{path}", "00" * 32)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_the_distributions_kernel(distribution_kernel: Kernel, dear_store: Store) -> None:
    kernel = distribution_kernel
    assert kernel.path.read_bytes()[:4] == b"\x7fELF"
    names = [path.name.partition("-")[2].removesuffix(".ko").replace("-", "_") for path in kernel.modules]
    assert len(names) == len(set(names))
    if "virtio_blk" in names:
        assert names.index("virtio") < names.index("virtio_blk")
    if "vmw_vsock_virtio_transport" in names:
        assert names.index("vsock") < names.index("vmw_vsock_virtio_transport")
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in kernel.modules)
    assert resolve_kernel(kernel.name, dear_store) == kernel


def test_the_first_file_system(distribution_kernel: Kernel, dear_store: Store, tmp_path: Path, need) -> None:
    need("busybox", "cpio")
    path = initramfs_for(distribution_kernel, dear_store)
    assert initramfs_for(distribution_kernel, dear_store) == path
    subprocess.run(["cpio", "-idm", "--quiet"], input=path.read_bytes(), cwd=tmp_path, check=True)
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "bin/busybox").read_bytes() == find_busybox().read_bytes()
    assert (tmp_path / "dev/console").is_char_device()
    there = sorted(one.name for one in (tmp_path / "modules").iterdir())
    assert there == [one.name for one in distribution_kernel.modules]
    # What a shell would stumble over before anything is mounted.
    subprocess.run([find_busybox(), "sh", "-n", tmp_path / "init"], check=True)


@pytest.mark.parametrize("what", ["pipe", "link", "module"])
def test_a_package_with_something_else_in_place_of_its_files(tmp_path: Path, store: Store, need, what: str) -> None:
    need("dpkg-deb", "depmod", "modprobe")
    root = tmp_path / "root"
    for name in ("boot", "lib/modules/6.9", "DEBIAN"):
        (root / name).mkdir(parents=True)
    (root / "DEBIAN/control").write_text("Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n")
    image = root / "boot/vmlinuz-6.9"
    if what == "pipe":
        os.mkfifo(image)
    elif what == "link":
        image.symlink_to("/dev/zero")
    else:
        image.write_bytes(elf())
        (root / "lib/modules/6.9/modules.builtin").write_text(
            "".join(f"kernel/{name}.ko\n" for name in ("virtio_mmio", "virtio_blk", "overlay"))
        )
        (root / "lib/modules/6.9/ext4.ko.xz").write_bytes(b"damaged")
    subprocess.run(["dpkg-deb", "-b", root, tmp_path / "x.deb"], capture_output=True, check=True)
    words = (
        "expected a whole module, and ext4" if what == "module" else "expected a kernel and its modules in the package"
    )
    with pytest.raises(RuntimeUnavailable, match=words):
        take_kernel(store, tmp_path / "x.deb")


def test_a_missing_busybox_is_named(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("agentenv.images.programs._SYSTEM", ())
    with pytest.raises(RuntimeUnavailable, match="apt-get install busybox-static"):
        find_busybox()
