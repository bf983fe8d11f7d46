"""A small assembler for classic BPF, just large enough for a seccomp filter.

Jumps in classic BPF are counted by hand, and one miscounted offset turns a refusal into a permission. Here they are
written as labels and counted once, in `assemble`. It refuses backward jumps, unknown or repeated labels, and
conditional jumps too long for their eight bits; it knows nothing about system calls.

Encoding: `struct sock_filter` of linux/filter.h, eight bytes: u16 code, u8 jt, u8 jf, u32 k.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS: A = the 32-bit word at offset k
JUMP = 0x05  # BPF_JMP | BPF_JA: skip k instructions
JUMP_EQ = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_GE = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_SET = 0x45  # BPF_JMP | BPF_JSET | BPF_K: A & k is not zero
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

_CONDITIONAL = frozenset({JUMP_EQ, JUMP_GE, JUMP_SET})
_MAX_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_ENCODING = struct.Struct("=HBBI")


@dataclass(frozen=True)
class _Instruction:
    code: int
    k: int
    if_true: str | None
    if_false: str | None


class Assembler:
    """Collects instructions and labels, then turns them into bytes.

    A jump without a label falls through to the next instruction.
    """

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def mark(self, label: str) -> None:
        """Names the next instruction.

        Raises:
            ValueError: The label is taken.
        """
        if label in self._labels:
            raise ValueError(f"label {label!r} is already at instruction {self._labels[label]}; choose another name")
        self._labels[label] = len(self._instructions)

    def emit(self, code: int, k: int = 0, *, if_true: str | None = None, if_false: str | None = None) -> None:
        """Appends one instruction.

        Args:
            code: One of this module's operations.
            k: Its 32-bit operand; ignored for `JUMP`, which goes to `if_true`.
            if_true: Label to go to when the condition holds; None for the next instruction.
            if_false: Label to go to when it does not; None for the next instruction.
        """
        self._instructions.append(_Instruction(code, k & 0xFFFFFFFF, if_true, if_false))

    def assemble(self) -> bytes:
        """Returns the program as an array of `struct sock_filter`.

        Raises:
            ValueError: A label is unknown, a jump goes backwards or too far, or the program is too long.
        """
        if len(self._instructions) > _MAX_INSTRUCTIONS:
            raise ValueError(f"{len(self._instructions)} instructions; the kernel takes at most {_MAX_INSTRUCTIONS}")
        return b"".join(self._encode(here, one) for here, one in enumerate(self._instructions))

    def _encode(self, here: int, one: _Instruction) -> bytes:
        if one.code == JUMP:
            return _ENCODING.pack(JUMP, 0, 0, self._distance(here, one.if_true))
        jumps = (self._distance(here, one.if_true), self._distance(here, one.if_false))
        if max(jumps) > 255:
            raise ValueError(f"instruction {here}: a conditional jump of {max(jumps)}; at most 255 fits, use JUMP")
        if one.code not in _CONDITIONAL and jumps != (0, 0):
            raise ValueError(f"instruction {here}: operation {one.code:#x} does not jump, but a label was given")
        return _ENCODING.pack(one.code, *jumps, one.k)

    def _distance(self, here: int, label: str | None) -> int:
        if label is None:
            return 0
        if label not in self._labels:
            raise ValueError(f"instruction {here}: jumps to {label!r}, which no mark() names")
        distance = self._labels[label] - here - 1
        if distance < 0:
            raise ValueError(f"instruction {here}: jumps back to {label!r}; classic BPF only goes forward")
        return distance
