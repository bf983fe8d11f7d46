"""Every planted fault is found, in its row and in no other."""

from __future__ import annotations

from typing import Any

import pytest

from agentenv.checks.choose import choose
from agentenv.checks.examine import examine
from agentenv.checks.rows import ROWS, Examination, Verdict
from agentenv.config import load_config
from cgroup_children import needs
from checks_faulty import FAULTS, OutOfMemory, Sound

# Without a control group an environment that fills its memory raises or exits, and that is what is seen.
MARKS = {OutOfMemory: needs("memory")}


def examined(env: str, *, steps: int = 500, **keys: Any) -> Examination:
    config = load_config({"global": {"seed": 3}, "environments": [{"id": "faulty", "env": env, **keys}]})
    return examine(config, choose(config, None).chosen[0], steps=steps, on_phase=lambda _text: None)


def not_in_order(examination: Examination) -> dict[str, str]:
    assert [row.name for row in examination.rows] == list(ROWS)
    return {row.name: row.verdict.value for row in examination.rows if row.verdict in (Verdict.WARN, Verdict.FAIL)}


def test_an_environment_without_a_fault_has_none() -> None:
    examination = examined("checks_faulty:Sound")
    assert not_in_order(examination) == {}
    assert not [row.name for row in examination.rows if row.verdict is Verdict.SKIP]


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.__name__, marks=MARKS.get(one, ())) for one in FAULTS])
def test_a_planted_fault_is_found_in_its_row_alone(fault: type[Sound]) -> None:
    examination = examined(f"checks_faulty:{fault.__name__}", memory_mb=256)
    name, verdict = FAULTS[fault]
    assert not_in_order(examination) == {name: verdict}
    row = next(row for row in examination.rows if row.name == name)
    assert row.found
    assert row.remedy
    assert examination.verdict.value == verdict
