"""Mistakes outside the environments, and between them, with the exact Problem each gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentenv.config import load_config
from agentenv.config.load import config_from_keywords
from agentenv.errors import ConfigError, Problem

ProblemsOf = Callable[..., list[Problem]]

QUOTES = "write it without quotes"
UNQUOTED = "text needs quotes; true and false are lower case"
MEMORY_HOME = "memory_mb belongs in [[environments]] or [global.defaults]"
REQUIRED = "this key is required"
OWN_ID = "expected an id of its own, "
TAKEN = "environments[0] (line 1) has it already"
ID = "expected 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit, "
ID_HINT = "it becomes a directory and a host name"
RUNTIMES = 'expected one of "auto", "bubblewrap", "process", "firecracker", "qemu", '
LEVELS = 'expected one of "debug", "info", "warning", "error", '
OK = '\n[[environments]]\nid = "a"\n'

ELSEWHERE: list[tuple[str, tuple[int, str, str, str]]] = [
    ('[global]\nruntime = "bwrap"' + OK, (2, "global.runtime", RUNTIMES + 'got "bwrap"', "")),
    ('[global]\nlog_level = "INFO"' + OK, (2, "global.log_level", LEVELS + 'got "INFO"', 'did you mean "info"?')),
    (
        '[global]\nmax_parallel_envs = "8"' + OK,
        (2, "global.max_parallel_envs", 'expected an integer >= 1, got "8" (a string)', QUOTES),
    ),
    ("[global]\nparallel = 3" + OK, (2, "global.parallel", "unknown key", 'did you mean "max_parallel_envs"?')),
    (
        "[global]\nmemory_mb = 64" + OK,
        (2, "global.memory_mb", "unknown key", MEMORY_HOME),
    ),
    ("[global]\ncount = 2" + OK, (2, "global.count", "unknown key", "count belongs in [[environments]]")),
    (
        "[global]\nn_envs = 2" + OK,
        (2, "global.n_envs", "unknown key", 'did you mean "count"? It belongs in [[environments]]'),
    ),
    (
        '[global]\nisolation = "container"' + OK,
        (2, "global.isolation", 'expected one of "vm", "sandbox", "process", got "container"', ""),
    ),
    ("global = 1" + OK, (1, "global", "expected a table, got 1 (an integer)", "")),
    ("[global]\ndefaults = 1" + OK, (2, "global.defaults", "expected a table, got 1 (an integer)", "")),
    # Said once, where it is written, although every environment inherits it.
    (
        "[global.defaults]\nmemory_mb = 1" + OK + '[[environments]]\nid = "b"\nenv_vars = {}',
        (2, "global.defaults.memory_mb", "expected an integer >= 16, got 1", ""),
    ),
    (
        '[global.defaults.env_vars]\n"A-B" = 1' + OK + "env_vars = { C = 1 }",
        (
            2,
            "global.defaults.env_vars.A-B",
            "expected a name of letters, digits and '_' that does not start with a digit, got \"A-B\"",
            "",
        ),
    ),
    ('[global.defaults]\nid = "b"' + OK, (2, "global.defaults.id", "unknown key", "id belongs in [[environments]]")),
    (
        '[global.defaults]\nenv = "A-v0"\ncommand = ["a"]' + OK,
        (2, "global.defaults.env", "expected env or command, got both", "keep one as the default"),
    ),
    ("memory_mb = 64" + OK, (1, "memory_mb", "unknown key", MEMORY_HOME)),
    ("[globals]\nseed = 1" + OK, (1, "globals", "unknown key", "did you mean [global]?")),
    ('[[environment]]\nid = "a"', (1, "environment", "unknown key", "did you mean [[environments]]?")),
    ('[[envs]]\nid = "a"', (1, "envs", "unknown key", "did you mean [[environments]]?")),
    (
        '[environments]\nid = "a"',
        (
            1,
            "environments",
            "expected an array of tables, got one table",
            "write [[environments]] with two brackets on each side",
        ),
    ),
    ("environments = [1]", (1, "environments[0]", "expected a table, got 1 (an integer)", "")),
    ("environments = 1", (1, "environments", "expected a non-empty list of tables, got 1 (an integer)", "")),
    *[
        (
            text,
            (
                line,
                "environments",
                "expected at least one [[environments]] table, got none",
                'the smallest is [[environments]] followed by id = "agent_1"',
            ),
        )
        for text, line in [("", 1), ("\n[global]\nseed = 1\n", 1), ("\nenvironments = []", 2)]
    ],
    ("[[environments]]\ncount = 2", (1, "environments[0].id", "expected a string, got nothing", REQUIRED)),
    (
        '[[environments]]\nid = "../x"',
        (
            2,
            "environments[0].id",
            ID + 'got "../x"',
            ID_HINT,
        ),
    ),
    (
        '[[environments]]\nid = "a\\n"',
        (
            2,
            "environments[0].id",
            ID + 'got "a\\n"',
            ID_HINT,
        ),
    ),
    (
        '[[environments]]\nid = "a"\n\n[[environments]]\nid = "a"',
        (5, "environments[1].id", OWN_ID + 'got "a" a second time', TAKEN),
    ),
    (
        '[[environments]]\nid = "a-1"\n\n[[environments]]\nid = "a"\ncount = 3',
        (5, "environments[1].id", OWN_ID + 'got "a-1" a second time', TAKEN),
    ),
    (
        f'[[environments]]\nid = "{"a" * 62}"\ncount = 11',
        (
            2,
            "environments[0].id",
            "expected at most 60 characters with count = 11, got 62",
            f"the last copy would be {'a' * 62}-10",
        ),
    ),
    ('[bubblewrap]\nnested = "yes"' + OK, (2, "bubblewrap.nested", 'expected one of "auto", "never", got "yes"', "")),
    ('[bubblewrap]\nbwrap = "x"' + OK, (2, "bubblewrap.bwrap", "unknown key", 'did you mean "binary"?')),
    # TOML itself
    (
        "[global]\nseed = 1\nseed = 2\n",
        (3, "file", "not valid TOML at column 9: cannot overwrite a value", "this key stands in the table already"),
    ),
    (
        "[global]\nlog_level = info\n",
        (2, "file", "not valid TOML at column 16: expected newline or end of document after a statement", UNQUOTED),
    ),
    ("[global]\n\nruntime = auto\n", (3, "file", "not valid TOML at column 11: invalid value", UNQUOTED)),
    ("[global]\n\nx = [1\n", (3, "file", "not valid TOML: unclosed array", "")),
    ("a = 1\n[global\n", (2, "file", "not valid TOML at column 8: expected ']' at the end of a table declaration", "")),
]


@pytest.mark.parametrize(("text", "problem"), ELSEWHERE, ids=[row[0] for row in ELSEWHERE])
def test_elsewhere(text: str, problem: tuple[int, str, str, str], problems_of: ProblemsOf) -> None:
    line, *rest = problem
    assert problems_of(text) == [Problem(f"f.toml:{line}", *rest)]


def _endless() -> dict[str, object]:
    table: dict[str, object] = {"id": "a"}
    table["env_kwargs"] = table
    return table


def test_what_contains_itself_is_refused() -> None:
    for load in (lambda: load_config({"environments": [_endless()]}), lambda: config_from_keywords(None, **_endless())):
        with pytest.raises(ConfigError, match="do not contain themselves"):
            load()


@pytest.mark.parametrize("key", ["env_kwargs", "env_vars"])
def test_integers_that_cannot_be_written_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"environments\\[0\\].{key}.a: expected an integer of at most 14000 bits"):
        load_config({"environments": [{"id": "x", key: {"a": 10**6000}}]})
