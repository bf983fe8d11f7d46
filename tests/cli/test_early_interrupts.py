"""Ctrl-C while modules are imported, which is when Python passes it on in odd ways."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import typer

from agentenv.cli.exits import Ended, guarded

IMPORTING = """
import sys
from agentenv.cli import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "agentenv.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.exit(main(["runs"]))
"""


def test_before_there_is_a_command_it_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (Ended(signal.SIGTERM), 143)])
def test_while_a_class_is_made_it_is_no_fault_of_agentenv(
    raised: KeyboardInterrupt, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    class Naming:
        def __set_name__(self, owner: type, name: str) -> None:
            raise raised

    def command() -> None:
        try:
            type("Made", (), {"attribute": Naming()})
        except KeyboardInterrupt as error:  # from Python 3.12 on
            raise RuntimeError("Error calling __set_name__") from error

    with pytest.raises(typer.Exit) as exit_:
        guarded(command)()
    assert exit_.value.exit_code == code
    assert capsys.readouterr().err == ""
