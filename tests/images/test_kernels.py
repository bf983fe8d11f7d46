"""Kernels: out of whatever they are compressed in, with the modules they need, from packages and from files."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.server
import json
import lzma
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, RuntimeUnavailable
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
        [b"", b"text", elf(machine=183), bzimage(b"unknown" * 100), bzimage(gzip.compress(elf())[:-40]), elf()[:50]]
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


def test_a_missing_busybox_is_named(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("agentenv.images.programs._SYSTEM", ())
    with pytest.raises(RuntimeUnavailable, match="apt-get install busybox-static"):
        find_busybox()
