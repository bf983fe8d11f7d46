"""Traces: what goes in comes out, and damage costs what was damaged and never makes up a row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.fleet.digests import StepDigest
from agentenv.fleet.trace import TraceWriter, older
from agentenv.fleet.tracefile import EpisodeTrace, read_trace

NAMES = ("observation['a']", "observation['b']")


def step(n: int, *, flags: int = 0) -> StepDigest:
    return StepDigest(n.to_bytes(8, "little"), (n, n + 1), n % 3, n / 7, flags)


def writer(path: Path, **options) -> TraceWriter:
    return TraceWriter(path, names=NAMES, action_bytes=4, **options)


def add(trace: TraceWriter, start: int, stop: int, *, flush_every: int = 0) -> None:
    for n in range(start, stop):
        trace.add(n.to_bytes(4, "little"), b"v" * (n % 5), step(n))
        if flush_every and n % flush_every == 0:
            trace.flush()


def values(held: EpisodeTrace) -> list[tuple[bytes, bytes, StepDigest]]:
    rows = held.read()
    assert len(rows) == held.rows
    return [(*rows.action(row), rows.step(row)) for row in range(len(rows))]


def expected(stop: int) -> list[tuple[bytes, bytes, StepDigest]]:
    return [(n.to_bytes(4, "little"), b"v" * (n % 5), step(n)) for n in range(stop)]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 1500), min_size=1, max_size=4), st.integers(0, 50))
def test_what_goes_in_comes_out(tmp_path_factory: pytest.TempPathFactory, lengths: list[int], every: int) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.bin"
    trace = writer(path)
    chains = []
    for episode, length in enumerate(lengths):
        trace.begin(episode, episode + 100)
        add(trace, 0, length, flush_every=every)
        chains.append(trace.chain)
        trace.end("terminated", b"state %d" % episode)
    trace.close()
    found = read_trace(path)
    assert (found.damaged, found.end) == (0, path.stat().st_size)
    assert list(found.episodes) == list(range(len(lengths)))
    for episode, length in enumerate(lengths):
        held = found.episodes[episode]
        assert values(held) == expected(length)
        assert (held.seed, held.outcome, held.digest, held.whole) == (
            episode + 100, "terminated", chains[episode], True,
        )  # fmt: skip
        assert held.policy_state() == b"state %d" % episode
        assert held.parts == NAMES


def test_the_digest_of_an_episode_depends_on_every_action_and_answer(tmp_path: Path) -> None:
    def chain(*rows: tuple[bytes, bytes, StepDigest]) -> str:
        trace = writer(tmp_path / "trace.bin", limit_mb=0)
        trace.begin(0, 1)
        for row in rows:
            trace.add(*row)
        return trace.chain

    base = [(b"aaaa", b"", step(1)), (b"bbbb", b"x", step(2))]
    other = [
        [base[0], (b"bbbc", b"x", step(2))],
        [base[0], (b"bbbb", b"y", step(2))],
        [base[0], (b"bbbb", b"x", step(3))],
        [base[1], base[0]],
        [base[0]],
    ]
    assert chain(*base) == chain(*base)
    assert len({chain(*base), *(chain(*rows) for rows in other)}) == 6
    assert not (tmp_path / "trace.bin").exists(), (
        "with no room nothing is written, and the digest is there all the same"
    )


def test_cut_off_anywhere_a_beginning_is_left(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    trace = writer(path)
    trace.begin(0, 1)
    add(trace, 0, 40, flush_every=10)
    trace.end("terminated")
    trace.close()
    data = path.read_bytes()
    seen = set()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found = read_trace(path)
        held = found.episodes.get(0)
        assert found.damaged == (0 if size == found.end else 1)
        assert held is None or values(held) == expected(held.rows)
        assert held is None or held.outcome is None
        seen.add(0 if held is None else held.rows)
    assert seen == {0, 1, 11, 21, 31}, "each chunk that is whole counts"


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_never_makes_another_row(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.bin"
    trace = writer(path)
    for episode in range(2):
        trace.begin(episode, 1)
        add(trace, 0, 30, flush_every=10)
        trace.end("truncated", b"s")
    trace.close()
    raw = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)
    found = read_trace(path)
    assert found.damaged >= 1
    whole = 0
    for held in found.episodes.values():
        assert values(held) == expected(held.rows)
        whole += held.whole and held.outcome is not None and held.rows == 30
    assert whole >= 1, "one bit costs one episode at most"


def test_a_later_process_goes_on_where_the_whole_chunks_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    first = writer(path)
    first.begin(0, 1)
    add(first, 0, 21, flush_every=20)
    first.close()
    with path.open("ab") as file:
        file.write(b"AET1 torn")
    held = read_trace(path)
    assert (held.damaged, held.episodes[0].rows) == (1, 21)
    second = writer(path, resume_at=held.end)
    second.begin(0, 1)
    rows = held.episodes[0].read()
    for row in range(21):
        second.follow(*rows.action(row), rows.step(row).digest)
    add(second, 21, 50)
    second.end("terminated")
    second.close()
    found = read_trace(path)
    assert found.damaged == 0
    assert values(found.episodes[0]) == expected(50)
    undisturbed = writer(tmp_path / "other.bin")
    undisturbed.begin(0, 1)
    add(undisturbed, 0, 50)
    assert found.episodes[0].digest == undisturbed.chain


def test_an_episode_begun_again_counts_from_its_last_beginning(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    trace = writer(path)
    trace.begin(0, 1)
    add(trace, 0, 30)
    trace.flush()
    trace.begin(0, 1, attempt=1)
    add(trace, 0, 12)
    trace.end("terminated")
    trace.close()
    held = read_trace(path).episodes[0]
    assert (held.attempt, held.outcome, held.whole) == (1, "terminated", True)
    assert values(held) == expected(12)


def test_older_episodes_give_way_to_newer_ones(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    limit_mb = 0.25
    trace = writer(path, limit_mb=limit_mb)
    noise = [os.urandom(8) for _ in range(2000)]
    for episode in range(60):
        trace.begin(episode, 1)
        for row in noise:
            trace.add(row[:4], b"", StepDigest(os.urandom(8), (1, 2), 0, 0.0, 0))
        trace.end("terminated")
        assert sum(file.stat().st_size for file in (path, older(path)) if file.exists()) <= limit_mb * 2**20
    trace.close()
    held = read_trace(path).episodes
    assert list(held) == sorted(held)
    assert 1 < len(held) < 60
    assert 59 in held
    assert all(episode.whole for episode in held.values())


def test_an_episode_too_large_keeps_its_beginning_and_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    trace = writer(path, limit_mb=0.1)
    trace.begin(0, 1)
    for _ in range(20_000):
        trace.add(os.urandom(4), b"", StepDigest(os.urandom(8), (1, 2), 0, 0.0, 0))
    chain = trace.chain
    trace.end("terminated")
    trace.close()
    held = read_trace(path).episodes[0]
    assert 0 < held.rows < 20_000
    assert (held.whole, held.digest) == (False, chain)
    assert path.stat().st_size < 0.1 * 2**20


def test_a_folder_that_is_gone_is_not_fatal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = writer(tmp_path / "gone" / "trace.bin")
    for episode in range(3):
        trace.begin(episode, 1)
        add(trace, 0, 600)
        trace.end("terminated")
    trace.close()
    assert len([record for record in caplog.records if "cannot be replayed" in record.message]) == 1
