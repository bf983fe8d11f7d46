"""The history of what was asked: whatever happens to it, it reads like a plain list of everything that was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from agentenv.fleet import journal as module
from agentenv.fleet.journal import Journal
from agentenv.wire.slot import OUTCOME_WORDS, Op

COUNT, SIZE, ROWS = 3, 5, 4


@dataclass
class Entry:
    """What one request was, in full."""

    op: Op
    members: tuple[int, ...]
    payloads: dict[int, bytes]
    actions: NDArray[np.uint8] | None
    outcomes: NDArray[np.uint64] | None = None

    def asked(self, index: int) -> bytes:
        fixed = b"" if self.actions is None else self.actions[index].tobytes()
        return fixed + self.payloads.get(index, b"")


def outcomes_of(number: int, count: int = COUNT) -> NDArray[np.uint64]:
    found = np.empty((count, OUTCOME_WORDS), np.uint64)
    found[:, 0] = np.arange(count) + 1000 * number
    found[:, 1] = (np.arange(count) + number / 7).view(np.uint64)
    found[:, 2] = np.uint64(2**63) + np.arange(count, dtype=np.uint64) * np.uint64(number + 1)
    return found


def make(count: int = COUNT, size: int = SIZE, rows: int = ROWS) -> Journal:
    """A journal whose blocks hold so few steps that several are in use."""
    made = Journal(count, size)
    made._least_rows = made._most_rows = rows
    return made


class AgainstAList(RuleBasedStateMachine):
    """Random requests, answers, losses and trims, each compared with a list that forgets nothing."""

    @initialize(rows=st.integers(1, 5), count=st.integers(1, 4))
    def begin(self, rows: int, count: int) -> None:
        self.count = count
        self.journal = make(count, SIZE, rows)
        self.model: list[Entry] = []
        self.pending: Entry | None = None
        self.serial = 0
        self.reopened = False

    def _actions(self, seed: int) -> NDArray[np.uint8]:
        return np.random.default_rng(seed).integers(0, 256, (self.count, SIZE), np.uint8)

    @precondition(lambda self: self.pending is None)
    @rule(seed=st.integers(0, 99))
    def ask_for_a_step(self, seed: int) -> None:
        actions = self._actions(seed)
        self.journal.note_step(actions)
        self.pending = Entry(Op.STEP, tuple(range(self.count)), {}, actions.copy())
        actions[...] = 0  # memory that is used again

    @precondition(lambda self: self.pending is None)
    @rule(data=st.data(), op=st.sampled_from([Op.RESET, Op.CALL, Op.SET]), everybody=st.booleans())
    def ask_some(self, data: st.DataObject, op: Op, everybody: bool) -> None:
        chosen = st.lists(st.integers(0, self.count - 1), min_size=1, max_size=self.count, unique=True)
        members = None if everybody else data.draw(chosen)
        asked = list(range(self.count)) if members is None else members
        payloads = data.draw(st.lists(st.binary(max_size=9), min_size=len(asked), max_size=len(asked)))
        self.journal.note(op, members, payloads)
        self.pending = Entry(op, tuple(asked), dict(zip(asked, payloads, strict=True)), None)

    @precondition(lambda self: self.pending is None)
    @rule(data=st.data(), seed=st.integers(0, 99))
    def ask_for_a_step_with_payloads(self, data: st.DataObject, seed: int) -> None:
        actions = self._actions(seed)
        payloads = data.draw(st.lists(st.binary(max_size=9), min_size=self.count, max_size=self.count))
        self.journal.note(Op.STEP, None, payloads, actions)
        self.pending = Entry(Op.STEP, tuple(range(self.count)), dict(enumerate(payloads)), actions.copy())
        actions[...] = 0

    @precondition(lambda self: self.pending is not None)
    @rule()
    def answer(self) -> None:
        assert self.pending is not None
        self.serial += 1
        outcomes = outcomes_of(self.serial, self.count)
        self.journal.commit(outcomes)
        self.pending.outcomes = outcomes.copy()
        outcomes[...] = 0
        self.model.append(self.pending)
        self.pending, self.reopened = None, False

    @precondition(lambda self: self.pending is not None)
    @rule()
    def give_up(self) -> None:
        self.journal.drop()
        self.pending, self.reopened = None, False

    @precondition(lambda self: self.pending is None and len(self.model) > self.journal.start)
    @rule()
    def lose_the_last_answer(self) -> None:
        self.journal.reopen()
        self.pending, self.reopened = self.model.pop(), True

    @rule(share=st.floats(0, 1.2))
    def trim(self, share: float) -> None:
        before, wanted = self.journal.start, int(self.journal.position * share)
        self.journal.trim(wanted)
        assert before <= self.journal.start <= max(wanted, before)

    @rule()
    def nothing_pending_is_committed(self) -> None:
        if self.pending is None:
            self.journal.commit(outcomes_of(999, self.count))

    @invariant()
    def positions_agree(self) -> None:
        assert self.journal.position == len(self.model)
        assert 0 <= self.journal.start <= self.journal.position

    @invariant()
    def the_pending_action_is_known(self) -> None:
        for index in range(self.count):
            found = self.journal.action(index)
            if self.pending is None or self.pending.actions is None:
                assert found is None
            else:
                assert found is not None
                assert found.tobytes() == self.pending.actions[index].tobytes()

    @rule(index=st.integers(0, 3), share=st.floats(0, 1))
    def since(self, index: int, share: float) -> None:
        index %= self.count
        start = self.journal.start + round(share * (self.journal.position - self.journal.start))
        past = self.journal.since(index, start)
        expected = [(n, e) for n, e in enumerate(self.model) if n >= start and index in e.members]
        assert past.positions.tolist() == [number for number, _ in expected]
        assert past.outcomes.shape == (len(expected), OUTCOME_WORDS)
        wanted = [e.outcomes[index].tolist() for _, e in expected if e.outcomes is not None]
        assert past.outcomes.tolist() == wanted
        assert past.binding.tolist() == [e.op in (Op.STEP, Op.RESET) for _, e in expected]
        singly = past.singly()
        assert [(op, count, bytes(data)) for op, count, data in singly] == [
            (int(e.op), 1, e.asked(index)) for _, e in expected
        ]
        assert sum(count for _, count, _ in past.segments) == len(expected)

    @rule(index=st.integers(0, 3), count=st.integers(0, 12))
    def recent(self, index: int, count: int) -> None:
        index %= self.count
        kept = [e for e in self.model[self.journal.start :] if index in e.members][-count or len(self.model) :]
        found = self.journal.recent(index, count)
        assert len(found) == len(kept)
        for entry, wanted in zip(found, kept, strict=True):
            assert wanted.outcomes is not None
            assert entry["op"] == wanted.op.name.lower()
            assert entry["status"] == int(wanted.outcomes[index, 0])
            assert entry["reward"] == float(wanted.outcomes[index, 1:2].view(np.float64)[0])
            if wanted.actions is not None:
                assert entry["action"].tobytes() == wanted.actions[index].tobytes()
            else:
                assert "action" not in entry


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, report_multiple_bugs=False)


def step(journal: Journal, number: int) -> None:
    journal.note_step(np.full((COUNT, SIZE), number, np.uint8))
    journal.commit(outcomes_of(number))


@given(steps=st.integers(0, 30), cut=st.integers(0, 30))
def test_trimming_keeps_everything_from_the_position_on(steps: int, cut: int) -> None:
    journal = make()
    for number in range(steps):
        step(journal, number)
    journal.trim(cut)
    # Whole blocks go, and no more of them than may: less than one block before the position stays.
    assert min(cut, steps) - ROWS < journal.start <= min(cut, steps)
    for start in range(journal.start, steps + 1):
        assert journal.since(1, start).positions.tolist() == list(range(start, steps))


def test_trimming_spares_what_is_pending() -> None:
    journal = make()
    for number in range(ROWS):
        step(journal, number)
    journal.note(Op.RESET, [1], [b"seed"])
    journal.trim(99)
    journal.commit(outcomes_of(7))
    assert journal.since(1, ROWS).segments == [[int(Op.RESET), 1, b"seed"]]
    assert journal.since(0, ROWS).segments == []


def test_memory_is_given_back_and_counted() -> None:
    journal = make()
    assert journal.nbytes == 0
    for number in range(10 * ROWS):
        step(journal, number)
    held = journal.nbytes
    assert held >= 10 * ROWS * COUNT * (SIZE + 8 * OUTCOME_WORDS)
    journal.trim(journal.position - 1)
    assert journal.nbytes * 5 <= held
    journal.note(Op.CALL, None, [b"x" * 1000] * COUNT)
    assert journal.nbytes >= 3000


@pytest.mark.parametrize("episode", [1, 20, 500, 100_000])
def test_what_is_kept_takes_little_more_than_it_is(episode: int) -> None:
    journal = Journal(COUNT, SIZE)
    for number in range(2000):
        if number % episode == 0:
            journal.note(Op.RESET, None, [b""] * COUNT)
            journal.commit(outcomes_of(number))
        step(journal, number % 256)
    kept = 2000 * COUNT * (SIZE + 8 * OUTCOME_WORDS)
    assert kept <= journal.nbytes <= kept * (20 if episode == 1 else 5)


def test_a_block_is_bounded_whatever_an_action_takes() -> None:
    with mock.patch.object(module.np, "empty", wraps=np.empty) as empty:
        journal = Journal(64, 100_000)
        journal.note_step(np.zeros((64, 100_000), np.uint8))
    largest = max(int(np.prod(call.args[0])) for call in empty.call_args_list)
    assert largest <= 16 * 64 * 100_000


def test_consecutive_steps_are_one_segment() -> None:
    journal = make(rows=100)
    for number in range(50):
        step(journal, number)
    journal.note(Op.RESET, None, [b"a", b"b", b"c"])
    journal.commit(outcomes_of(1))
    step(journal, 3)
    segments = journal.since(2, 0).segments
    assert [(op, count) for op, count, _ in segments] == [(Op.STEP, 50), (Op.RESET, 1), (Op.STEP, 1)]
    assert segments[0][2] == b"".join(bytes([number] * SIZE) for number in range(50))


@pytest.mark.parametrize("value", [np.inf, -0.0, np.nan, 1e-320])
def test_a_reward_keeps_its_bits(value: Any) -> None:
    journal = make()
    journal.note_step(np.zeros((COUNT, SIZE), np.uint8))
    outcomes = np.zeros((COUNT, OUTCOME_WORDS), np.uint64)
    outcomes[:, 1] = np.array([value] * COUNT).view(np.uint64)
    journal.commit(outcomes)
    found = journal.recent(0, 1)[0]["reward"]
    assert np.float64(found).tobytes() == np.float64(value).tobytes()


@pytest.mark.parametrize("last", ["step", "request", "full"])
def test_a_copy_begins_with_what_another_holds_and_each_goes_on_alone(last: str) -> None:
    def step(journal: Journal, number: int) -> None:
        journal.note_step(np.full((COUNT, SIZE), number, np.uint8))
        journal.commit(outcomes_of(number))

    first, alone = make(), make()
    numbers = range(ROWS if last == "full" else 2)
    for made in (first, alone):
        made.note(Op.RESET, None, [b"a", b"b", b"c"])
        made.commit(outcomes_of(99))
        for number in numbers:
            step(made, number)
        if last == "request":
            made.note(Op.CALL, (1,), [b"called"])
            made.commit(outcomes_of(98))
    second = make()
    second.inherit(first)
    assert (second.position, second.start, second.nbytes) == (first.position, first.start, first.nbytes)
    for number in range(50, 60):
        step(second, number)
        step(first, number + 50)
        step(alone, number + 50)
    inherited = alone.position - 10
    for index in range(COUNT):
        past, other, wanted = (made.since(index, 0) for made in (second, first, alone))
        assert other.segments == wanted.segments
        assert np.array_equal(other.outcomes, wanted.outcomes)
        assert np.array_equal(past.outcomes[:-10], wanted.outcomes[:-10])
        actions = [data[:SIZE] for op, _, data in past.singly() if op == Op.STEP]
        assert [data[0] for data in actions] == [*numbers, *range(50, 60)]
    second.trim(second.position)
    assert first.start == 0
    assert (first.since(0, inherited).positions == np.arange(inherited, inherited + 10)).all()
    assert second.nbytes <= first.nbytes
