"""Want of descriptors is said in words, with what helps, wherever it shows."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.boxes import birth
from agentenv.boxes.commands import make_spec
from agentenv.boxes.plans import Plan
from agentenv.errors import ResourceLimit
from agentenv.fleet.descriptors import in_words


def test_other_errors_are_left_as_they_are() -> None:
    for error in (
        OSError(errno.ENOENT, "no"),
        ValueError("no"),
        ResourceLimit(errno.EMFILE, "said already"),
        OSError(),
    ):
        assert in_words(error) is None


@pytest.mark.parametrize(("number", "helps"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")])
def test_what_a_sandbox_lacks_while_it_is_made_is_told(
    number: int, helps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lack(*_arguments: object, **_keywords: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(birth, "open_ground", lack)
    with pytest.raises(ResourceLimit, match=helps) as caught:
        birth.create([Plan("qemu", {}, make_spec(image=None, name="web"))])
    assert caught.value.errno == number


def test_a_command_that_lacks_some_says_what_helps(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agentenv.cli", "sandbox", "create", "--runtime", "qemu"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 8; exec "$@"', "sh", *command],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "too many open files: a process may have 8 here\n  remedy: ulimit -n 4096" in done.stderr
    assert done.returncode == 3
