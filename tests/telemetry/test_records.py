"""Records after everything that can happen to them: kills, torn lines, flipped bits, odd values."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.telemetry.records import RecordWriter, read_records
from agentenv.telemetry.records import encode_record as encode

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
_RECORDS = st.lists(
    st.dictionaries(st.text(), _JSON, max_size=4).filter(lambda record: "crc" not in record), min_size=1, max_size=5
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "records.jsonl"


@given(_RECORDS)
def test_records_come_back(scratch: Path, records: list[dict[str, Any]]) -> None:
    scratch.unlink(missing_ok=True)
    with RecordWriter(scratch) as writer:
        assert all(writer.append(record) for record in records)
    assert read_records(scratch) == (records, 0)
    # And any other tool can read them: pure ASCII, one object a line however lines are counted.
    assert len(scratch.read_text(encoding="ascii").splitlines()) == len(records)


@given(_RECORDS, st.data())
def test_a_file_cut_anywhere_loses_the_last_record_only(
    scratch: Path, records: list[dict[str, Any]], data: Any
) -> None:
    lines = [encode(record) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    scratch.write_bytes(whole[:cut])
    complete = sum(sum(map(len, lines[: i + 1])) - 1 <= cut for i in range(len(lines)))
    found, damaged = read_records(scratch)
    assert found == records[:complete]
    assert damaged <= 1
    # A new writer does not glue its record to the torn one.
    with RecordWriter(scratch) as writer:
        assert writer.append({"after": True})
    assert read_records(scratch) == ([*records[:complete], {"after": True}], damaged)


@given(_RECORDS, st.data())
def test_a_flipped_bit_never_makes_another_record(scratch: Path, records: list[dict[str, Any]], data: Any) -> None:
    whole = bytearray(b"".join(map(encode, records)))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    scratch.write_bytes(whole)
    found, damaged = read_records(scratch)
    remaining = iter(records)
    assert all(any(record == original for original in remaining) for record in found), "a record that never was"
    assert len(found) >= len(records) - 2
    # The one flip that costs nothing is the last newline turned into something else... which damages its line.
    assert damaged >= 1


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1,2]",
        b"{}",
        b'{"a":1}',
        b'{"a":1,"crc":"00000000"}',
        b"\xff\xfe\0",
        b"[" * 100_000,
        b'"crc":"00000000"}',
    ],
)
def test_lines_that_are_no_records_are_counted(scratch: Path, line: bytes) -> None:
    scratch.write_bytes(encode({"a": 1}) + line + b"\n\n" + encode({"b": 2}))
    assert read_records(scratch) == ([{"a": 1}, {"b": 2}], 1)


def test_a_missing_file_holds_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "episodes.jsonl") == ([], 0)


def test_values_that_json_lacks(scratch: Path) -> None:
    scratch.unlink(missing_ok=True)
    with RecordWriter(scratch) as writer:
        writer.append(
            {
                "return": np.float32(1.5),
                "length": np.int64(7),
                "flag": np.bool_(True),
                "array": np.arange(3, dtype=np.float16),
                "nan": math.nan,
                "array of nan": np.array([np.inf, -np.inf]),
                "path": Path("a/b"),
                3: (1, 2),  # type: ignore[dict-item]  # wrong on purpose
                "bytes": b"\xff",
                "separator": "a\u2028b\ud800",
            }
        )
    (record,), damaged = read_records(scratch)
    assert damaged == 0
    assert record == {
        "return": 1.5,
        "length": 7,
        "flag": True,
        "array": [0.0, 1.0, 2.0],
        "nan": "NaN",
        "array of nan": ["Infinity", "-Infinity"],
        "path": "a/b",
        "3": [1, 2],
        "bytes": "b'\\xff'",
        "separator": "a\u2028b\ud800",
    }
    assert math.isnan(float(record["nan"]))


def test_records_that_cannot_be_are_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    writer = RecordWriter(tmp_path / "x.jsonl")
    with pytest.raises(ValueError, match="contains itself"):
        writer.append(loop)
    with pytest.raises(ValueError, match="'crc'"):
        writer.append({"crc": 1})
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    writer = RecordWriter(Path("/dev/full"))
    with caplog.at_level(logging.WARNING, "agentenv"):
        assert [writer.append({"n": i}) for i in range(3)] == [False] * 3
    writer.close()
    assert writer.lost == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


def test_writing_resumes_when_the_directory_is_there(tmp_path: Path) -> None:
    path = tmp_path / "later" / "episodes.jsonl"
    with RecordWriter(path) as writer:
        assert not writer.append({"n": 0})
        path.parent.mkdir()
        assert writer.append({"n": 1})
    assert read_records(path) == ([{"n": 1}], 0)
    assert not writer.append({"n": 2})
    assert writer.lost == 2


_ENDLESS = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from agentenv.telemetry.records import RecordWriter

    writer = RecordWriter(Path(sys.argv[1]))
    n = 0
    while True:
        writer.append({"n": n, "filling": "x" * (n % 5000)})
        n += 1
        if n % 500 == 0:
            print(n, flush=True)
    """
)


def test_kill_9_loses_at_most_the_unfinished_record(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    for _ in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            reported = int(process.stdout.readline())
            process.kill()
        records, damaged = read_records(path)
        assert [record["n"] for record in records] == list(range(len(records)))
        assert len(records) >= reported
        assert damaged <= 1


def test_plain_json_tools_see_the_same_numbers() -> None:
    line = encode({"return": 0.1, "length": 3})
    assert line == b'{"return":0.1,"length":3,"crc":"%s"}\n' % json.loads(line)["crc"].encode()
