"""The filter on paper: evaluated for every number and many arguments, on both machines."""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentenv.guest import seccomp
from agentenv.guest._bpf import JUMP, JUMP_EQ, LOAD, RETURN, Assembler
from agentenv.guest._syscalls import NUMBERS

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PROGRAMS = {
    (arch, network): seccomp.program(arch, allow_network=network) for arch in MACHINES for network in (False, True)
}
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))


def interpret(program: bytes, number: int, machine: int, arguments: tuple[int, ...] = ()) -> int:
    """Evaluates a seccomp filter on one call: written from the kernel's description, not from the assembler."""
    padded = [value % 2**64 for value in (*arguments, *(0,) * (6 - len(arguments)))]
    data = struct.pack("<iIQ6Q", number - 2**32 if number >= 2**31 else number, machine, 0, *padded)
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, position = 0, 0
    while True:
        operation, if_true, if_false, k = code[position]
        position += 1
        match operation:
            case 0x20:  # ld [k]
                if k % 4 or k + 4 > len(data):
                    raise ValueError(f"load at {k}: seccomp takes aligned words within its 64 bytes only")
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:  # and #k
                accumulator &= k
            case 0x05:  # ja
                position += k
            case 0x15:  # jeq #k
                position += if_true if accumulator == k else if_false
            case 0x35:  # jge #k
                position += if_true if accumulator >= k else if_false
            case 0x45:  # jset #k
                position += if_true if accumulator & k else if_false
            case 0x06:  # ret #k
                return k
            case _:
                raise ValueError(f"operation {operation:#x} at {position - 1} is not one the filter should use")


def evaluate(arch: str, number: int, arguments: tuple[int, ...] = (), *, network: bool = False) -> int:
    return interpret(PROGRAMS[arch, network], number, MACHINES[arch], arguments)


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("arch", MACHINES)
def test_every_number_from_0_to_500_gets_the_promised_verdict(arch, network, refused_on, missing):
    expected = {NUMBERS[arch][name]: EPERM for name in refused_on[arch]}
    expected |= {NUMBERS[arch][name]: ENOSYS for name in missing}
    judged = {
        name: NUMBERS[arch][name]
        for name in ("socket", "socketpair")  # the only ones that refuse arguments of all zeros
    }
    expected |= dict.fromkeys(judged.values(), EAFNOSUPPORT)
    # personality(0), a mode of 0, clone flags of 0 and so on are all permitted: zeros pass everywhere else.
    for number in range(501):
        assert evaluate(arch, number, network=network) == expected.get(number, ALLOW), number


@pytest.mark.parametrize("arch", MACHINES)
@given(number=st.integers(0, 2**32 - 1), other=st.integers(0, 2**32 - 1))
def test_calls_by_another_machines_convention_kill(arch, number, other):
    if other != MACHINES[arch]:
        assert interpret(PROGRAMS[arch, False], number, other) == KILL_PROCESS


@given(number=st.integers(0x40000000, 2**32 - 1))
@example(0x40000000)
@example(2**32 - 1)
def test_x32_numbers_do_not_exist(number):
    assert evaluate("x86_64", number) == ENOSYS


WORD = st.integers(0, 2**32 - 1)
HIGH = st.integers(0, 2**32 - 1)
MODE = st.one_of(
    WORD, st.integers(0, 0o7777), st.builds(lambda f, m: f << 12 | m, st.integers(0, 15), st.integers(0, 0o7777))
)
MODE_AT = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mkdir": 1, "mkdirat": 2}
NODE_AT = {"mknod": 1, "mknodat": 2}
OPEN_AT = {"open": (1, 2), "openat": (2, 3)}


def each(names):
    return [(arch, name) for arch in MACHINES for name in names if name in NUMBERS[arch]]


def place(values: dict[int, int], high: int) -> tuple[int, ...]:
    """Arguments with the upper halves set to what the kernel ignores."""
    return tuple(values.get(position, 0) | high << 32 for position in range(6))


@pytest.mark.parametrize(("arch", "name"), each(MODE_AT))
@given(mode=MODE, high=HIGH)
def test_modes_that_set_an_identity_are_refused(arch, name, mode, high):
    expected = EPERM if mode & (stat.S_ISUID | stat.S_ISGID) else ALLOW
    assert evaluate(arch, NUMBERS[arch][name], place({MODE_AT[name]: mode}, high)) == expected


@pytest.mark.parametrize(("arch", "name"), each(NODE_AT))
@given(mode=MODE, high=HIGH)
def test_device_nodes_are_refused(arch, name, mode, high):
    bad = mode & (stat.S_ISUID | stat.S_ISGID) or stat.S_ISCHR(mode & 0xFFFF) or stat.S_ISBLK(mode & 0xFFFF)
    assert evaluate(arch, NUMBERS[arch][name], place({NODE_AT[name]: mode}, high)) == (EPERM if bad else ALLOW)


