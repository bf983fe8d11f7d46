"""When states are saved: what a setting means, and that "auto" keeps its promise about what saving may cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.fleet.cadence import FIRST_S, LEAST_S, SHARE, Cadence


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("auto", Cadence(auto=True)),
        ("never", Cadence()),
        (1, Cadence(steps=1)),
        (1000, Cadence(steps=1000)),
        ("2.5s", Cadence(seconds=2.5)),
        ("10 s", Cadence(seconds=10.0)),
    ],
)
def test_what_a_setting_means(setting: Any, expected: Cadence) -> None:
    assert Cadence.parse(setting) == expected


@pytest.mark.parametrize("setting", [0, -1, True, 2.5, "", "often", "0s", "-1s", "5", "5m", "s", "1e3s", None, []])
def test_what_is_no_setting(setting: Any) -> None:
    with pytest.raises(ValueError, match='expected "auto", "never", a number of steps') as caught:
        Cadence.parse(setting)
    assert repr(setting) in str(caught.value)


@given(step_s=st.floats(1e-7, 5.0), costs=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30))
def test_auto_spends_at_most_its_share_whatever_a_step_takes(step_s: float, costs: list[float]) -> None:
    """An account of a run: saving i costs ``costs[i]``, and the busy time that follows pays for it."""
    cadence = Cadence(auto=True)
    first = cadence.next_busy_s(0.0, None)
    assert first == FIRST_S
    busy_s, spent_s = steps_until(first, step_s), 0.0
    for cost_s in costs:
        spent_s += cost_s
        due = cadence.next_busy_s(busy_s, cost_s)
        assert due >= busy_s + LEAST_S
        busy_s = steps_until(due, step_s, busy_s)
        assert spent_s <= (SHARE * (busy_s - FIRST_S)) * (1 + 1e-9) + 1e-12
        assert spent_s / busy_s <= 0.03


def steps_until(due: float, step_s: float, begun: float = 0.0) -> float:
    """Busy seconds when the first step ends at which it is due."""
    whole = max(0, int((due - begun) / step_s) - 1)
    busy_s = begun + whole * step_s
    while busy_s < due:
        busy_s += step_s
    return busy_s


@given(busy_s=st.floats(0, 1e6), cost_s=st.floats(0, 1e3))
def test_auto_saves_sooner_where_saving_is_cheaper(busy_s: float, cost_s: float) -> None:
    cadence = Cadence(auto=True)
    assert cadence.next_busy_s(busy_s, cost_s / 2) <= cadence.next_busy_s(busy_s, cost_s)
    assert cadence.next_busy_s(busy_s, cost_s) <= cadence.next_busy_s(busy_s + 1.0, cost_s)


@pytest.mark.parametrize("cadence", [Cadence(), Cadence(steps=3), Cadence(seconds=1.0)])
@pytest.mark.parametrize("cost_s", [None, 0.0, 1.0])
def test_other_rules_never_ask_by_cost(cadence: Cadence, cost_s: float | None) -> None:
    assert cadence.next_busy_s(5.0, cost_s) == float("inf")
