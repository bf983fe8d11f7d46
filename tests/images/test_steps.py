"""Builds in steps: what is finished is not done again, whoever comes in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from agentenv.errors import ConfigError, RuntimeUnavailable
from agentenv.images.files import digest_file
from agentenv.images.image import list_images
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from hand_made_oci import File, archive, folder, hard


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need) -> Path:
    """Stands in for the program that makes a Debian in a minute: writes an archive, and down how it was called."""
    need("mkfs.ext4")
    programs = tmp_path / "programs"
    programs.mkdir()
    entries = [folder("etc"), File("etc/version", b"12\n"), File("bin/su", b"#!", 0o4755), hard("bin/so", "bin/su")]
    (tmp_path / "archive.tar").write_bytes(archive(entries))
    calls = tmp_path / "calls"
    calls.write_text("")
    (programs / "mmdebstrap").write_text(
        f'#!/bin/sh\nsleep 0.2\necho "$SOURCE_DATE_EPOCH $@" >>{calls}\ncat {tmp_path}/archive.tar\n'
    )
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return calls


def count(calls: Path) -> int:
    return len(calls.read_text().splitlines())


def test_a_debian_is_made_once_for_all_images_of_it(debian: Path, store: Store) -> None:
    first = build_image("a", Recipe("debian:bookworm"), store)
    assert build_image("b", Recipe("debian:bookworm"), store).digest == first.digest
    larger = build_image("c", Recipe("debian:bookworm", size_mb=20), store)
    assert larger.digest != first.digest
    assert larger.size_bytes == 20 << 20
    assert count(debian) == 1
    (line,) = debian.read_text().splitlines()
    assert "--variant=apt --format=tar --include=python3" in line
    assert line.endswith(" bookworm -")
    assert line.startswith("1577836800 "), "a time that repeats itself"
    build_image("a", Recipe("debian:bookworm", mirror="http://mirror.example/debian"), store)
    assert debian.read_text().splitlines()[-1].endswith(" bookworm - http://mirror.example/debian")
    assert build_image("a", Recipe("debian:bookworm", fresh=True), store).digest == first.digest
    assert count(debian) == 3


def test_what_fails_later_keeps_what_was_finished(debian: Path, store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="expected an image with a Python"):
            build_image("a", Recipe("debian:bookworm", ("numpy",)), store)
    assert count(debian) == 1
    assert os.listdir(store.root / "tmp") == []
    assert store.names("image") == []


def test_several_who_build_the_same_image_at_once(debian: Path, store: Store) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentenv.images.rootfs import Recipe, build_image\n"
        "from agentenv.images.store import Store\n"
        "print(build_image('a', Recipe('debian:bookworm'), Store(Path(sys.argv[1]))).digest)\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    digests = {process.communicate(timeout=60)[0] for process in running}
    assert len(digests) == 1
    assert count(debian) == 1
    assert os.listdir(store.root / "tmp") == []


def test_a_program_that_fails_is_quoted(debian: Path, store: Store) -> None:
    program = Path(os.environ["PATH"].partition(":")[0]) / "mmdebstrap"
    program.write_text("#!/bin/sh\necho half\necho 'E: no such suite' >&2\nexit 25\n")
    with pytest.raises(RuntimeUnavailable, match=r"(?s)Debian nowhere: .* exit code 25:\n.*E: no such suite"):
        build_image("a", Recipe("debian:nowhere"), store)
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(RuntimeUnavailable, match="was killed by SIGKILL"):
        build_image("a", Recipe("debian:nowhere"), store)
    assert list((store.root / "steps").iterdir()) == []


@pytest.mark.parametrize("record", [{}, {"old": "without what its files are"}])
def test_an_image_that_is_damaged_is_made_again(debian: Path, store: Store, record: dict[str, str]) -> None:
    made = build_image("a", Recipe("debian:bookworm"), store)
    whole = digest_file(made.path)
    for path in (store.root / "keys").iterdir() if record else ():
        path.write_text(json.dumps({"digest": made.digest}))
    made.path.unlink()
    assert [one.size_bytes for one in list_images(store)] == [0]
    assert build_image("a", Recipe("debian:bookworm"), store) == replace(made, created=ANY)
    assert digest_file(made.path) == whole


@pytest.mark.parametrize("name", ["table.json", "start.json"])
@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[]", '{"bin/su": {}}', '{"bin/su": 3}', "\xff"])
def test_a_step_that_is_damaged_is_said_and_done_again(debian: Path, store: Store, name: str, text: str) -> None:
    made = build_image("a", Recipe("debian:bookworm"), store)
    (step,) = (store.root / "steps").iterdir()
    (step / name).write_text(text, encoding="latin-1")
    with pytest.raises(RuntimeUnavailable, match=rf"{name} is damaged: [\s\S]*\n  remedy: build it again with --fresh"):
        build_image("a", Recipe("debian:bookworm"), store)
    assert build_image("a", Recipe("debian:bookworm", fresh=True), store) == replace(made, created=ANY)
