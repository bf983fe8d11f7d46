"""What users give - names, commands, variables - and what sandboxes say, both as tables: no machine is needed."""

from __future__ import annotations

import contextlib
import errno
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.boxes.box import Sandbox
from agentenv.boxes.commands import make_spec, new_name, read_command, read_name, read_variables
from agentenv.boxes.failures import from_record, to_record
from agentenv.boxes.plans import Plan
from agentenv.boxes.results import Completed, Ending, read_entry
from agentenv.boxes.status import died, read_ending
from agentenv.errors import (
    Cause,
    CauseKind,
    ClosedError,
    ConfigError,
    Owner,
    Problem,
    ProgramFailed,
    ProtocolError,
    ResourceLimit,
    RuntimeUnavailable,
    SandboxDied,
    SnapshotError,
    SnapshotUnknown,
    StepTimeout,
)
from agentenv.telemetry.text import printable

CAUSE = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "it is gone", signal=9, oom_kills=2)


@pytest.mark.parametrize("name", ["a", "web-1", "A_b", "9", "x" * 48])
def test_names_that_can_be_host_names_and_sockets(name: str) -> None:
    assert read_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a.b", "../a", "a/b", "x" * 49, "ä", "a\n", "a b", 3, None])
def test_other_names_are_refused_with_what_was_expected(name: object) -> None:
    with pytest.raises(ConfigError, match="expected 1 to 48 letters"):
        read_name(name)


@given(st.text("abcdef-", min_size=1, max_size=48).filter(lambda text: text[0] != "-"))
def test_new_names_can_be_names(stem: str) -> None:
    assert read_name(new_name(stem)) != read_name(new_name(stem))


def test_commands() -> None:
    assert read_command("echo $HOME") == ("/bin/sh", "-c", "echo $HOME")
    assert read_command(["a", "b c"]) == ("a", "b c") == read_command(("a", "b c"))


@pytest.mark.parametrize("command", [[], [""], b"ls", [b"ls"], ["ls", 3], ["a\0b"], "a\0b", None, 3, {"ls"}])
def test_other_commands_are_refused(command: object) -> None:
    with pytest.raises(ConfigError, match="expected"):
        read_command(command)


@pytest.mark.parametrize(
    "variables", [{"": "a"}, {"a=b": "c"}, {"a": 3}, {3: "a"}, {"a": "b\0"}, {"a\0": "b"}, {"a\nb": "c"}]
)
def test_variables_that_cannot_be(variables: dict[str, str]) -> None:
    assert read_variables({"A": "b=c", "B": ""}) == {"A": "b=c", "B": ""}
    with pytest.raises(ConfigError, match="name without '='"):
        read_variables(variables)


