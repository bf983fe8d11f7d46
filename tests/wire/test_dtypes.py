"""Dtypes come from text without numpy being handed the text of an attacker."""

from __future__ import annotations

import numpy as np
import pytest

from agentenv.errors import ProtocolError
from agentenv.wire.dtypes import parse_dtype, parse_number_dtype


@pytest.mark.parametrize("kind", ["?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "g", "F", "D", "G"])
@pytest.mark.parametrize("order", "<>")
def test_numbers_in_both_orders(kind: str, order: str) -> None:
    dtype = np.dtype(kind).newbyteorder(order)
    assert parse_dtype(dtype.str) == dtype


@pytest.mark.parametrize("text", ["|S1", "<U12", ">U3", "<M8", ">M8[us]", "<m8[7D]", "<M8[25s]"])
def test_sized_dtypes(text: str) -> None:
    assert parse_dtype(text).str == text
    with pytest.raises(ProtocolError, match="expected the dtype of a number"):
        parse_number_dtype(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f4",
        "float32",
        "|O",
        "O",
        "|V4",
        "<U0",
        "|S0",
        "<M8[0D]",
        "<M8[eons]",
        "i4,i4",
        "<f4\n",
        "(2,)<f4",
        "<U99999999999",
        "x" * 10_000,
        None,
        4,
        ["<f4"],
        b"<f4",
        np.float32,
    ],
)
def test_everything_else_is_refused(text: object) -> None:
    with pytest.raises(ProtocolError):
        parse_dtype(text)
