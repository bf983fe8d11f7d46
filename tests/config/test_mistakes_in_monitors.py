"""Mistakes in the tables of monitors, with the exact Problem each gives: keys without effect are among them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentenv.config import Config, load_config
from agentenv.errors import Problem

ProblemsOf = Callable[..., list[Problem]]

OK = '\n[[environments]]\nid = "a"\n'
JAILER = "expected true, false or the path of the jailer, "
PLACE = 'such as "/data"'
SHARED = "all machines share the file; what an environment writes goes to /tmp"
HUGE = (
    "machines are brought back from snapshots, and Firecracker does not map a snapshot into huge pages; the qemu"
    " runtime has them"
)
BALLOON = (
    "machines share the memory of their snapshot, and QEMU would let a guest take pages out of that file by its"
    " balloon; the firecracker runtime has one"
)

MISTAKES: list[tuple[str, tuple[int, str, str, str]]] = [
    (
        '[firecracker]\njailer = "true"',
        (2, "firecracker.jailer", JAILER + 'got "true" (a string)', "write it without quotes"),
    ),
    (
        "[firecracker]\njailer = 1",
        (2, "firecracker.jailer", JAILER + "got 1 (an integer)", "true takes the jailer on PATH"),
    ),
    (
        "[firecracker]\njailer = true\njailer_uid = 0",
        (3, "firecracker.jailer_uid", "expected an integer >= 1, got 0", ""),
    ),
    (
        "[firecracker]\njailer_gid = 7",
        (2, "firecracker.jailer_gid", "expected jailer_gid only together with jailer", "set jailer = true"),
    ),
    ('[firecracker]\nhuge_pages = "2M"', (2, "firecracker.huge_pages", 'expected "none", got "2M"', HUGE)),
    ('[qemu]\nhuge_pages = "1G"', (2, "qemu.huge_pages", 'expected one of "none", "2M", got "1G"', "")),
    ("[qemu]\nballoon_mb = 64", (2, "qemu.balloon_mb", "expected 0, got 64", BALLOON)),
    ("[firecracker]\nballoon_mb = -1", (2, "firecracker.balloon_mb", "expected an integer >= 0, got -1", "")),
    (
        '[firecracker]\nlog_level = "warn"',
        (
            2,
            "firecracker.log_level",
            'expected one of "debug", "info", "warning", "error", got "warn"',
            'did you mean "warning"?',
        ),
    ),
    (
        "[qemu]\ndisk_mb_per_s = 0.5",
        (2, "qemu.disk_mb_per_s", "expected an integer >= 1, got 0.5 (a float)", ""),
    ),
    ("[qemu]\ndisk_ops = 5", (2, "qemu.disk_ops", "unknown key", 'did you mean "disk_ops_per_s"?')),
    ("[qemu]\njailer = true", (2, "qemu.jailer", "unknown key", "jailer belongs in [firecracker]")),
    (
        '[qemu]\nboot_args = "a\\u0000b"',
        (2, "qemu.boot_args", r'expected words on one line without control characters, got "a\u0000b" (a string)', ""),
    ),
    (
        f'[firecracker]\nboot_args = "{"x" * 1025}"',
        (
            2,
            "firecracker.boot_args",
            "expected at most 1024 bytes, got 1025",
            "the kernel takes 2047 bytes in all, of which a monitor needs some",
        ),
    ),
    ("[qemu]\nboot_args = 5", (2, "qemu.boot_args", "expected a string, got 5 (an integer)", "")),
    ("[qemu]\ndrives = 3", (2, "qemu.drives", "expected a list of tables, got 3 (an integer)", "")),
    ('[qemu]\ndrives = ["a.img"]', (2, "qemu.drives[0]", 'expected a table, got "a.img" (a string)', "")),
    (
        '[qemu]\ndrives = [{ path = "a.img" }]',
        (2, "qemu.drives[0].mount", "expected a string, got nothing", "this key is required"),
    ),
    (
        '[[qemu.drives]]\npath = "a.img"\nmount = "data"',
        (3, "qemu.drives[0].mount", 'expected an absolute path in the machine, got "data" (a string)', PLACE),
    ),
    (
        '[[qemu.drives]]\npath = "a.img"\nmount = "/proc/x"',
        (3, "qemu.drives[0].mount", 'expected a directory for the drive alone, got "/proc/x" (a string)', PLACE),
    ),
    (
        '[[firecracker.drives]]\npath = "a.img"\nmount = "/a"\nreadonly = false',
        (4, "firecracker.drives[0].readonly", "expected true, got false", SHARED),
    ),
    (
        '[[qemu.drives]]\npath = "a"\nmount = "/a"\n[[qemu.drives]]\npath = "b"\nmount = "/a/"',
        (
            6,
            "qemu.drives[1].mount",
            'expected a directory of its own, got "/a/" (a string)',
            "drives[0] has it already",
        ),
    ),
    (
        '[[qemu.drives]]\npath = "a"\nmount = "/a"\nkind = "ext4"',
        (4, "qemu.drives[0].kind", "unknown key", "valid keys of a drive: path, mount, readonly"),
    ),
]


@pytest.mark.parametrize(("text", "problem"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_mistakes(text: str, problem: tuple[int, str, str, str], problems_of: ProblemsOf) -> None:
    line, *rest = problem
    assert problems_of(text + OK) == [Problem(f"f.toml:{line}", *rest)]


TABLES: dict[str, object] = {
    "firecracker": {
        "binary": "/opt/firecracker",
        "jailer": "/opt/jailer",
        "jailer_uid": 1234,
        "jailer_gid": 1235,
        "log_level": "info",
        "boot_args": "quiet",
        "drives": [{"path": "data.img", "mount": "/data", "readonly": True}],
        "disk_mb_per_s": 50,
        "disk_ops_per_s": 1000,
        "balloon_mb": 64,
    },
    "qemu": {"huge_pages": "2M", "drives": [{"path": "a.img", "mount": "/a/b"}], "disk_ops_per_s": 5},
    "environments": [{"id": "a"}],
}


def test_what_is_written_is_what_was_read() -> None:
    config = load_config(TABLES)
    assert load_config(config.to_dict()) == config
    assert config.firecracker.drives[0].mount == "/data"
    assert config.digest() != Config(config.global_, config.environments).digest()


def test_a_table_with_nothing_of_jails_may_be_written_and_read() -> None:
    config = load_config({"firecracker": {"balloon_mb": 1}, "environments": [{"id": "a"}]})
    assert "jailer_uid" not in config.to_toml()
    assert load_config(config.to_dict()) == config