@pytest.mark.parametrize("variables", [{"a=b": "secret"}, {"a": "secret\0"}, {"a": b"secret"}])
def test_values_of_variables_are_not_shown(variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"got 'a.* with a value of type (str|bytes)") as caught:
        read_variables(variables)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("keywords", "key"),
    [
        ({"memory_mb": 0}, "memory_mb"),
        ({"memory_mb": 1.5}, "memory_mb"),
        ({"memory_mb": True}, "memory_mb"),
        ({"vcpu_count": -1}, "vcpu_count"),
        ({"disk_mb": "64"}, "disk_mb"),
        ({"disk_mb": 1 << 70}, "disk_mb"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
        ({"vcpu_count": math.nan}, "vcpu_count"),
        ({"vcpu_count": math.inf}, "vcpu_count"),
        ({"vcpu_count": True}, "vcpu_count"),
        ({"start_timeout_s": math.inf}, "start_timeout_s"),
        ({"image": 123}, "image"),
        ({"image": ""}, "image"),
        ({"image": b"i"}, "image"),
        ({"kernel": ["k"]}, "kernel"),
        ({"env": ["A=b"]}, "env"),
        ({"env": {"A=b": "c"}}, "env.A=b"),
        ({"settings": 3}, "settings"),
        ({"runtime": "qemu", "settings": ["accelerator"]}, "settings"),
        ({"network": "internet", "network_mbps": math.nan}, "network_mbps"),
        ({"name": "a b"}, "name"),
        ({"runtime": "qemu", "settings": {"accellerator": "tcg"}}, "settings.accellerator"),
        ({"runtime": "qemu", "settings": {"accelerator": "fast"}}, "settings.accelerator"),
        ({"settings": {"accelerator": "tcg"}}, "settings"),
        ({"network": "yes"}, "network"),
        ({"network": {}}, "network"),
        ({"network": {"allows": ["1.2.3.4"]}}, "network.allows"),
        ({"network": {"allow": ["1.2.3.4", "example.com"]}}, "network.allow[1]"),
        ({"network": {"deny": ["::1"]}}, "network.deny[0]"),
        ({"network": "internet", "network_mbps": 0}, "network_mbps"),
        ({"network": "internet", "network_mbps": "3"}, "network_mbps"),
        ({"network_mbps": 3}, "network_mbps"),
    ],
)
def test_keywords_that_cannot_be_are_refused_before_anything_starts(keywords: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Sandbox.create(**keywords)  # type: ignore[arg-type]  # wrong on purpose
    assert [problem.path for problem in caught.value.problems] == [key]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_spec(image=3, name="a b", memory_mb=0, env={"": "x"}, network="yes")  # type: ignore[arg-type]  # wrong on purpose
    assert {problem.path for problem in caught.value.problems} == {"image", "name", "memory_mb", "env.", "network"}


@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
def test_runtimes_without_a_workbench_are_refused_with_what_to_use(runtime: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=f"runtime '{runtime}' has no sandboxes to work in by hand") as caught:
        Sandbox.create(runtime=runtime)
    assert "'firecracker' or 'qemu'" in caught.value.remedy


def test_unknown_runtimes_are_named() -> None:
    with pytest.raises(RuntimeUnavailable, match="unknown runtime 'docker'"):
        Sandbox.create(runtime="docker")


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
def test_counts_are_numbers_from_one_on(count: object) -> None:
    with pytest.raises(ConfigError, match="expected a number from 1 on"):
        Sandbox.create_many(count)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("told", "ending", "code"),
    [
        ({"exit": 0}, Ending(0, None), 0),
        ({"exit": 255}, Ending(255, None), 255),
        ({"signal": 9}, Ending(None, 9), 137),
        ({"signal": 9, "oom_kills": 2}, Ending(None, 9, 2), 137),
        ({"exit": 1, "oom_kills": -3}, Ending(1, None), 1),
        ({"exit": 1, "oom_kills": "many"}, Ending(1, None), 1),
    ],
)
def test_endings(told: dict[str, object], ending: Ending, code: int) -> None:
    assert read_ending(json.dumps(told).encode(), "a") == ending
    assert ending.shell_code == code


@pytest.mark.parametrize(
    "told",
    [b"{}", b"[]", b"3", b"", b"{", b'{"exit": true}', b'{"exit": -1}', b'{"exit": "0"}', b'{"signal": 0}',
     b'{"signal": 999}', b'{"error": "x"}', b'{"exit": 1e3}', b"\xff", b"[" * 60_000],
)  # fmt: skip
def test_what_says_no_ending_is_no_result(told: bytes) -> None:
    with pytest.raises(ProtocolError, match="sandbox 'a': expected"):
        read_ending(told, "a")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, FileNotFoundError),
        (errno.EISDIR, IsADirectoryError),
        (errno.EACCES, PermissionError),
        (errno.EEXIST, FileExistsError),
        (errno.ENOSPC, OSError),
        (None, OSError),
        (123456, OSError),
        ("2", OSError),
    ],
)
def test_errors_of_files_are_the_builtins(number: object, kind: type[OSError]) -> None:
    told = {"error": {"type": "X", "errno": number, "message": "why"}}
    with pytest.raises(OSError, match=r"sandbox 'a': .*why") as caught:
        read_ending(json.dumps(told).encode(), "a")
    assert type(caught.value) is kind
    assert caught.value.errno == (number if kind is not OSError or number == errno.ENOSPC else errno.EIO)


