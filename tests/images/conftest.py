"""A store of its own for each test, and one for what is dear to make."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.images.kernels import Kernel, fetch_kernel
from agentenv.images.programs import need_program
from agentenv.images.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def dear_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Shared by the tests of a process: kernels and tools are the same for all."""
    return Store(tmp_path_factory.mktemp("images") / "store")


@pytest.fixture(scope="session")
def need() -> Callable[..., None]:
    """Skips a test whose programs are not there, and says how to get them."""

    def check(*programs: str) -> None:
        for program in programs:
            try:
                need_program(program, "for this test")
            except RuntimeUnavailable as error:
                pytest.skip(str(error))

    return check


@pytest.fixture(scope="session")
def distribution_kernel(dear_store: Store, need: Callable[..., None]) -> Kernel:
    """The kernel of this system's packages, fetched once."""
    need("apt-get", "dpkg-deb", "depmod", "lz4")
    try:
        return fetch_kernel(dear_store)
    except RuntimeUnavailable as error:
        pytest.skip(f"no kernel to be had here: {error}")


@pytest.fixture(autouse=True)
def _private_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test touches the user's own store."""
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path / "default"))
    shutil.rmtree(tmp_path / "default", ignore_errors=True)
