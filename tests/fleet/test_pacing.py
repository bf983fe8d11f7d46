"""The choice of pace, from durations alone."""

from __future__ import annotations

from agentenv.fleet.pacing import Pace, Pacing


def play(pacing: Pacing, cost: dict[Pace, float], steps: int) -> dict[Pace, int]:
    """Run steps whose duration depends on the pace in force (in tenths of a millisecond); how many ran at each."""
    counts = dict.fromkeys(Pace, 0)
    for _ in range(steps):
        counts[pacing.pace] += 1
        pacing.record(cost[pacing.pace] * 1e-4)
    return counts


def test_it_starts_as_the_kernel_would_have_it() -> None:
    assert Pacing().pace is Pace.EAGER


def test_the_better_pace_is_kept_for_nearly_all_steps() -> None:
    for better in Pace:
        cost = {pace: 1.0 if pace is better else 2.0 for pace in Pace}
        counts = play(Pacing(), cost, 100_000)
        assert counts[better] > 0.97 * 100_000


def test_a_tie_stays_with_what_is_in_force() -> None:
    assert play(Pacing(), dict.fromkeys(Pace, 1.0), 100_000)[Pace.EAGER] > 0.97 * 100_000


def test_it_follows_a_change_within_one_review() -> None:
    pacing = Pacing()
    play(pacing, {Pace.EAGER: 1.0, Pace.PATIENT: 2.0, Pace.STAND_BY: 3.0}, 10_000)
    assert pacing.pace is Pace.EAGER
    play(pacing, {Pace.EAGER: 2.0, Pace.PATIENT: 1.0, Pace.STAND_BY: 3.0}, 33_000)  # not into the next one
    assert pacing.pace is Pace.PATIENT


def test_a_first_choice_that_was_disturbed_is_soon_made_again() -> None:
    pacing = Pacing()
    usual = {Pace.EAGER: 2.0, Pace.PATIENT: 2.0, Pace.STAND_BY: 1.0}
    play(pacing, {**usual, Pace.STAND_BY: 9.0}, 768)
    assert pacing.pace is Pace.EAGER
    play(pacing, usual, 5_000)
    assert pacing.pace is Pace.STAND_BY


def test_what_is_fast_only_when_it_is_tried_is_not_kept() -> None:
    pacing, since, before = Pacing(), 0, Pace.EAGER
    counts = dict.fromkeys(Pace, 0)
    for _ in range(400_000):
        since = since + 1 if pacing.pace is before else 1
        before = pacing.pace
        counts[before] += 1
        pacing.record(1e-4 * {Pace.EAGER: 2.0, Pace.PATIENT: 1.5, Pace.STAND_BY: 1.0 if since < 1000 else 3.0}[before])
    assert counts[Pace.PATIENT] > 0.9 * 400_000


def test_what_was_not_kept_may_become_the_best() -> None:
    pacing, since, before = Pacing(), 0, Pace.EAGER
    for step in range(600_000):
        since = since + 1 if pacing.pace is before else 1
        before = pacing.pace
        late = 3.0 if step < 100_000 and since >= 1000 else 1.0
        pacing.record(1e-4 * {Pace.EAGER: 2.0, Pace.PATIENT: 1.5, Pace.STAND_BY: late}[before])
    assert pacing.pace is Pace.STAND_BY


def test_pauses_in_which_the_trainer_learns_do_not_count() -> None:
    pacing = Pacing()
    cost = {Pace.EAGER: 2.0, Pace.PATIENT: 3.0, Pace.STAND_BY: 1.0}
    for number in range(10_000):
        pacing.record(1000.0 if number % 16 == 0 and pacing.pace is Pace.STAND_BY else cost[pacing.pace])
    assert pacing.pace is Pace.STAND_BY


def test_the_first_steps_at_a_pace_do_not_count() -> None:
    pacing, since, before = Pacing(), 0, Pace.EAGER
    for _ in range(10_000):
        since = since + 1 if pacing.pace is before else 1
        before = pacing.pace
        pacing.record(1.0 if pacing.pace is Pace.STAND_BY and since > 150 else 2.0)
    assert pacing.pace is Pace.STAND_BY


def test_it_says_so_exactly_when_the_pace_changes() -> None:
    pacing, before = Pacing(), Pace.EAGER
    for _ in range(20_000):
        changed = pacing.record(1.0)
        assert changed == (pacing.pace is not before)
        before = pacing.pace
