"""What an environment says of its network, and where the addresses of machines come from.

``true`` and ``false``, which earlier versions had, are read as "internet" and "none".
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_serializer

from agentenv.config.faults import Fault, Path, refusal
from agentenv.config.openings import INTERNET, OpeningError, parse_opening
from agentenv.config.words import got

NONE = "none"
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")
_WORDS = (NONE, INTERNET)
_LISTS = ("allow", "deny")
_EXPECTED = 'expected "none", "internet", or a table with allow and deny'
_MEANT = {
    **dict.fromkeys(("true", "yes", "on", "1", "host", "public", "all", "full", "open"), 'write "internet"'),
    **dict.fromkeys(("false", "no", "off", "0", "closed", "isolated"), 'write "none"'),
}
LEAST_POOL, MOST_POOL = 8, 30
"""The widest and the narrowest prefix of a pool."""


class NetworkTable(BaseModel):
    """Which addresses an environment reaches.

    Attributes:
        allow: Exactly what is open; empty for everything public.
        deny: What is closed all the same.
    """

    model_config = ConfigDict(frozen=True)

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @model_serializer
    def _plain(self) -> dict[str, list[str]]:
        lists = {"allow": list(self.allow), "deny": list(self.deny)}
        return {name: entries for name, entries in lists.items() if entries}


def _check_network(value: object) -> object:
    if isinstance(value, bool):
        return INTERNET if value else NONE
    if isinstance(value, NetworkTable) or value in _WORDS:
        return value
    if isinstance(value, Mapping):
        if faults := tuple(_table_faults(value)):
            raise refusal(*faults)
        return NetworkTable(**{name: tuple(_canonical(name, entries)) for name, entries in value.items()})
    hint = _MEANT.get(value.strip().lower(), "") if isinstance(value, str) else ""
    raise refusal(Fault((), f"{_EXPECTED}, {got(value)}", hint))


def _table_faults(table: Mapping[Any, Any]) -> Iterator[Fault]:
    if not table:
        yield Fault((), 'expected "allow", "deny" or both, got an empty table', 'for no network write "none"')
    for name, entries in table.items():
        if name not in _LISTS:
            yield Fault((str(name),), "unknown key", "valid keys of a network: allow, deny")
        elif not isinstance(entries, (list, tuple)):
            hint = f'write ["{entries}"]' if isinstance(entries, str) and '"' not in entries else ""
            yield Fault((name,), f"expected a non-empty list of strings, {got(entries)}", hint)
        elif not entries:
            hint = 'to open nothing write network = "none"' if name == "allow" else "to close nothing leave it out"
            yield Fault((name,), "expected a non-empty list of strings, got an empty list", hint)
        else:
            yield from _entry_faults(name, entries)


def _entry_faults(name: str, entries: list[Any] | tuple[Any, ...]) -> Iterator[Fault]:
    for index, entry in enumerate(entries):
        path: Path = (name, index)
        if not isinstance(entry, str):
            yield Fault(path, f"expected a string, {got(entry)}")
        elif entry == INTERNET and name == "allow":
            continue
        else:
            try:
                parse_opening(entry, to_allow=name == "allow")
            except OpeningError as error:
                yield Fault(path, str(error), error.hint)


def _canonical(name: str, entries: list[str]) -> Iterator[str]:
    for entry in dict.fromkeys(entries):
        yield entry if entry == INTERNET else str(parse_opening(entry, to_allow=name == "allow"))


def _check_pool(value: object) -> object:
    hint = 'such as "10.213.0.0/16"'
    if not isinstance(value, str):
        raise refusal(Fault((), f"expected an IPv4 network, {got(value)}", hint))
    try:
        pool = ipaddress.IPv4Network(value)
    except ValueError:
        raise refusal(Fault((), f"expected an IPv4 network, {got(value, with_kind=False)}", hint)) from None
    if not LEAST_POOL <= pool.prefixlen <= MOST_POOL or not pool.is_private:
        wanted = f"a private network with a prefix from /{LEAST_POOL} to /{MOST_POOL}"
        raise refusal(Fault((), f"expected {wanted}, {got(value, with_kind=False)}", hint))
    return str(pool)


def _check_interface(value: object) -> object:
    if isinstance(value, str) and _INTERFACE.fullmatch(value):
        return value
    raise refusal(Fault((), f'expected "auto" or the name of an interface, {got(value)}', 'such as "eth0"'))


def _check_resolver(value: object) -> object:
    try:
        if isinstance(value, str):
            return str(ipaddress.IPv4Address(value))
    except ValueError:
        pass
    raise refusal(Fault((), f"expected an IPv4 address, {got(value)}", 'such as "9.9.9.9"'))


_LIST_SCHEMA = {"type": "array", "items": {"type": "string"}, "minItems": 1}
NetworkSetting = Annotated[
    str | NetworkTable,
    BeforeValidator(_check_network),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(_WORDS)},
                {
                    "type": "object",
                    "properties": dict.fromkeys(_LISTS, _LIST_SCHEMA),
                    "additionalProperties": False,
                    "minProperties": 1,
                },
                {"type": "boolean"},
            ]
        }
    ),
]
Pool = Annotated[str, BeforeValidator(_check_pool), WithJsonSchema({"type": "string"})]
InterfaceName = Annotated[
    str, BeforeValidator(_check_interface), WithJsonSchema({"type": "string", "pattern": f"^{_INTERFACE.pattern}$"})
]
Resolver = Annotated[str, BeforeValidator(_check_resolver), WithJsonSchema({"type": "string"})]
