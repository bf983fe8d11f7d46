"""Every runtime this machine can run, through the published suite."""

from __future__ import annotations

from typing import ClassVar

import pytest

from agentenv.testing.runtimes import RuntimeSuite

pytestmark = pytest.mark.filterwarnings("ignore")


class TestBubblewrap(RuntimeSuite):
    settings: ClassVar = {"runtime": "bubblewrap"}


class TestBubblewrapNeverNested(RuntimeSuite):
    """Every environment with an interpreter of its own: fewer of them, for they start slowly."""

    settings: ClassVar = {"runtime": "bubblewrap"}
    nested = "never"
    many = 12
    cycles = 6


class TestProcess(RuntimeSuite):
    settings: ClassVar = {"runtime": "process"}
