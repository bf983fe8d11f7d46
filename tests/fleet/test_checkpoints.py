"""Checkpoints: the last good value survives a torn file, a flipped bit and a process killed in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.fleet.checkpoints import Checkpoint


def test_the_last_value_counts(tmp_path: Path) -> None:
    held = Checkpoint(tmp_path / "state")
    assert held.read() is None
    for value in (b"one", b"", b"three" * 1000):
        held.write(value)
        assert Checkpoint(tmp_path / "state").read() == value
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.0", "state.1"]


@given(st.binary(max_size=200), st.binary(max_size=200), st.data())
def test_a_flipped_bit_gives_the_value_before(
    tmp_path_factory: pytest.TempPathFactory, first: bytes, second: bytes, data: st.DataObject
) -> None:
    held = Checkpoint(tmp_path_factory.mktemp("checkpoint") / "state")
    held.write(first)
    held.write(second)
    place = held.places[1]
    raw = bytearray(place.read_bytes())
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    place.write_bytes(raw)
    assert held.read() == first
    held.write(b"third")
    assert held.read() == b"third"


@pytest.mark.parametrize("size", [0, 10, 35, 37])
def test_a_torn_file_is_reported_and_the_other_used(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    held = Checkpoint(tmp_path / "state")
    held.write(b"before")
    held.write(b"after")
    held.places[1].write_bytes(held.places[1].read_bytes()[:size])
    assert held.read() == b"before"
    assert "state.1 is damaged" in caplog.text
    held.places[0].write_bytes(b"")
    assert held.read() is None


_WRITE = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from agentenv.fleet.checkpoints import Checkpoint

    held = Checkpoint(Path(sys.argv[1]) / "state")
    print("go", flush=True)
    number = 0
    while True:
        number += 1
        held.write(b"%d " % number * 2000)
    """
)


def test_killed_at_any_moment_a_whole_value_is_left(tmp_path: Path) -> None:
    import random
    import time

    draw = random.Random(7)
    for _ in range(15):
        with subprocess.Popen([sys.executable, "-c", _WRITE, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
        value = Checkpoint(tmp_path / "state").read()
        assert value is None or len(set(value.split())) == 1
    assert value is not None
