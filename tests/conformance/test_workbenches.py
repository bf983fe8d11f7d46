"""Machines used by hand: the published suite on QEMU."""

from __future__ import annotations

from typing import ClassVar

import pytest

from agentenv.testing.workbenches import WorkbenchSuite
from machines_ground import need_machines

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    """What has to be fetched first."""
    need_machines()


class TestQemu(WorkbenchSuite):
    """By emulation, where there is no KVM."""

    settings: ClassVar = {"runtime": "qemu", "memory_mb": 256}