HOSTILE = "\x1b]0;title\x07\x1b[2Jwhy\r\x9b31m\u202e" + "x" * 3000


@pytest.mark.parametrize("number", [errno.ENOENT, None])
def test_what_an_error_of_the_machine_says_is_clean_and_short(number: int | None) -> None:
    told = {"error": {"type": HOSTILE, "errno": number, "message": HOSTILE}}
    with pytest.raises(OSError, match="why") as caught:
        read_ending(json.dumps(told).encode(), "a")
    text = str(caught.value)
    assert printable(text) == text
    assert "title" not in text
    assert "\n" not in text
    assert len(text) < 1200


def test_why_a_machine_died_is_clean() -> None:
    cause = Cause(CauseKind.SANDBOX_LOST, Owner.INFRASTRUCTURE, "it said \x1b]0;title\x07\x1b[2Jbye")
    error = died("a", cause)
    assert "it said bye" in str(error)
    assert "\x1b" not in f"{error} {error.cause.detail}"


def test_the_end_of_stderr_is_clean_and_short() -> None:
    stderr = f"first\n{'y' * 100_000}\n  indented {HOSTILE}\nlast".encode()
    with pytest.raises(ProgramFailed) as caught:
        Completed(("a",), 1, None, b"", stderr, False, False, 0.1).check()
    text = str(caught.value)
    assert printable(text) == text
    assert "title" not in text
    assert "\n      indented why\n" in text
    assert text.endswith("\n    last")
    assert max(map(len, text.splitlines())) <= 504


LINES = b"".join(b"line %d\n" % number for number in range(13))
FILE = {"path": "d/a", "kind": "file", "size": 5, "mode": 420, "uid": 1, "gid": 2, "mtime_ns": 1_500_000_000}


def test_entries() -> None:
    entry = read_entry(json.dumps(FILE).encode(), None, "a")
    assert (entry.name, entry.path, entry.kind, entry.size, entry.mode) == ("a", "d/a", "file", 5, 0o644)
    assert (entry.owner, entry.group, entry.mtime, entry.target) == (1, 2, 1.5, None)
    assert read_entry(json.dumps(FILE).encode(), "/", "a").name == "/"
    assert read_entry(json.dumps(FILE).encode(), "/x/y/", "a").name == "y"


@pytest.mark.parametrize("key", sorted(FILE))
@pytest.mark.parametrize("value", [None, True, 1.5, [], {}])
def test_entries_that_are_none(key: str, value: object) -> None:
    with pytest.raises(ProtocolError, match="expected what a file is"):
        read_entry(json.dumps({**FILE, key: value}).encode(), None, "a")


@pytest.mark.parametrize("name", ["..", "../up", "d/..", "d/../../up", "/etc", "", ".", "d//a", "d/", "a\0b", "./a"])
def test_a_name_that_leads_elsewhere_is_none(name: str) -> None:
    """Whoever copies what was listed joins it to a place of this host."""
    with pytest.raises(ProtocolError, match="expected what a file is"):
        read_entry(json.dumps({**FILE, "path": name}).encode(), None, "a")


@pytest.mark.parametrize("name", ["...", "..a", "a..", " ", "d/a\nb", "\udcff"])
def test_odd_names_are_names(name: str) -> None:
    assert read_entry(json.dumps({**FILE, "path": name}).encode(), None, "a").path == name


