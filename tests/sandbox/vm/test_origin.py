"""What machines were made from, read back from a file that somebody may have damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.files import MachineFiles
from agentenv.sandbox.runtimes._vm.machine import MachineSpec
from agentenv.sandbox.runtimes._vm.origin import NAME, Origin, read_origin, write_origin
from agentenv.sandbox.runtimes._vm.seal import SEAL, damage
from agentenv.sandbox.runtimes._vm.trials import Trial

DEEP = b"[" * 60_000


@pytest.fixture
def files(tmp_path: Path) -> MachineFiles:
    file = tmp_path / "file"
    file.write_text("content")
    return MachineFiles(
        *[file] * 5,
        places=(("/inside", "/shown"),),
        variables=(("NAME", "value"),),
        user="me",
        workdir="/work",
        entrypoint=("run",),
        cmd=("this", "that"),
        image="name",
        cache=tmp_path,
    )


@pytest.fixture
def directory(tmp_path: Path, files: MachineFiles) -> Path:
    made = tmp_path / "snapshot"
    made.mkdir()
    write_origin(made, files, MachineSpec("one", files.kernel, files.initramfs, (), 128, 2), 64, [{"env": "a"}])
    return made


def test_it_is_read_as_it_was_written(directory: Path, files: MachineFiles) -> None:
    assert read_origin(directory) == Origin(files, 128, 2, 64, ({"env": "a"},))


def test_what_changed_or_is_gone_is_named(directory: Path, files: MachineFiles) -> None:
    (directory.parent / "file").write_text("changed")
    with pytest.raises(RuntimeUnavailable, match="needs files as they were"):
        read_origin(directory)
    (directory.parent / "file").unlink()
    with pytest.raises(RuntimeUnavailable, match=r"needs .*/file, which is not there any more"):
        read_origin(directory)


@pytest.mark.parametrize("content", [b"", DEEP, b"[]", b"null", b"\xff", b'{"format": ' + b"9" * 5000 + b"}"])
def test_what_is_none_is_refused(directory: Path, content: bytes) -> None:
    (directory / NAME).write_bytes(content)
    with pytest.raises(RuntimeUnavailable, match="is not the snapshot of a sandbox"):
        read_origin(directory)


VALUES: list[Any] = [None, -1, 0.5, 1e999, True, 10**30, "\0", "\ud800", [[1]], {"a": 1}]


def _put(*path: str) -> Callable[[dict[str, Any], Any], None]:
    def put(found: dict[str, Any], value: Any) -> None:
        *before, last = path
        for name in before:
            found = found[name]
        found[last] = value

    return put


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", ["memory_mb", "vcpu_count", "files.kernel", "files.variables", "files.cmd"])
def test_no_value_of_another_kind_is_a_traceback(directory: Path, name: str, value: Any) -> None:
    found = json.loads((directory / NAME).read_text())
    _put(*name.split("."))(found, value)
    (directory / NAME).write_text(json.dumps(found))
    if name == "files.cmd" and value in ("\0", "\ud800", {"a": 1}):
        read_origin(directory)  # a text, of which what it says is not judged here
        return
    with pytest.raises(RuntimeUnavailable):
        read_origin(directory)


def test_damaged_notes_beside_a_template_are_damage(tmp_path: Path) -> None:
    for content in (DEEP, b'{"files": {"a\\u0000b": {"size": 1, "digest": ""}}}', b'{"files": {"a": 5}}'):
        (tmp_path / "a").touch()
        (tmp_path / SEAL).write_bytes(content)
        assert SEAL in damage(tmp_path)


def test_a_damaged_memory_of_a_trial_is_none(tmp_path: Path) -> None:
    memory = tmp_path / "kvm.json"
    memory.write_bytes(DEEP)
    assert Trial(memory, ["key"]).recall() is None


def test_files_that_are_not_all_there_are_told_apart(directory: Path, files: MachineFiles) -> None:
    write_origin(
        directory,
        replace(files, project=files.kernel),
        MachineSpec("one", files.kernel, files.initramfs, (), 128, 2),
        64,
        [],
    )
    assert read_origin(directory).files.project == files.kernel
