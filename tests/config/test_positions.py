"""The oracle: in these texts every value is the number of the line it stands on."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.config.positions import positions

EVERYTHING = '''\
top = 1
"quoted key" = 2
'literal.key' = 3
dotted.a.b = 4
"\\u0061\\"b".'c' = 5
text = """ # not a comment
[not.a.table] = 7
it's "quoted" \\""" still"""
after = 9
quotes = """"two before the end"""""
raw = \'\'\'
x = 12 ' '' "
\'\'\'
more = 14
array = [ 15, # ] not the end
  16, [16,
  17], { x = 17 },
]
'''
TABLES = """\
[a]
x = 2
[a.b.c] # ] [
x = 4
  [ d . "e f" ]
  x = 6

[[list]]
x = 9
inline = { y = 10, z.w = 10, deep = { v = 10, s = "},]" }, after = 10 }
[list.sub]
x = 12
[[list.inner]]
x = 14
[[list.inner]]
x = 16
array = [
  18,
  { y = 19 },
  [ 20, [
    21 ] ],

  # none here
  24 ]
[[list]]
x = 26
[[list.inner]]
x = 28
date = 1979-05-27 07:32:00
last = 30"""


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> dict[tuple[str | int, ...], Any]:
    if isinstance(value, dict):
        return {p: leaf for key, item in value.items() for p, leaf in leaves(item, (*path, key)).items()}
    if isinstance(value, list):
        return {p: leaf for index, item in enumerate(value) for p, leaf in leaves(item, (*path, index)).items()}
    return {path: value}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("text", [EVERYTHING, TABLES])
def test_every_integer_stands_on_its_own_line(text: str, newline: str) -> None:
    text = text.replace("\n", newline)
    found = positions(text)
    numbers = {path: leaf for path, leaf in leaves(tomllib.loads(text)).items() if isinstance(leaf, int)}
    assert len(numbers) > 10
    assert {path: found[path] for path in numbers} == numbers


def test_tables_and_items_of_arrays_have_lines_too() -> None:
    found = positions(TABLES)
    assert found["list", 0] == 8
    assert found["list", 1] == 25
    assert found["list", 0, "inner", 1] == 15
    assert found["list", 0, "sub"] == 11
    assert found["list", 0, "inner", 1, "array", 2, 1] == 20
    assert found["a", "b"] == 3
    assert found[()] == 1


def test_a_table_written_after_its_sub_table_has_its_own_line() -> None:
    assert positions("[global.defaults]\n\n[global]\nseed = 1\n")[("global",)] == 3


def test_text_that_is_not_toml_is_refused_and_does_not_hang() -> None:
    with pytest.raises(ValueError, match="no key at offset"):
        positions("[a]\n= 3\n")


KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)
FILLERS = st.sampled_from(["", "# [x] = {", "   ", "\t# '''"])
STRINGS = st.sampled_from(['"a # b"', "'c ] }'", '"""d\n] e\n"""', "'''f\n\n'''", '""""g""""', '"\\"h"'])


def quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.tuples(KEYS, FILLERS, STRINGS), max_size=12, unique_by=lambda row: row[0]))
def test_any_document_of_arrays_and_strings(rows: list[tuple[str, str, str]]) -> None:
    text = ""
    for key, filler, string in rows:
        text += f"{filler}\n[[t]]\n"
        line = text.count("\n") + 1
        text += f"{quoted(key)} = [{{ v = {line}, s = {string}"
        line = text.count("\n") + 1
        text += f", w = {line} }},\n{filler}\n"
        line = text.count("\n") + 1
        text += f"{string}, {line + string.count(chr(10))}]\n"
    found = positions(text)
    for path, leaf in leaves(tomllib.loads(text)).items():
        if isinstance(leaf, int):
            assert found[path] == leaf
