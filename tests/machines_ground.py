"""What tests of machines stand on: a kernel and the image that examples use, fetched and built once per computer."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.fleet.machines import DEFAULT_IMAGE
from agentenv.images.image import resolve_image
from agentenv.images.kernels import fetch_kernel, list_kernels
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store

_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "depmod": "kmod",
}


@functools.cache
def provide() -> str:
    """Have everything there; returns "" or why that cannot be."""
    logging.getLogger("agentenv.images").setLevel(logging.WARNING)
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program, path=_path()) is None]
    if missing:
        return f"missing: apt-get install {' '.join(missing)}"
    store = Store.default()
    try:
        if not list_kernels(store):
            fetch_kernel(store)
        try:
            resolve_image(DEFAULT_IMAGE, store)
        except RuntimeUnavailable:
            build_image(DEFAULT_IMAGE, Recipe("debian:bookworm", pip=("gymnasium", "numpy")), store)
    except RuntimeUnavailable as error:
        return str(error)
    return ""


def need_machines() -> None:
    """Skip, saying what is missing, where machines cannot be booted."""
    if why := provide():
        pytest.skip(why)


def need_image(name: str, recipe: Recipe) -> str:
    """The name of an image like that, made once for all tests to come; skips where it cannot be had."""
    need_machines()
    try:
        build_image(name, recipe, Store.default())
    except RuntimeUnavailable as error:
        pytest.skip(f"no image of {recipe.source} to be had here: {error}")
    return name


def make_drive(directory: Path, name: str = "data.img", text: str = "content") -> Path:
    """An ext4 image with one file, for machines to mount."""
    mkfs = shutil.which("mkfs.ext4", path=_path())
    if mkfs is None:
        pytest.skip("missing: apt-get install e2fsprogs")
    source = directory / f"{name}.d"
    source.mkdir()
    (source / "file").write_text(text)
    subprocess.run([mkfs, "-q", "-d", source, directory / name, "1M"], check=True, capture_output=True)
    return directory / name


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