@pytest.mark.parametrize(("arch", "name"), each(OPEN_AT))
@given(flags=st.one_of(WORD, st.sampled_from([0, os.O_CREAT, os.O_TMPFILE, os.O_DIRECTORY])), mode=MODE, high=HIGH)
def test_open_looks_at_the_mode_only_when_it_creates(arch, name, flags, mode, high):
    flags_at, mode_at = OPEN_AT[name]
    creates = flags & (os.O_CREAT | 0o20000000)
    expected = EPERM if creates and mode & 0o6000 else ALLOW
    assert evaluate(arch, NUMBERS[arch][name], place({flags_at: flags, mode_at: mode}, high)) == expected


@pytest.mark.parametrize("arch", MACHINES)
@given(flags=st.one_of(WORD, st.integers(0, 31).map(lambda bit: 1 << bit)), high=HIGH)
def test_clone_with_any_new_namespace_is_refused(arch, flags, high):
    new = 0x7E020000
    assert evaluate(arch, NUMBERS[arch]["clone"], place({0: flags}, high)) == (EPERM if flags & new else ALLOW)


@pytest.mark.parametrize("arch", MACHINES)
@given(value=st.one_of(WORD, st.sampled_from([0, 0x20000, 0x40000, 8, 0xFFFFFFFF])), high=HIGH)
def test_personality_knows_three_values(arch, value, high):
    expected = ALLOW if value in (0, 0x20000, 0xFFFFFFFF) else EPERM
    assert evaluate(arch, NUMBERS[arch]["personality"], place({0: value}, high)) == expected


@pytest.mark.parametrize("arch", MACHINES)
@given(request_=st.one_of(WORD, st.sampled_from([0x5412, 0x541C, 0x5413])), high=HIGH)
def test_ioctl_refuses_typing_into_the_terminal(arch, request_, high):
    expected = EPERM if request_ in (0x5412, 0x541C) else ALLOW
    assert evaluate(arch, NUMBERS[arch]["ioctl"], place({1: request_}, high)) == expected


def expected_of_socket(family: int, kind: int, protocol: int, network: bool) -> int:
    match family:
        case 1:
            return ALLOW
        case 2 | 10:
            if kind & 0xF == 10:
                return EAFNOSUPPORT
            return ALLOW if network or kind & 0xF in (1, 2) else EPERM
        case 16 if protocol == 0:
            return ALLOW
    return EAFNOSUPPORT


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("arch", MACHINES)
@given(
    family=st.one_of(st.integers(0, 50), WORD),
    kind=st.one_of(st.integers(0, 15), st.builds(lambda t: t | 0o2004000, st.integers(0, 15)), WORD),
    protocol=st.one_of(st.integers(0, 30), WORD),
    high=HIGH,
)
def test_socket_families(arch, network, family, kind, protocol, high):
    verdict = evaluate(arch, NUMBERS[arch]["socket"], place({0: family, 1: kind, 2: protocol}, high), network=network)
    assert verdict == expected_of_socket(family, kind, protocol, network)
    verdict = evaluate(arch, NUMBERS[arch]["socketpair"], place({0: family}, high), network=network)
    assert verdict == (ALLOW if family == 1 else EAFNOSUPPORT)


@pytest.mark.parametrize(
    ("arch", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_agree_with_the_kernels_headers(arch, header):
    if not Path(header).exists():
        pytest.skip(f"{header} is missing; install the kernel's headers (linux-libc-dev)")
    defined = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    newer = {"fchmodat2", "open_tree_attr", "memfd_secret", "quotactl_fd"} - set(defined)
    assert {name: number for name, number in NUMBERS[arch].items() if name not in newer} == {
        name: int(defined[name]) for name in NUMBERS[arch] if name not in newer
    }


def test_an_unknown_machine_is_refused_by_name():
    with pytest.raises(ValueError, match=r"machine 'riscv64'; expected one of aarch64, x86_64"):
        seccomp.program("riscv64", allow_network=False)


def test_the_assembler_refuses_what_would_jump_wrong():
    asm = Assembler()
    asm.mark("back")
    asm.emit(JUMP, if_true="back")
    with pytest.raises(ValueError, match="jumps back"):
        asm.assemble()
    asm = Assembler()
    asm.emit(JUMP_EQ, 1, if_true="far")
    for _ in range(256):
        asm.emit(LOAD)
    asm.mark("far")
    asm.emit(RETURN)
    with pytest.raises(ValueError, match="at most 255"):
        asm.assemble()
    with pytest.raises(ValueError, match="already at instruction 257"):
        asm.mark("far")
    asm = Assembler()
    asm.emit(JUMP_EQ, 1, if_true="nowhere")
    with pytest.raises(ValueError, match="'nowhere', which no mark"):
        asm.assemble()
