"""Every channel this machine can run, through the published suite."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from agentenv.config import Config, config_from_keywords
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.testing.channels import ChannelSuite, OpenLink
from agentenv.testing.leftovers import becomes_true
from agentenv.testing.samples import PATIENT
from agentenv.wire import slot

pytestmark = pytest.mark.filterwarnings("ignore")


class FleetLink:
    """A link over real sandboxes."""

    def __init__(self, context: RunContext, config: Config, envs_per_group: int) -> None:
        members = config.expand()
        self.fleet = Fleet(context, members, envs_per_sandbox=envs_per_group, in_vector=True)
        self.channel = self.fleet.channel
        column = self.channel.arena.column
        self.actions: NDArray[np.float64] = column(self.fleet.slot.action, np.float64)
        self.observations: NDArray[np.float64] = column(self.fleet.slot.observation, np.float64, (4,))
        self.max_bytes = members[0].max_message_mb << 20
        self.outbox_bytes = self.fleet.slot.outbox_size
        self._lengths = column(slot.OUT_LENGTH, np.uint64)

    def kill(self, group: int) -> None:
        os.kill(self.fleet.sandboxes[group].pid, signal.SIGKILL)
        assert becomes_true(lambda: not self.fleet.sandboxes[group].alive(), 10)

    def forge(self, index: int, *, status: int, length: int) -> None:
        self.channel.status[index] = status
        self._lengths[index] = length

    def close(self) -> None:
        self.fleet.close()


class _OverShm(ChannelSuite):
    runtime = ""

    @pytest.fixture(scope="class")
    def context(self) -> Iterator[tuple[RunContext, str]]:
        config = config_from_keywords(PATIENT, runtime=self.runtime)
        context = RunContext(config, config.expand(), record=False)
        yield context, self.runtime
        context.close()

    @pytest.fixture
    def open_link(self, context: tuple[RunContext, str]) -> Iterator[OpenLink]:
        links: list[FleetLink] = []

        def open_one(num_envs: int, envs_per_group: int) -> FleetLink:
            config = config_from_keywords(PATIENT, count=num_envs, runtime=context[1])
            links.append(FleetLink(context[0], config, envs_per_group))
            return links[-1]

        yield open_one
        for link in links:
            link.close()


class TestShmInBubblewrap(_OverShm):
    runtime = "bubblewrap"


class TestShmWithoutIsolation(_OverShm):
    runtime = "process"
