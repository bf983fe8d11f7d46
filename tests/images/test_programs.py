"""Programs of the host end with whoever started them, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli_watch import poll


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_does_not_outlive_who_started_it(tmp_path: Path, need, number: int) -> None:
    need("setpriv")
    started = tmp_path / "started"
    code = (
        "import sys; from agentenv.images.programs import run\n"
        "run(['sh', '-c', 'echo $$ >$0.new; mv $0.new $0; exec sleep 600', sys.argv[1]], purpose='waiting')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(started)], stderr=subprocess.DEVNULL)
    poll(started.exists, "a program that runs")
    pid = int(started.read_text())
    process.send_signal(number)
    process.wait(timeout=20)
    try:
        poll(lambda: not lives(pid), "its end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
