"""Admission as properties of a pure function: never more than fits, nobody starves, refusals are final."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import RuntimeUnavailable
from agentenv.fleet.admission import Machine, Need, Verdict, decide, next_starts, refuse_impossible

needs = st.lists(st.builds(Need, st.text("abc", min_size=1), st.integers(1, 5000), st.floats(0.1, 64)), max_size=20)
machines = st.builds(Machine, st.integers(1, 20_000), st.integers(1, 64))
limits = st.none() | st.integers(1, 10)


@given(needs, machines, limits)
def test_what_runs_always_fits(waiting: list[Need], machine: Machine, limit: int | None) -> None:
    count = next_starts(waiting, [], machine, max_parallel=limit)
    started = waiting[:count]
    assert sum(need.memory_mb for need in started) <= machine.available_mb
    assert limit is None or count <= limit


@given(needs, machines, limits)
def test_everybody_runs_in_the_end_in_order(waiting: list[Need], machine: Machine, limit: int | None) -> None:
    queue = [need for need in waiting if need.memory_mb <= machine.available_mb]
    rounds = 0
    while queue:
        count = next_starts(queue, [], machine, max_parallel=limit)
        assert count >= 1, "with nobody running, the head of the queue starts"
        queue = queue[count:]
        rounds += 1
    assert rounds <= len(waiting)


@given(needs, needs, machines, limits)
def test_a_refusal_does_not_depend_on_who_runs(
    asking: list[Need], running: list[Need], machine: Machine, limit: int | None
) -> None:
    for need in asking:
        alone = decide(need, [], machine, max_parallel=limit)
        beside = decide(need, running, machine, max_parallel=limit)
        assert (alone.verdict is Verdict.REFUSE) == (beside.verdict is Verdict.REFUSE)
        assert (beside.verdict is Verdict.START) == (beside.reason == "")


@given(needs, machines)
def test_processors_are_no_bar(waiting: list[Need], machine: Machine) -> None:
    more = Machine(machine.available_mb, machine.cpus + 1)
    assert next_starts(waiting, [], machine) == next_starts(waiting, [], more)


def test_refusals_name_everybody_and_say_what_to_do() -> None:
    machine = Machine(1000, 2)
    with pytest.raises(RuntimeUnavailable, match="'big' declares memory_mb = 2000") as caught:
        refuse_impossible([Need("ok", 1000), Need("big", 2000), Need("vast", 9000)], machine)
    assert "vast" in str(caught.value)
    assert "lower memory_mb" in caught.value.remedy
    refuse_impossible([Need("ok", 1000)] * 10, machine)


def test_this_machine_is_measured() -> None:
    machine = Machine.measure()
    assert machine.available_mb > 0
    assert machine.cpus >= 1