@pytest.mark.parametrize(
    ("key", "number"),
    [("size", -1), ("size", 1 << 63), ("mode", -1), ("mode", 1 << 12), ("uid", -1), ("gid", 1 << 32)]
    + [(key, 10**400) for key in ("size", "mode", "uid", "gid", "mtime_ns")],
)
def test_numbers_that_no_file_has(key: str, number: int) -> None:
    with pytest.raises(ProtocolError, match="expected what a file is"):
        read_entry(json.dumps({**FILE, key: number}).encode(), None, "a")


@given(st.dictionaries(st.sampled_from(sorted(FILE)), st.integers() | st.integers(10**40) | st.floats() | st.text()))
def test_no_entry_is_another_error(changed: dict[str, object]) -> None:
    with contextlib.suppress(ProtocolError):
        read_entry(json.dumps({**FILE, **changed}).encode(), None, "a")


@given(st.binary())
def test_no_bytes_are_another_error(told: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_entry(told, None, "a")


def test_entries_may_be_from_before_1970() -> None:
    assert read_entry(json.dumps({**FILE, "mtime_ns": -1_500_000_000}).encode(), None, "a").mtime == -1.5


def test_check_raises_for_anything_but_status_0_and_shows_the_end_of_stderr() -> None:
    good = Completed(("true",), 0, None, b"x\xff", b"", False, False, 0.1)
    assert good.check() is good
    assert good.text == "x\ufffd"
    assert "x" not in repr(good).replace("exit", "")
    for ending, how in (((3, None, False), "exit status 3"), ((None, 9, False), "signal 9"), ((None, 9, True), "time")):
        code, signal, late = ending
        done = Completed(("a", "b"), code, signal, b"", LINES, late, False, 0.1)
        with pytest.raises(
            ProgramFailed, match=f"(?s)expected exit status 0, got.*{how}.*line 11\n    line 12"
        ) as caught:
            done.check()
        assert (caught.value.exit_code, caught.value.signal, caught.value.timed_out) == ending
        assert "line 2" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "sandbox 'a': no", "/x"),
        PermissionError(errno.EACCES, "sandbox 'a': no"),
        OSError("without a number"),
        ResourceLimit(errno.ENOSPC, "full"),
        RuntimeUnavailable("not here", "do this\nand that"),
        RuntimeUnavailable("not here"),
        ClosedError("closed"),
        SnapshotError("taken"),
        ProtocolError("what"),
        ConfigError([Problem("here", "a.b", "expected 1", "try 1")]),
        SandboxDied(CAUSE.detail, env_id="a", cause=CAUSE, noun="sandbox"),
        StepTimeout(CAUSE.detail, env_id="a", cause=CAUSE, noun="sandbox"),
    ],
)
def test_errors_cross_a_socket_and_stay_what_they_are(error: Exception) -> None:
    back = from_record(json.loads(json.dumps(to_record(error))))
    assert type(back) is type(error)
    if error.args != ("without a number",):
        assert str(back) == str(error)
        assert getattr(back, "cause", None) == getattr(error, "cause", None)
        assert getattr(back, "remedy", None) == getattr(error, "remedy", None)
        assert getattr(back, "filename", None) == getattr(error, "filename", None)


def test_errors_that_are_not_known_keep_their_words() -> None:
    assert isinstance(from_record(to_record(SnapshotUnknown("which one"))), SnapshotError)
    assert str(from_record(to_record(KeyError("x")))) == "KeyError: 'x'"


def test_plans_are_the_same_after_having_been_text() -> None:
    reaching = {"network": {"allow": ["internet", "10.0.0.1:53"], "deny": ["tcp://1.2.3.4"]}, "network_mbps": 2.5}
    spec = make_spec(image="i", name="n", memory_mb=300, vcpu_count=1.5, env={"A": "b"}, **reaching)
    plan = Plan("qemu", {"accelerator": "tcg"}, spec, "s" * 32, "snapshot x", None)
    assert plan.spec.network is not None
    assert Plan.from_record(json.loads(json.dumps(plan.to_record()))) == plan
    assert plan.named("m").spec.id == "m"
