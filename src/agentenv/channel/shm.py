"""The channel over shared memory: a memory file and two bells for each sandbox.

The host rings each sandbox, then sleeps on the sandboxes' own bells, last one first: when the last that was woken has
answered, the others usually have too, and need no system call. What counts is the ticket in memory; a bell is only a
reason to look. Sandboxes that look (``guest.waiting``) are not rung, and ring only when they are slept on. No bell
or page is shared between two sandboxes.

Somebody else watches for deaths and deadlines and calls ``interrupt``, which rings the host's own bell; so the wait
itself needs no poll and no timer.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import get_ident

from agentenv.channel import spill
from agentenv.channel.arena import Arena, create_memory
from agentenv.channel.bell import RING, Bell
from agentenv.channel.contract import PeerLost
from agentenv.channel.group import Group
from agentenv.errors import ClosedError, ConcurrentUse, ProtocolError, ResourceLimit
from agentenv.guest.control import ControlClosed
from agentenv.wire import slot
from agentenv.wire.slot import Flag, Op, SlotLayout
from agentenv.wire.spin import ORDERED, Spin

_TWO_THREADS = "another thread is waiting for an answer here: give each thread its own environment"
_STUCK_S = 0.05
_LOOKS = 2


class ShmChannel:
    """See ``agentenv.channel.contract.Channel``.

    Attributes:
        arena: The mapped slots of all environments.
        deadline: ``time.monotonic()`` at which the running wait is too late, or None while nobody waits. The watch
            reads it.
    """

    def __init__(self, counts: Sequence[int], layout: SlotLayout, *, max_bytes: int, spin_us: float = 0) -> None:
        """Reserve room for groups of ``counts`` environments each; ``attach`` then joins the groups one by one."""
        self.count = sum(counts)
        self.layout = layout
        self.arena = Arena(self.count, layout.size)
        self.groups: list[Group | None] = [None] * len(counts)
        self.deadline: float | None = None
        self._counts = list(counts)
        self._firsts = [sum(counts[:i]) for i in range(len(counts))]
        self._max_bytes = max_bytes
        self._own: dict[int, bytes] = {}
        self._closed = False
        self._ticket = 0
        self._at: Group | None = None
        self._posting = False
        self._user: int | None = None
        self._suspect: tuple[int, Group | None, float, int] = (0, None, 0.0, 0)
        self._looks: Callable[[], int] | None = None
        self._asked: list[Group] = []
        self._everybody: list[Group] = []
        self._shared_slots = max(counts) > 1
        self._spin = Spin(spin_us)
        self._quiet = self._spin.wanted and ORDERED
        self._group_of = [g for g, n in enumerate(counts) for _ in range(n)]
        self._stride = layout.size // 8
        column = self.arena.column
        self._tickets = column(slot.TICKET, "u8")
        self._ops = column(slot.OP, "u8")
        self._in_lengths = column(slot.IN_LENGTH, "u8")
        self.status = column(slot.STATUS, "u8")
        self.rewards = column(slot.REWARD, "f8")
        self.outcomes = column(slot.OUTCOME, "u8", (slot.OUTCOME_WORDS,))
        self._words = self.arena.words()
        self._raw = memoryview(self.arena.bytes)  # type: ignore[arg-type]  # numpy arrays are buffers
        self._last_op: Op | None = None

    def attach(self, index: int, control: socket.socket) -> tuple[int, int, int]:
        """Create memory and bells of group ``index`` (anew, when it had some) and map them.

        Returns:
            Descriptors for the guest: memory file, bell to wait on, bell to ring. The caller sends them, closes the
            memory file and calls ``attached``; the bells stay this object's. Until then the group is lost.

        Raises:
            ResourceLimit: Out of memory or descriptors; the group has what it had before.
        """
        with ExitStack() as undo:
            wake = Bell.create()
            undo.callback(wake.close)
            done = Bell.create()
            undo.callback(done.close)
            if wake.writer != wake.reader:
                # A guest that answers without ever reading its bell would fill it and make the host's write block.
                os.set_blocking(wake.writer, False)
            memory = self._map(index)
            undo.pop_all()
        old, first = self.groups[index], self._firsts[index]
        places = (slot.GROUP_TICKET, slot.GROUP_DONE, slot.QUIET, slot.AWAKE)
        ticket, answered, quiet, awake = (first * self._stride + place // 8 for place in places)
        self.groups[index] = Group(first, control, wake, done, ticket, answered, quiet, awake, wake.writer, done.reader)
        self._words[quiet] = self._quiet
        self._renew()
        if old is not None:
            self._free(old)  # last: until then its numbers are written to
        return memory, wake.reader, done.writer

    def attached(self, index: int) -> None:
        """The guest has its descriptors: give up the end of the bell that only it may read, and expect answers."""
        group = self.groups[index]
        if group is not None:
            group.wake.close_reader()
            group.lost = False

    def post(
        self,
        op: Op,
        members: Sequence[int] | None = None,
        payloads: Sequence[bytes] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        """Ask environments for something; see the contract."""
        if self._closed:
            raise ClosedError("the channel is closed")
        me = get_ident()
        if self._user is not None and self._user != me:
            raise ConcurrentUse(_TWO_THREADS)
        self._user = me
        spills: list[tuple[Group, bytes]] = []
        try:
            ticket = self._ticket = self._ticket + 1
            if members is None:
                if op is not self._last_op:
                    self._ops[...] = op
                    self._last_op = op
                if payloads is not None:
                    for index, data in enumerate(payloads):
                        self._put(index, data, spills)
                if self._shared_slots:
                    self._tickets[...] = ticket
                asked = self._everybody
            else:
                self._last_op = None
                for position, index in enumerate(members):
                    self._ops[index] = op
                    self._tickets[index] = ticket
                    if payloads is not None:
                        self._put(index, payloads[position], spills)
                numbers = dict.fromkeys([self._group_of[index] for index in members])
                asked = [group for number in numbers if (group := self.groups[number])]
            self._asked = asked
            words, wake = self._words, self._wake
            self._posting = True
            self.deadline = time.monotonic() + timeout_s
            # Who looks needs no bell, where ``wait`` follows: it rings once more if the look was over just then.
            quiet = self._quiet and op is not Op.CLOSE
            for group in asked:
                words[group.ticket_at] = ticket
                self._at = group
                if not (quiet and words[group.awake_at]):
                    wake(group)
            self.deadline = time.monotonic() + timeout_s
            self._posting = False
            while spills:
                group, data = spills[0]
                self._at = group
                try:
                    spill.send(group.control, data)
                except OSError:
                    group.lost = True
                del spills[0]
        except BaseException:  # such as an interruption: nobody will wait for what was asked
            for group, _ in spills:
                group.lost = True  # it takes what comes next for what it was promised
            self._posting, self._user, self._at, self.deadline = False, None, None, None
            raise

    def refuse_others(self) -> None:
        """See to it that no other thread waits here; see the contract.

        Raises:
            ConcurrentUse: One does.
        """
        if self._user is not None and self._user != get_ident():
            raise ConcurrentUse(_TWO_THREADS)

    def wait(self) -> None:
        """Wait for everybody who was asked; see the contract."""
        words, read, ticket, spin = self._words, os.read, self._ticket, self._spin
        try:
            for group in reversed(self._asked):
                at = group.done_at
                if words[at] == ticket or (spin.wanted and spin.until_equal(words, at, ticket)):
                    continue
                self._at = group
                if self._quiet:
                    self._ask_for_ring(group)
                while words[at] != ticket:
                    if group.lost:
                        raise PeerLost(self._group_of[group.first], timed_out=group.timed_out)
                    read(group.done_fd, 512)  # more than one ring may lie there
                words[group.quiet_at] = self._quiet
        except PeerLost:
            raise  # the others are waited for until the same deadline
        except BlockingIOError:
            raise PeerLost(self._group_of[self._at.first], broken="made its bell non-blocking") from None  # type: ignore[union-attr]  # set in the loop
        except BaseException:  # such as an interruption: nobody waits any more, so nobody is late
            self._at = self.deadline = None
            raise
        finally:
            self._user = None
        self._at = None
        self.deadline = None

    def be_quiet(self, wanted: bool) -> None:
        """Whether to be rung only while sleeping; see the contract."""
        self._quiet = (wanted or self._spin.wanted) and ORDERED
        for group in self._everybody:
            self._words[group.quiet_at] = self._quiet

    def be_loud(self, looks: Callable[[], int]) -> None:
        """Be rung for every answer from now on: somebody else sleeps on the bells, and nobody calls ``wait`` for it.

        Args:
            looks: How often whoever does has looked who rang.
        """
        self._spin, self._looks = Spin(0), looks
        self.be_quiet(False)

    def interrupt(self, index: int, *, timed_out: bool = False) -> None:
        """Declare a group lost and wake whoever waits for it. Called from the watch's thread, for a dead sandbox.

        To be called again while ``late`` still names it: what the sandbox has left behind may have taken the ring.
        """
        group = self.groups[index]
        if group is None:
            return
        if not group.lost:
            group.timed_out = timed_out
            group.lost = True
        if not self._closed:
            group.done.ring()
            if group.wake.reader >= 0:
                group.wake.clear()  # the host's write may be waiting for room

    def late(self) -> list[int]:
        """The groups still expected to answer, for the watch to act on when the deadline has passed.

        One that the host has been waiting at for a while counts as well, whether it has answered, or is lost already:
        it, or a process it has left behind, may have taken back the ring. While the host still asks, only that one can
        be to blame: it made the bell it is woken by look full, and those after it were not asked yet.
        """
        at, ticket, now = self._at, self._ticket, time.monotonic()
        looks = 0 if self._looks is None else self._looks()
        if self._suspect[:2] != (ticket, at):
            self._suspect = (ticket, at, now, looks)
        stuck = at is not None and now - self._suspect[2] >= _STUCK_S
        if self._looks is not None:
            # Who does something else between two looks has not been left without a ring yet.
            stuck = stuck and looks - self._suspect[3] >= _LOOKS
        posting, words = self._posting, self._words
        return [
            self._group_of[group.first]
            for group in self._asked
            if (stuck and group is at) or not (group.lost or posting or words[group.done_at] == ticket)
        ]

    def answered(self, index: int) -> bool:
        """Whether a group that was asked has answered, or never will."""
        group = self.groups[index]
        return group is None or group.lost or self._words[group.done_at] == self._ticket

    def payload(self, index: int) -> bytes:
        """A private copy of one answer's payload; see the contract."""
        if index in self._own:
            return self._own[index]
        base = index * self._stride
        length = int(self._words[base + slot.OUT_LENGTH // 8])
        flags = int(self.status[index])
        if length > self._max_bytes:
            raise ProtocolError(f"states an answer of {length} bytes; at most {self._max_bytes} are accepted")
        if flags & Flag.SPILLED:
            number = self._group_of[index]
            group = self.groups[number]
            assert group is not None
            try:
                return spill.receive(group.control, length)
            except (ControlClosed, OSError) as error:
                raise PeerLost(number) from error
            except BaseException:
                group.lost = True  # the rest of it would be read as the next
                raise
        if length > self.layout.outbox_size:
            raise ProtocolError(f"states {length} bytes in an area of {self.layout.outbox_size}")
        start = index * self.layout.size + self.layout.outbox
        return bytes(self._raw[start : start + length])

    def group_of(self, index: int) -> int:
        """The group that holds environment ``index``."""
        return self._group_of[index]

    def abandon(self, group: int) -> None:
        """Stop expecting anything from a group; whoever asks it again is told at once that it is lost."""
        held = self.groups[group]
        if held is not None:
            held.lost = True
            self._words[held.done_at] = 0  # no ticket: it may have answered questions yet to come
            self._asked = [group for group in self._asked if group is not held]

    def retire(self, index: int) -> None:
        """Give a group memory that no sandbox holds, and never ask it again: the host answers in its place."""
        os.close(self._map(index))
        old, self.groups[index] = self.groups[index], None
        self._renew()
        if old is not None:
            self._free(old)

    def put_answer(self, index: int, flags: int, payload: bytes) -> None:
        """Answer in place of a retired environment. The payload stays on the host, and need not fit into the slot."""
        self._own[index] = payload
        self.rewards[index] = 0.0
        self.status[index] = flags

    def close(self) -> None:
        """Free descriptors; the memory goes with the last array over it. Idempotent."""
        if not self._closed:
            self._closed = True
            for group in self.groups:
                if group is not None:
                    group.lost = True
                    group.done.ring()  # another thread may be waiting
                    self._free(group)

    def _map(self, index: int) -> int:
        """New memory for a group, in the place of what it had; returns its descriptor."""
        memory = create_memory(self._counts[index] * self.layout.size, f"agentenv-{index}")
        try:
            self.arena.attach(self._firsts[index], self._counts[index], memory)
        except ResourceLimit:
            os.close(memory)
            raise
        return memory

    def _wake(self, group: Group) -> None:
        if group.lost:
            return
        group.rung = self._ticket
        try:
            os.write(group.wake_fd, RING)
        except BlockingIOError:
            pass  # full: it has more reasons to look than it has read
        except BrokenPipeError:
            group.lost = True

    def _ask_for_ring(self, group: Group) -> None:
        """Before sleeping on a group that was told to be quiet; see ``guest.waiting``.

        Each side writes its word, gives way, which orders memory, and looks at the other's: one of them sees.
        """
        self._words[group.quiet_at] = 0
        os.sched_yield()
        if group.rung != self._ticket and not self._words[group.awake_at]:
            self._wake(group)  # it fell asleep while it was asked

    def _renew(self) -> None:
        self._everybody = [group for group in self.groups if group is not None]
        self._last_op = None

    def _put(self, index: int, data: bytes, spills: list[tuple[Group, bytes]]) -> None:
        self._in_lengths[index] = len(data)
        if len(data) > self.layout.inbox_size:
            group = self.groups[self._group_of[index]]
            if group is not None and not group.lost:
                spills.append((group, data))
            return
        start = index * self.layout.size + self.layout.inbox
        self.arena.bytes[start : start + len(data)] = memoryview(data)

    def _free(self, group: Group) -> None:
        group.wake.close()
        group.done.close()
