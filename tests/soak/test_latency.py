from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.soak.latency import Latencies


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_within_a_bucket_of_the_true_ones(durations: list[int], share: float) -> None:
    counted = Latencies()
    for duration in durations:
        counted.add(duration)
    true = float(np.percentile(durations, 100 * share, method="inverted_cdf"))
    found = counted.percentile(share)
    assert found is not None
    assert true * (1 - 1 / 32) <= found <= true * (1 + 1 / 32) + 1
    assert counted.count == len(durations)


def test_begins_anew_and_has_no_percentile_of_nothing() -> None:
    counted = Latencies()
    assert counted.percentile(0.5) is None
    counted.add(1000)
    assert counted.percentile(0.5) == pytest.approx(1000, rel=0.04)
    counted.clear()
    assert counted.percentile(0.5) is None
    counted.add(0)
    assert counted.percentile(0.5) == pytest.approx(1, abs=1)
