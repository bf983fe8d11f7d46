"""An environment's exception as it is shown: cleaned, and explained where the sandbox is the reason."""

from __future__ import annotations

import pytest

from agentenv.errors import Cause, CauseKind, EnvError, Owner
from agentenv.fleet.reported import MEMORY_HINT, READ_ONLY_HINT, readable

CAUSE = Cause(CauseKind.EXCEPTION, Owner.ENVIRONMENT, "its code raised")
TRACE = "Traceback (most recent call last):\n  somewhere\n"


def reported(type_name: str, message: str) -> EnvError:
    error = EnvError(env_id="a", cause=CAUSE, type_name=type_name, message=message, traceback_text=TRACE, index=2)
    return readable(error)


def test_an_ordinary_exception_is_shown_with_its_traceback() -> None:
    error = reported("KeyError", "x\x1b[31m")
    assert "\x1b" not in str(error)
    assert str(error).endswith("  somewhere")
    assert READ_ONLY_HINT not in str(error)
    assert MEMORY_HINT not in str(error)


def test_a_name_that_leads_nowhere_is_told_once_without_the_traceback() -> None:
    error = reported("agentenv.guest.maker.EnvironmentNotFound", "no such thing")
    assert str(error) == "environment 'a' (index 2): EnvironmentNotFound: no such thing"
    assert error.traceback_text == TRACE
    assert error.type_name == "agentenv.guest.maker.EnvironmentNotFound"


def test_a_read_only_file_system_is_explained_beside_what_was_reported() -> None:
    error = reported("OSError", "[Errno 30] Read-only file system: '/usr/x'")
    assert str(error).endswith(f"  somewhere\n{READ_ONLY_HINT}")
    assert (error.message, error.traceback_text) == ("[Errno 30] Read-only file system: '/usr/x'", TRACE)


@pytest.mark.parametrize("name", ["MemoryError", "numpy._core._exceptions._ArrayMemoryError"])
def test_where_memory_is_not_given_its_limit_is_named(name: str) -> None:
    error = reported(name, "Unable to allocate 8.00 GiB")
    assert str(error).endswith(f"  somewhere\n{MEMORY_HINT}")
    assert (error.type_name, error.traceback_text) == (name, TRACE)
