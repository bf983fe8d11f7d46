"""Nothing may hang on the order in which this interpreter happens to hash: the suite again, under other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
# One of each: a space of keys and text, a tuple, infos; every mode.
_SELECTION = "(MiniGrid and not never) or Blackjack or Informer"


@pytest.mark.parametrize("hash_seed", ["1", "4242"])
def test_parity_holds_under_another_hash_seed(hash_seed: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", _SELECTION]
    done = subprocess.run(
        [*command, str(_TESTS / "test_parity.py"), str(_TESTS / "test_infos.py")],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=_TESTS.parent.parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_the_environment_hashes_as_the_host_does() -> None:
    """A reference run and a sandbox see the same order of a set of texts."""
    script = (
        "from agentenv import AgentENV\n"
        "env = AgentENV.from_env('envs.samples:Hasher')\n"
        "print(env.call('order') == list({str(i) for i in range(50)}))\n"
    )
    for hash_seed in ("0", "7"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_TESTS.parent)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout.split() == ["True"], done.stderr
