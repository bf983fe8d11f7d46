"""Which runtime a run gets, and that it is said once why."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from agentenv.config import Config, load_config
from agentenv.errors import RuntimeUnavailable
from agentenv.fleet import choosing
from agentenv.fleet.choosing import choose_runtime, explain_automatic, monitor_settings


def _config(runtime: str = "auto", isolation: str | None = None, **keys: Any) -> Config:
    table = {"runtime": runtime} | ({} if isolation is None else {"isolation": isolation})
    return load_config({"global": table, "environments": [{"id": "a", **keys}]})


@pytest.fixture(autouse=True)
def no_firecracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choosing, "_said", set())


@pytest.mark.parametrize(
    ("config", "name", "why"),
    [
        (_config(), "bubblewrap", "firecracker is not taken: Firecracker: no firecracker on PATH"),
        (_config(isolation="vm"), "qemu", "firecracker is not taken: Firecracker: no firecracker on PATH"),
        (
            _config(memory_mb=64),
            "bubblewrap",
            "firecracker is not taken: a has memory_mb = 64, and a machine needs 128",
        ),
        (
            _config(network=True),
            "bubblewrap",
            "firecracker is not taken: a has a network, which bubblewrap gives without root",
        ),
    ],
)
def test_auto_says_once_what_it_is_and_why(
    config: Config, name: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "agentenv.fleet"):
        for _ in range(2):
            assert choose_runtime(config, config.expand()) == name
    assert [record.getMessage() for record in caplog.records] == [f'runtime "auto" is {name} ({why})']


@pytest.mark.parametrize("name", ["bubblewrap", "process", "qemu", "firecracker"])
def test_what_is_named_is_taken_and_nothing_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "agentenv.fleet"):
        config = _config(name)
        assert choose_runtime(config, config.expand()) == name
    assert caplog.records == []


def test_what_is_less_than_asked_for_is_refused() -> None:
    with pytest.raises(RuntimeUnavailable, match='gives "sandbox"'):
        choose_runtime(_config("bubblewrap", "vm"), ())


def test_explaining_says_what_auto_would_be() -> None:
    name, why = explain_automatic(_config("process"))
    assert name == "bubblewrap"
    assert why.endswith("no firecracker on PATH")


def test_paths_of_a_table_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        '[firecracker]\nbinary = "bin/fc"\njailer = "/opt/jailer"\ndrives = [{ path = "d.img", mount = "/d" }]\n'
        '[[environments]]\nid = "a"\n'
    )
    settings = monitor_settings(load_config(tmp_path / "c.toml"), "firecracker")
    assert settings["binary"] == str(tmp_path / "bin/fc")
    assert settings["jailer"] == "/opt/jailer"
    assert settings["drives"][0]["path"] == str(tmp_path / "d.img")
    assert monitor_settings(_config(), "process") == {}
    assert monitor_settings(_config(), "firecracker")["jailer"] is False
