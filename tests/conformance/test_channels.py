"""Every channel this machine can run, through the published suite."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from agentenv.channel.contract import PeerLost
from agentenv.config import Config, config_from_keywords
from agentenv.fleet.context import RunContext
from agentenv.fleet.fleet import Fleet
from agentenv.fleet.pacing import Pace
from agentenv.testing.channels import TIMEOUT_S, ChannelSuite, OpenLink, reset, step
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
    pace = Pace.EAGER

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
            if self.pace is not Pace.EAGER:
                links[-1].fleet.set_pace(self.pace, TIMEOUT_S)
            return links[-1]

        yield open_one
        for link in links:
            link.close()


class TestShmInBubblewrap(_OverShm):
    runtime = "bubblewrap"


class TestShmWithoutIsolation(_OverShm):
    runtime = "process"


class TestShmStandingBy(_OverShm):
    runtime = "bubblewrap"
    pace = Pace.STAND_BY

    def test_who_says_it_looks_and_sleeps_is_late(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        reset(link)
        awake = link.channel.arena.column(slot.AWAKE, np.uint64)
        assert becomes_true(lambda: not awake[0], 10)
        (guest,) = psutil.Process(link.fleet.sandboxes[0].pid).children()  # who answers; above it is the cell's first
        assert becomes_true(lambda: guest.status() == psutil.STATUS_SLEEPING, 10)  # it says so a moment before
        awake[0] = 1
        link.channel.post(slot.Op.STEP, None, None, timeout_s=0.3)
        with pytest.raises(PeerLost) as caught:
            link.channel.wait()
        assert (caught.value.group, caught.value.timed_out) == (0, True)
        link.channel.abandon(0)
        link.channel.wait()
        step(link, [1])

    def test_who_never_sleeps_weighs_less(self, open_link: OpenLink, monkeypatch: pytest.MonkeyPatch) -> None:
        link, told = open_link(2, 1), []
        monkeypatch.setattr(link.fleet.context.runtime, "weigh", lambda modestly: told.append(modestly))
        for pace in (Pace.PATIENT, Pace.STAND_BY, Pace.EAGER):
            link.fleet.set_pace(pace, TIMEOUT_S)
        assert told == [False, True, False]

    def test_a_change_of_pace_finds_everybody(self, open_link: OpenLink) -> None:
        link = open_link(3, 1)
        reset(link)
        for number in range(1, 200):
            link.fleet.set_pace(list(Pace)[number % 3], TIMEOUT_S)
            time.sleep(number % 7 * 3e-4)
            step(link)
            np.testing.assert_array_equal(link.observations[:, 0], [number] * 3)
