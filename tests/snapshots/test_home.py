"""Where there is no home directory, as for a number that is no user, it is said what to set."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from agentenv.disk import cache_directory, data_directory
from agentenv.errors import RuntimeUnavailable
from agentenv.images.store import Store

_VARIABLES = ("HOME", "AGENTENV_DATA", "AGENTENV_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("home", [None, ""])
def test_without_the_variable_the_list_of_users_counts(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert data_directory() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".local/share/agentenv"


def test_who_is_no_user_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for ask, variable in ((data_directory, "DATA"), (cache_directory, "CACHE"), (Store.default, "CACHE")):
        with pytest.raises(RuntimeUnavailable, match="HOME is not set") as caught:
            ask()
        assert caught.value.remedy == f"set HOME=DIR, or AGENTENV_{variable}=DIR"
    monkeypatch.setenv("AGENTENV_DATA", str(tmp_path))
    monkeypatch.setenv("AGENTENV_CACHE", str(tmp_path))
    assert data_directory() == cache_directory() == Store.default().root == tmp_path
