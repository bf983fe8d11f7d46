"""Drives with directories of the host, and empty ones."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import ConfigError
from agentenv.images.copying import Copier
from agentenv.images.drives import directory_drive, scratch_template
from agentenv.images.files import disk_bytes
from agentenv.images.programs import need_program
from agentenv.images.progress import LINES, Task
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from agentenv.images.tools import tools_drive
from agentenv.images.trees import Tree, take_in


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for name in (
        "pkg/__init__.py",
        "pkg/__pycache__/x.pyc",
        "pkg/runs/kept",
        ".git/config",
        ".venv/bin/python",
        "own-env/pyvenv.cfg",
        "own-env/lib/x",
        "runs/1/out",
        ".mypy_cache/x",
        "node_modules/x",
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / "pkg/tool").write_text("#!/bin/sh\n")
    (place / "pkg/tool").chmod(0o700)
    os.symlink("__init__.py", place / "pkg/link")
    os.mkfifo(place / "pkg/pipe")
    return place


def listed(image: Path, folder: str) -> list[str]:
    argv = [need_program("debugfs", "to look"), "-R", f"ls -p {folder}", str(image)]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    rows = [line.split("/") for line in shown.splitlines() if line.startswith("/")]
    return sorted(f"{row[5]} {row[2]}" for row in rows if row[5] not in (".", ".."))


def shown(image: Path, file: str) -> str:
    argv = [need_program("debugfs", "to look"), "-R", f"cat {file}", str(image)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_what_a_project_is_made_of(store: Store, project: Path, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("x = 1")
    image, places = directory_drive([project, module], store)
    assert places == [(project, "0/project"), (module, "1/module.py")]
    assert listed(image, "/0/project") == ["pkg 040755"]
    assert listed(image, "/0/project/pkg") == ["__init__.py 100644", "link 120777", "runs 040755", "tool 100755"]
    assert listed(image, "/1") == ["module.py 100644"]


def test_a_drive_is_made_once_for_the_same_content(store: Store, project: Path) -> None:
    first, _ = directory_drive([project], store)
    os.utime(project / "pkg/__init__.py", (1, 1))
    (project / "pkg/__pycache__/y.pyc").write_text("new")
    assert directory_drive([project], store)[0] == first
    (project / "pkg/__init__.py").write_text("changed")
    changed, _ = directory_drive([project], store)
    assert changed != first
    (project / "pkg/tool").chmod(0o600)
    assert directory_drive([project], store)[0] not in (first, changed)


def test_what_cannot_be_read_is_left_out_with_one_warning(store: Store, project: Path) -> None:
    (project / "pkg/secret").write_text("x")
    (project / "pkg/secret").chmod(0)
    (project / "closed").mkdir()
    (project / "closed/module.py").write_text("x")
    (project / "shut").mkdir()
    (project / "shut/module.py").write_text("x")
    (project / "closed").chmod(0)
    (project / "shut").chmod(0o400)
    code = (
        "import logging, sys; from pathlib import Path; from agentenv.images.drives import directory_drive;"
        " from agentenv.images.store import Store; logging.basicConfig(format='%(levelname)s %(message)s');"
        " print(directory_drive([Path(sys.argv[1])], Store(Path(sys.argv[2])))[0])"
    )
    # Root reads what nobody may.
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    argv = [*without, sys.executable, "-c", code, str(project), str(store.root)]
    for _ in range(2):  # the second time it is there already
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        said = f"WARNING sys.path: {project}/closed and 2 more cannot be read, and machines do without\n"
        assert done.stderr == said
    image = Path(done.stdout.strip())
    assert listed(image, "/0/project") == ["closed 040755", "pkg 040755", "shut 040755"]
    assert listed(image, "/0/project/closed") == listed(image, "/0/project/shut") == []
    assert "secret 100644" not in listed(image, "/0/project/pkg")
    assert "tool 100755" in listed(image, "/0/project/pkg")
    for name in ("closed", "shut"):
        (project / name).chmod(0o700)


class Editor:
    """Somebody who writes to a file whenever a drive is about to be made of it."""

    def __init__(self, file: Path, times: int) -> None:
        self.file, self.times = file, times

    def say(self, text: str) -> None:
        return None

    @contextlib.contextmanager
    def task(self, text: str, total: float | None = None) -> Iterator[Task]:
        if self.times:
            self.times -= 1
            self.file.write_text(f"edit {self.times}")
        with LINES.task(text, total) as task:
            yield task


def test_a_drive_is_of_what_it_is_named_by(store: Store, project: Path) -> None:
    file = project / "pkg/module.py"
    file.write_text("first")
    for times in (1, 1000):  # and one who never ends
        edited, _ = directory_drive([project], store, Editor(file, times))
        assert shown(edited, "/0/project/pkg/module.py") == file.read_text()
        assert directory_drive([project], store)[0] == edited
        file.write_text("first")
    first, _ = directory_drive([project], store)
    assert shown(first, "/0/project/pkg/module.py") == "first"
    assert os.listdir(store.root / "tmp") == []


def test_the_tools_are_of_the_package_they_are_named_by(store: Store, tmp_path: Path) -> None:
    package = tmp_path / "agentenv"
    package.mkdir()
    (package / "__init__.py").write_text("first")
    edited = tools_drive(store, Editor(package / "__init__.py", 1), source=package)
    assert shown(edited, "/packages/agentenv/__init__.py") == "edit 0"
    (package / "__init__.py").write_text("first")
    assert shown(tools_drive(store, source=package), "/packages/agentenv/__init__.py") == "first"


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_is_removed_while_it_is_read_or_copied_is_not_there(
    store: Store, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    gone = project / "pkg/a.new"
    look = Path.lstat

    def remove(path: Path) -> os.stat_result:
        """Somebody renames it just when it was found."""
        if path == gone and gone.exists():
            gone.rmdir() if what == "directory" else gone.unlink()
        return look(path)

    monkeypatch.setattr(Path, "lstat", remove)
    for use in (lambda: directory_drive([project], store), lambda: Copier("it").copy(project, tmp_path / "copy")):
        gone.mkdir() if what == "directory" else gone.write_text("x")
        use()
        assert not gone.exists()
    assert "a.new" not in os.listdir(tmp_path / "copy/pkg")
    with pytest.raises(FileNotFoundError):
        Copier("it").digest(tmp_path / "none")


def test_limits_name_the_directory(store: Store, project: Path, tmp_path: Path) -> None:
    with open(project / "data.bin", "wb") as file:
        file.write(bytes(3 << 20))
    with pytest.raises(ConfigError, match=rf"at most 2 MB in 100,000 files .* {project} goes beyond"):
        directory_drive([project], store, max_mb=2)
    with pytest.raises(ConfigError, match=rf"at most 1024 MB in 3 files .* {project} goes beyond"):
        directory_drive([project], store, max_files=3)
    with pytest.raises(ConfigError, match="is not there"):
        directory_drive([tmp_path / "none"], store)
    assert os.listdir(store.root / "tmp") == []


def test_scratch(store: Store) -> None:
    image = scratch_template(64, store)
    assert scratch_template(64, store) == image
    assert image.stat().st_size == 64 << 20
    assert disk_bytes(image) < 1 << 20
    huge = scratch_template(200_000, store)
    assert disk_bytes(huge) < 128 << 20
    with pytest.raises(ConfigError, match="at least 4 MB"):
        scratch_template(1, store)


@pytest.mark.parametrize("where", ["", "below/store"])
def test_a_store_is_not_copied_into_itself(tmp_path: Path, where: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("x")
    (source / "below").mkdir()
    store = Store(source / where)
    (store.root / "tmp/taken").mkdir()
    (store.root / "tmp/taken/x").write_text("x")
    tree = Tree.make(tmp_path)
    build_image("mine", Recipe(str(source)), store)
    take_in(source, tree, store.own)
    assert (tree.root / "file").exists()
    assert not list(tree.root.rglob("tmp"))
    first, _ = directory_drive([source], store)
    if where:
        assert directory_drive([source], store)[0] == first
        assert listed(first, "/0/source") == ["below 040755", "file 100644"]
        assert listed(first, "/0/source/below") == []
