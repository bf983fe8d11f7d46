"""What keeps machines from starting: named before anything starts where that can be seen, else in the words of the
first program that noticed, with what helps; and nothing is left.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentVectorEnv, load_config
from agentenv.errors import AgentEnvError, ResourceLimit, RuntimeUnavailable
from agentenv.fleet import machines as machines_module
from agentenv.fleet.machines import DEFAULT_IMAGE
from agentenv.images.image import resolve_image
from agentenv.images.kernels import resolve_kernel
from agentenv.images.store import Store
from agentenv.testing import traces
from machines_ground import need_machines
from sandbox.vm.planted import initramfs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for what these tests make; nothing else may be left there, nor in the process."""
    made = tmp_path_factory.mktemp("place")
    homes, templates = made / "homes", made / "templates"
    homes.mkdir()
    monkeypatch.setattr(machines_module, "_TEMPLATES", str(templates))
    monkeypatch.setattr(tempfile, "tempdir", str(homes))
    before = traces.take()
    yield made
    assert traces.take().left_since(before) == []
    assert list(homes.iterdir()) == []
    assert [path for path in templates.glob("*") if path.is_dir()] == []


def start(qemu: dict[str, Any] | None = None, **keys: Any) -> None:
    """Try to start an environment in a machine."""
    environment = {"id": "a", "env": "CartPole-v1", "memory_mb": 128, "start_timeout_s": 90.0, **keys}
    table = {"global": {"runtime": "qemu"}, "environments": [environment], "qemu": qemu or {}}
    AgentVectorEnv(load_config(table)).close()


def image() -> Path:
    return resolve_image(DEFAULT_IMAGE, Store.default()).path


def _directory(place: Path) -> dict[str, Any]:
    return {"rootfs_image": str(place)}


def _text(place: Path) -> dict[str, Any]:
    (place / "image").write_text("a list of what should be in it\n" * 1000)
    return {"rootfs_image": str(place / "image")}


def _empty(place: Path) -> dict[str, Any]:
    (place / "image").touch()
    return {"rootfs_image": str(place / "image")}


def _cut_short(place: Path) -> dict[str, Any]:
    with open(image(), "rb") as whole:
        (place / "image").write_bytes(whole.read(1 << 20))
    return {"rootfs_image": str(place / "image")}


def _no_kernel(place: Path) -> dict[str, Any]:
    (place / "vmlinux").write_bytes(b"\x7fELF" + bytes(5000))
    return {"kernel_image": str(place / "vmlinux")}


def _half_a_kernel(place: Path) -> dict[str, Any]:
    with open(resolve_kernel(None, Store.default()).path, "rb") as whole:
        (place / "vmlinux").write_bytes(whole.read(3 << 20))
    return {"kernel_image": str(place / "vmlinux")}


@pytest.mark.parametrize(
    ("plant", "what", "helps"),
    [
        (lambda _: {"qemu": {"binary": "/no/qemu"}}, "QEMU: '/no/qemu' is not an executable", r"binary in \[qemu\]"),
        (lambda _: {"qemu": {"binary": "/bin/true"}}, "expected /bin/true --version to tell a", "apt-get install"),
        (lambda _: {"rootfs_image": "/no/image"}, "name of an image as rootfs_image, got '/no/image'", "image build"),
        (lambda _: {"rootfs_image": "absent"}, "name of an image as rootfs_image, got 'absent'", "image build"),
        (lambda _: {"kernel_image": "/no/vmlinux"}, "as kernel_image, got '/no/vmlinux'", "agentenv kernel fetch"),
        (_directory, "as rootfs_image, got the directory '", "agentenv image build .* --from"),
        (_text, "image: expected an ext4 or squashfs file system, it begins with b'a li'", "agentenv image build"),
        (_empty, "image: expected an ext4 or squashfs file system, it is empty", "agentenv image build"),
        (_cut_short, "image: it is cut short: expected .* bytes, got 1048576", "copy it again"),
        (_no_kernel, "expected a kernel for x86-64", "vmlinux holds another kind of file"),
        (_half_a_kernel, "vmlinux", ""),
        (lambda _: {"memory_mb": 64}, "memory_mb = 64: .* needs at least 128", "set memory_mb = 128"),
        (lambda _: {"memory_mb": 1 << 24}, "memory_mb = 16777216: this host has", "lower memory_mb"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_before_anything_starts(
    place: Path, plant: Callable[[Path], dict[str, Any]], what: str, helps: str
) -> None:
    with pytest.raises(AgentEnvError, match=f"(?s){what}.*{helps}"):
        start(**plant(place))


def _not_to_be_mounted(place: Path) -> dict[str, Any]:
    """It says that it is ext4; all but its superblock is zeros."""
    size = image().stat().st_size
    with open(image(), "rb") as whole, open(place / "image", "wb") as file:
        file.write(whole.read(4096))
        file.truncate(size)
    return {"rootfs_image": str(place / "image")}


@pytest.mark.parametrize(
    ("parts", "plant", "what", "helps"),
    [
        ({"modules": False}, lambda _: {}, "init: waiting for /dev/vda: it did not|vda: it did not", "kernel fetch"),
        ({}, _not_to_be_mounted, "mounting the image /dev/vda", "build it anew, or correct rootfs_image"),
        ({"script": "no program"}, lambda _: {}, "its kernel found nothing to start", "raise memory_mb"),
    ],
    ids=["no modules", "no file system", "no init"],
)
def test_what_shows_in_the_machine_alone_is_told_in_its_words(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: dict[str, Any],
    plant: Callable[[Path], dict[str, Any]],
    what: str,
    helps: str,
) -> None:
    monkeypatch.setattr(machines_module, "initramfs_for", initramfs(place, **parts))
    with pytest.raises(RuntimeUnavailable, match=f"(?s)({what}).*{helps}"):
        start({"boot_args": "agentenv.wait_s=1"}, **plant(place))


def test_a_full_disk_for_templates(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    monkeypatch.setattr(machines_module, "_TEMPLATES", str(small_disk / "templates"))
    with pytest.raises(ResourceLimit, match=r"(?s)cannot keep a machine's snapshot in .*No space left.*AGENTENV_CACHE"):
        start()
    assert [path.suffix for path in (small_disk / "templates").iterdir()] == [".lock"]


def test_a_full_disk_for_what_is_temporary(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize - 4096))
    with pytest.raises(ResourceLimit, match=r"(?s)cannot give a machine .*No space left.*TMPDIR=DIR"):
        start()
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_place_for_what_is_temporary_that_is_gone(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "homes/gone"))
    with pytest.raises(AgentEnvError, match=r"(?s)cannot keep the machines' own files in .*gone.*TMPDIR=DIR"):
        start()
