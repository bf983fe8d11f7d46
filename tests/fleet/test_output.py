"""The output of several sandboxes with one name, one after the other, in one file with marks between them."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.fleet.output import SandboxOutput


def live(output: SandboxOutput, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
    """One incarnation: prints, ends, is released."""
    for stream, data in (("stdout", stdout), ("stderr", stderr)):
        reader, writer = os.pipe()
        output.take("a", stream, reader)
        os.write(writer, data)
        os.close(writer)
    output.drain("a")
    output.release("a")


def test_incarnations_stand_in_one_file_in_order(tmp_path: Path) -> None:
    output = SandboxOutput(lambda _: tmp_path)
    live(output, stdout=b"one\n", stderr=b"first error")
    output.mark("a", "restarted after: killed by SIGSEGV")
    live(output, stdout=b"two\n", stderr=b"second error\n")
    output.mark("a", "restarted after:\nexit \x1b[31m3")
    live(output, stdout=b"three")
    output.close()
    assert (tmp_path / "stdout.log").read_text() == (
        "one\n--- agentenv: restarted after: killed by SIGSEGV ---\ntwo\n"
        "--- agentenv: restarted after: exit 3 ---\nthree"
    )
    assert (tmp_path / "stderr.log").read_text() == (
        "first error\n--- agentenv: restarted after: killed by SIGSEGV ---\nsecond error\n"
        "--- agentenv: restarted after: exit 3 ---\n"
    )
    assert output.tail("a") == "three"


def test_a_mark_while_it_runs_comes_after_what_was_printed(tmp_path: Path) -> None:
    output = SandboxOutput(lambda _: tmp_path)
    reader, writer = os.pipe()
    output.take("a", "stdout", reader)
    os.write(writer, b"before")
    output.mark("a", "here")
    assert output.text("a", "stdout") == ""
    os.write(writer, b"after\n")
    output.drain("a")
    assert output.text("a", "stdout") == "after"
    os.close(writer)
    output.release("a")
    output.close()
    assert (tmp_path / "stdout.log").read_text() == "before\n--- agentenv: here ---\nafter\n"


def test_without_a_directory_nothing_is_marked() -> None:
    output = SandboxOutput(lambda _: None)
    output.mark("a", "here")
    live(output, stdout=b"alone\n")
    output.mark("a", "here")
    assert output.tail("a") == "alone"
    output.close()


def test_streams_are_told_apart(tmp_path: Path) -> None:
    output = SandboxOutput(lambda _: tmp_path)
    assert (output.received("a", "stderr"), output.text("a", "stderr")) == (0, "")
    live(output, stdout=b"result\n", stderr="Fehler: \x1b[31mgr\u00fcn\n".encode())
    assert output.received("a", "stderr") == len("Fehler: \x1b[31mgr\u00fcn\n".encode())
    assert output.text("a", "stderr") == "Fehler: gr\u00fcn"
    assert output.text("a", "stdout") == "result"
    output.close()


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    output = SandboxOutput(lambda _: tmp_path / "gone")
    output.mark("a", "here")
    output.close()
    assert not (tmp_path / "gone").exists()
