"""agentenv image and agentenv kernel, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.images.store import Store
from cli_watch import poll
from hand_made_oci import File, pack, write_layout

COMMANDS = ("image build", "image ls", "image rm", "image gc", "kernel fetch", "kernel ls", "kernel rm")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def command(tmp_path: Path, cache: Path):
    def run(
        *arguments: str, code: int = 0, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "agentenv.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "AGENTENV_CACHE": str(cache), "AGENTENV_DATA": str(tmp_path / "data")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.mark.parametrize(
    "name", ["image build", "image ls", "image rm", "image gc", "kernel fetch", "kernel ls", "kernel rm"]
)
def test_every_help_has_an_example(command, name: str) -> None:
    shown = command(*name.split(), "--help").stdout
    assert f"  agentenv {name}" in shown.partition("Example")[2]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentenv.cli import main; main(['image', 'build', '--help']); "
        "print(sorted({'numpy', 'gymnasium', 'rich', 'agentenv.images'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"


def test_an_image_from_its_making_to_its_end(command, tmp_path: Path, cache: Path, need) -> None:
    need("mkfs.ext4")
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/file").write_text("x")
    assert "no images in" in command("image", "ls").stdout
    done = command("image", "build", "mine", "--from", "root")
    assert 'rootfs_image = "mine"' in done.stdout
    assert "making the image" in done.stderr, "plain lines where there is no terminal"
    made = json.loads(command("image", "build", "twin", "--from", "root", "--json").stdout)
    assert made["name"] == "twin"
    assert Path(made["path"]).is_file()
    listed = json.loads(command("image", "ls", "--json").stdout)
    assert [(one["name"], one["digest"]) for one in listed["images"]] == [
        ("mine", made["digest"]),
        ("twin", made["digest"]),
    ]
    table = command("image", "ls").stdout
    assert "mine" in table
    assert made["digest"][:12] in table
    assert "got 'twim' (did you mean \"twin\"?)" in command("image", "rm", "twim", code=2).stderr
    assert "got 'x' (the images here are mine, twin)" in command("image", "rm", "x", code=2).stderr
    assert json.loads(command("image", "rm", "mine", "--json").stdout)["freed_bytes"] == 0, "the twin is the same file"
    assert json.loads(command("image", "gc", "--now", "--json").stdout)["freed_bytes"] == 0
    assert json.loads(command("image", "rm", "twin", "--json").stdout)["freed_bytes"] > 0
    assert not Path(made["path"]).exists()
    assert "expected the name of an image, got 'twin' (there are none)" in command("image", "rm", "twin", code=2).stderr
    assert command("image", "gc", "--now").stdout.startswith("removed 0 objects")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["image", "build", "a/b", "--from", "root"], "expected letters"),
        (["image", "build", "a", "--from", "nowhere"], "expected debian:SUITE"),
        (["image", "build", "a", "more", "--from", "root"], "expected packages after --pip"),
        (["image", "build", "a", "--from", "root", "--pip=-r"], "expected a package"),
        (["image", "build", "a", "--from", "root", "--project", "none"], "expected a directory"),
        (["kernel", "fetch", "--from", "none"], "expected a file"),
        (["kernel", "fetch", "--from", "https://x/y"], "--sha256"),
        (["kernel", "fetch", "--sha256", "00"], "only with a URL"),
        (["kernel", "fetch", "--from", "x", "--package", "y"], "got both"),
        (["kernel", "fetch", "--from", "https://x/y"], "beside a URL, got none"),
        (["kernel", "fetch", "--from", "https://x/y", "--sha256", "00"], "got '00'"),
        (["image", "build", "a", "--from", "./Dockerfile"], "and there is no /"),
        (["kernel", "rm", "none"], "expected the name of a kernel, got 'none' (there are none)"),
    ],
)
def test_mistakes(command, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "root").mkdir()
    done = command(*arguments, "--json", code=2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["exit_code"] == 2


def test_what_this_machine_lacks_is_named(command, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    file = pack(write_layout(tmp_path / "layout", [[File("a")]]), tmp_path / "image.tar")
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, package in (
        (["image", "build", "a", "--from", f"oci-archive:{file}"], "e2fsprogs"),
        (["image", "build", "a", "--from", "oci:127.0.0.1:1/a"], "skopeo"),
        (["image", "build", "a", "--from", "debian:bookworm"], "mmdebstrap"),
    ):
        code = (
            "import agentenv.images.programs as p; p._SYSTEM = ()\n"
            "import sys; from agentenv.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PATH": str(empty), "AGENTENV_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 3, done.stderr
        assert f"remedy: sudo apt-get install {package}" in done.stderr


def test_ctrl_c_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    """In the middle of a step that would take for ever."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mmdebstrap").write_text('#!/bin/sh\necho half >half\nsleep 600 & echo $! >"$CHILD"\nwait\n')
    (programs / "mmdebstrap").chmod(0o755)
    child = tmp_path / "child"
    process = subprocess.Popen(
        [sys.executable, "-m", "agentenv.cli", "image", "build", "a", "--from", "debian:bookworm"],
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "AGENTENV_CACHE": str(cache),
            "CHILD": str(child),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    poll(lambda: child.exists() and bool(child.read_text().strip()), "the program it starts", 60)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert os.listdir(cache / "tmp") == []
    assert os.listdir(cache / "steps") == []
    poll(lambda: not _lives(int(child.read_text())), "the end of what it had started", 10)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_full_disk_is_exit_code_3(command, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    code = (
        "import errno, os, sys, shutil\n"
        "def full(*a, **k): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "import agentenv.images.trees as t; t.shutil.copyfile = full\n"
        "from agentenv.cli import main; sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "root/file").write_text("x")
    done = subprocess.run(
        [sys.executable, "-c", code, "image", "build", "a", "--from", "root"],
        cwd=tmp_path,
        env={**os.environ, "AGENTENV_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "no room on the disk" in done.stderr
    assert Store(tmp_path / "cache").sweep() == 0
    assert os.listdir(tmp_path / "cache/tmp") == []
