"""What every channel has to do, as a class of tests: subclass it and say how to open a link.

    class TestMyChannel(ChannelSuite):
        @pytest.fixture
        def open_link(self):
            ...  # a function (num_envs, envs_per_group) -> Link

The other side of a link is real: environments of class ``Patient`` in processes of their own. Whether hostile guests
are withstood is asked by forging what they would write; the attack suite does it from inside.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from agentenv.channel.contract import Channel, PeerLost
from agentenv.errors import ClosedError, ProtocolError
from agentenv.wire.slot import Flag, Op
from agentenv.wire.values import decode, encode

TIMEOUT_S = 20.0
_MAX_BYTES = 1 << 30


class Link(Protocol):
    """A channel and the means to treat its other side badly.

    Attributes:
        channel: Under test, joined to ``Patient`` environments.
        actions: float64 array (n,), where the action of each environment is written before a step.
        observations: float64 array (n, 4), where the observations appear.
        max_bytes: The largest payload accepted.
        outbox_bytes: The largest answer that needs no way around.
    """

    channel: Channel
    actions: NDArray[np.float64]
    observations: NDArray[np.float64]
    max_bytes: int
    outbox_bytes: int

    def kill(self, group: int) -> None:
        """End the process of a group by SIGKILL; returns when it is gone."""

    def forge(self, index: int, *, status: int, length: int) -> None:
        """Write what a lying environment would."""

    def close(self) -> None:
        """End everything. Idempotent."""


OpenLink = Callable[[int, int], Link]


def ask(link: Link, name: str, *arguments: Any, members: list[int] | None = None) -> list[Any]:
    """Call a method of environments through the bare channel and return the values."""
    chosen = list(range(link.channel.count)) if members is None else members
    link.channel.post(Op.CALL, members, [encode([name, list(arguments), {}])] * len(chosen), timeout_s=TIMEOUT_S)
    link.channel.wait()
    return [decode(link.channel.payload(index), max_bytes=_MAX_BYTES) for index in chosen]


def step(link: Link, members: list[int] | None = None) -> None:
    """One step of some environments."""
    link.channel.post(Op.STEP, members, None, timeout_s=TIMEOUT_S)
    link.channel.wait()


def reset(link: Link) -> None:
    """Reset all environments."""
    link.channel.post(Op.RESET, None, [encode([None, None])] * link.channel.count, timeout_s=TIMEOUT_S)
    link.channel.wait()


class ChannelSuite:
    """See the module."""

    @pytest.fixture
    def open_link(self) -> OpenLink:
        """How to open a link; a driver's test class overrides this."""
        raise NotImplementedError

    @pytest.mark.parametrize("per_group", [1, 2, 5])
    def test_answers_belong_to_the_request_before(self, open_link: OpenLink, per_group: int) -> None:
        link = open_link(5, per_group)
        reset(link)
        for number in range(1, 200):
            link.actions[...] = np.arange(5) / 10 + number
            step(link)
            np.testing.assert_array_equal(link.channel.rewards, number + np.arange(5) / 10 + number)
            np.testing.assert_array_equal(link.observations, np.full((5, 4), number))
            assert not link.channel.status.any()

    @pytest.mark.parametrize("per_group", [1, 2])
    def test_only_the_members_that_were_asked_move(self, open_link: OpenLink, per_group: int) -> None:
        link = open_link(5, per_group)
        reset(link)
        link.actions[...] = 0
        for members in ([0, 3], [3], [1, 2, 3, 4], [4]):
            step(link, members)
        np.testing.assert_array_equal(link.observations[:, 0], [1, 1, 1, 3, 2])
        step(link)
        np.testing.assert_array_equal(link.observations[:, 0], [2, 2, 2, 4, 3])

    @pytest.mark.parametrize("per_group", [1, 3])
    def test_payloads_of_every_size_go_both_ways(self, open_link: OpenLink, per_group: int) -> None:
        link = open_link(3, per_group)
        edge = link.outbox_bytes
        for length in (0, 1, 300, 511, 512, 513, 1024, edge - 64, edge, edge + 64, 3_000_000):
            data = bytes(range(256)) * (length // 256) + bytes(length % 256)
            assert ask(link, "echo", data) == [data] * 3
        reset(link)
        step(link)
        np.testing.assert_array_equal(link.observations[:, 0], [1, 1, 1])

    def test_an_exception_is_an_answer_and_the_next_request_works(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        reported = ask(link, "raises", "on purpose")
        assert [report[:2] for report in reported] == [["ValueError", "on purpose"]] * 2
        assert all(int(status) & Flag.ERROR for status in link.channel.status)
        assert ask(link, "echo", 1) == [1, 1]
        assert not any(int(status) & Flag.ERROR for status in link.channel.status)

    def test_lengths_that_cannot_be_true_are_refused(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        ask(link, "echo", 1)
        for length in (link.max_bytes + 1, 1 << 63, (1 << 64) - 1):
            for status in (Flag.VALUE, Flag.VALUE | Flag.SPILLED):
                link.forge(0, status=int(status), length=length)
                with pytest.raises(ProtocolError, match="bytes"):
                    link.channel.payload(0)
        link.forge(0, status=int(Flag.VALUE), length=link.outbox_bytes + 1)
        with pytest.raises(ProtocolError, match="bytes"):
            link.channel.payload(0)
        assert decode(link.channel.payload(1), max_bytes=_MAX_BYTES) == 1

    def test_a_payload_is_a_copy(self, open_link: OpenLink) -> None:
        """What was checked must not change under the one who parses it."""
        link = open_link(1, 1)
        ask(link, "echo", "first")
        kept = link.channel.payload(0)
        ask(link, "echo", "other")
        assert decode(kept, max_bytes=_MAX_BYTES) == "first"

    def test_who_is_asked_after_any_pause_answers(self, open_link: OpenLink) -> None:
        """Also where both sides have just gone to sleep, or are about to."""
        link = open_link(3, 1)
        reset(link)
        for number in range(1, 301):
            time.sleep(number % 30 * 1e-4)
            step(link)
            np.testing.assert_array_equal(link.observations[:, 0], [number] * 3)

    def test_a_loss_in_the_middle_names_the_group_and_spares_the_others(self, open_link: OpenLink) -> None:
        link = open_link(5, 2)
        reset(link)
        step(link)
        link.kill(1)
        link.channel.post(Op.STEP, None, None, timeout_s=TIMEOUT_S)
        with pytest.raises(PeerLost) as caught:
            link.channel.wait()
        assert (caught.value.group, caught.value.timed_out) == (1, False)
        link.channel.abandon(1)
        link.channel.wait()
        np.testing.assert_array_equal(link.observations[[0, 1, 4], 0], [2, 2, 2])
        step(link, [0, 1, 4])
        np.testing.assert_array_equal(link.observations[[0, 1, 4], 0], [3, 3, 3])

    def test_a_group_that_was_given_up_is_lost_to_every_later_request(self, open_link: OpenLink) -> None:
        """Without waiting for it, whatever it may have answered before."""
        link = open_link(3, 1)
        reset(link)
        link.kill(1)
        link.channel.abandon(1)
        for number in (1, 2):
            link.channel.post(Op.STEP, None, None, timeout_s=TIMEOUT_S)
            with pytest.raises(PeerLost) as caught:
                link.channel.wait()
            assert caught.value.group == 1
            link.channel.abandon(1)
            link.channel.wait()
            np.testing.assert_array_equal(link.observations[[0, 2], 0], [number, number])

    def test_a_loss_while_it_is_waited_for_ends_the_wait(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        link.channel.post(Op.CALL, [0], [encode(["hang", [], {}])], timeout_s=TIMEOUT_S)
        link.kill(0)
        with pytest.raises(PeerLost) as caught:
            link.channel.wait()
        assert caught.value.group == 0

    def test_late_is_lost_and_never_an_answer_to_the_next(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        reset(link)
        link.channel.post(Op.CALL, None, [encode(["hang", [], {}]), encode(["echo", ["quick"], {}])], timeout_s=0.2)
        with pytest.raises(PeerLost) as caught:
            link.channel.wait()
        assert (caught.value.group, caught.value.timed_out) == (0, True)
        link.channel.abandon(0)
        link.channel.wait()
        assert decode(link.channel.payload(1), max_bytes=_MAX_BYTES) == "quick"
        assert ask(link, "echo", "next", members=[1]) == ["next"]

    def test_close_twice_and_no_request_afterwards(self, open_link: OpenLink) -> None:
        link = open_link(2, 1)
        link.channel.close()
        link.channel.close()
        with pytest.raises(ClosedError):
            link.channel.post(Op.STEP, None, None, timeout_s=TIMEOUT_S)

    def test_no_descriptor_is_left(self, open_link: OpenLink) -> None:
        open_link(3, 1).close()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            link = open_link(3, 1)
            reset(link)
            link.close()
            link.close()
        assert len(os.listdir("/proc/self/fd")) == before
