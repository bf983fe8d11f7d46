"""What of the host an environment sees: decided from paths alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentenv.sandbox.runtimes._view import View, is_too_wide, plan_view


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a project, a module, a package, and things that are nobody's business."""
    home = tmp_path / "home" / "user"
    for directory in (".ssh", "project", "package", "letters"):
        (home / directory).mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    (home / "letters" / "love.txt").write_text("x")
    (home / "package" / "__init__.py").touch()
    (home / "module.py").touch()
    (home / "project" / "env.py").touch()
    return home


def _view(paths: list[Path], home: Path, *, hidden: list[Path] | None = None) -> View:
    return plan_view([str(p) for p in paths], hidden=[str(p) for p in hidden or []], home_directories=[str(home)])


def _shown(view: View, path: Path) -> bool:
    return any(str(path) == bind or str(path).startswith(bind + "/") for bind in view.binds)


def test_a_project_in_a_home_is_shown_and_the_home_is_not(home: Path) -> None:
    view = _view([home / "project"], home)
    assert _shown(view, home / "project" / "env.py")
    assert not _shown(view, home / ".ssh" / "id")
    assert not _shown(view, home / "module.py")
    assert view.notes == ()


@pytest.mark.parametrize("up", [0, 1], ids=["home", "parent of home"])
def test_a_home_on_the_path_shows_its_modules_only(home: Path, up: int) -> None:
    view = _view([(home, home.parent)[up]], home)
    assert _shown(view, home / "module.py") == (up == 0)
    assert _shown(view, home / "package" / "__init__.py") == (up == 0)
    assert not _shown(view, home / ".ssh" / "id")
    assert not _shown(view, home / "letters" / "love.txt")
    assert len(view.notes) == 1


def test_a_link_to_a_home_is_a_home(home: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    assert is_too_wide(str(tmp_path / "link"), [str(home)])
    view = _view([tmp_path / "link"], home)
    assert not _shown(view, home / ".ssh" / "id")
    assert not _shown(view, tmp_path / "link" / ".ssh" / "id")


@pytest.mark.parametrize("path", ["/", "/etc", "/home", "/tmp", "/var", "/proc", "/sys", "/dev", "/run", "/root"])
def test_general_directories_are_too_wide(path: str) -> None:
    assert is_too_wide(path, ["/root"])


def test_secrets_of_the_system_are_never_shown(home: Path) -> None:
    view = _view([Path("/"), Path("/etc"), Path("/var"), Path("/run")], home)
    for path in ("/etc/shadow", "/etc/passwd", "/etc/ssh", "/var/log", "/run", "/proc/1", "/sys/kernel"):
        assert not _shown(view, Path(path)), path


def test_no_bind_lies_in_another(home: Path) -> None:
    view = _view([home / "project", home / "project" / "env.py", home / "package"], home)
    for bind in view.binds:
        assert not any(bind != other and bind.startswith(other + "/") for other in view.binds)
        assert os.path.exists(bind)


def test_runs_and_the_configuration_are_covered_where_they_would_be_seen(home: Path) -> None:
    project = home / "project"
    (project / "runs").mkdir()
    (project / "config.toml").touch()
    elsewhere = home / "letters"
    view = _view([project], home, hidden=[project / "runs", project / "config.toml", elsewhere, project / "absent"])
    assert set(view.hidden) == {str(project / "runs"), str(project / "config.toml")}


def test_what_must_be_imported_is_not_covered(home: Path) -> None:
    view = _view([home / "project"], home, hidden=[home / "project", home])
    assert view.hidden == ()
    assert str(home / "project") in view.notes[0]
