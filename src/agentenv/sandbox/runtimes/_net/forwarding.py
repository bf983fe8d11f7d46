"""Having this host pass on packets between its machines and its uplink, where it does not anyway.

Forwarding is a property of the device a packet comes in by. It is switched on for that device alone, and a rule in the
run's table sees to it that nothing else is passed on that was not before. Which devices that concerns stands in the
table (the set "guarded"), so that whoever removes the last such table, of a killed run too, switches it off again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Network
from typing import Any

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.network import Network
from agentenv.sandbox.runtimes._net.namespace import open_own
from agentenv.sandbox.runtimes._net.pool import PREFIX, network_of
from agentenv.sandbox.runtimes._net.programs import NetworkError, Programs

TABLE_PREFIX = "agentenv_"
GUARDED = "guarded"
_DEVICE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
_PATIENCE_S = 90.0
_LOOK_S = 0.01
_EVERYWHERE = IPv4Network("0.0.0.0/0")


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Be the only process that changes what runs share in this network namespace.

    Raises:
        RuntimeUnavailable: Another one has not done so for long: it was stopped.
    """
    fd = open_own()
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise RuntimeUnavailable(
                    f"another process has kept what runs share of this host's network to itself for {_PATIENCE_S:g} s",
                    "find it with `lslocks` (FLOCK on net:[...]), and let it go on (kill -CONT PID) or end it",
                )
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def outward(network: Network, routes: Sequence[dict[str, Any]]) -> list[str]:
    """The devices by which a machine's packets may leave this host.

    Args:
        network: What is open to it.
        routes: As ``ip -j route show table all`` lists them.
    """
    wanted = [opening.network for opening in network.allow]
    devices: dict[str, None] = {}
    for route in routes:
        where, device = network_of(route), str(route.get("dev", ""))
        if where is None or route.get("type", "unicast") != "unicast" or device == "lo":
            continue
        if not _DEVICE.fullmatch(device):  # it is written into rules
            continue
        public = network.internet and where == _EVERYWHERE
        if not device.startswith(PREFIX) and (public or any(where.overlaps(one) for one in wanted)):
            devices[device] = None
    return list(devices)


def switch_on(programs: Programs, table: str, devices: Sequence[str], before: Collection[str] = ()) -> list[str]:
    """Have packets that come in by devices passed on, and guard those that did not before.

    Args:
        programs: Carry it out.
        table: Of the run.
        devices: Them.
        before: Those that this run had guarded.

    Returns:
        Those that are guarded now and were not.

    Raises:
        RuntimeUnavailable: The setting cannot be changed.
    """
    with locked():
        others = {*_guarded_elsewhere(programs, table), *before}
        added = []
        for device in devices:
            if _forwards(device):
                guard = device in others
            else:
                guard = True
                set_device(device, "forwarding", "1")
            if guard:
                programs.rules(f'add element inet {table} {GUARDED} {{ "{device}" }}')
                added.append(device)
        return added


def remove_table(programs: Programs, table: str, known: Collection[str] = ()) -> bool:
    """Remove a run's table, and switch off what was switched on for it and for nobody else; whether there was anything.

    Args:
        programs: Carry it out.
        table: The table; another program may have removed it.
        known: Devices that are known to have been switched on for it.
    """
    with locked():
        devices = {*guarded(programs, table), *known}
        try:
            programs.rules(f"delete table inet {table}")
        except NetworkError as error:
            if not error.missing:
                raise
            if not known:
                return False
        if not devices or _forwards("all"):  # somebody wants it for all devices meanwhile
            return True
        others = _guarded_elsewhere(programs, table)
        for device in devices:
            if device not in others:
                with contextlib.suppress(RuntimeUnavailable):  # the device is gone
                    set_device(device, "forwarding", "0")
        return True


def guarded(programs: Programs, table: str) -> list[str]:
    """The devices that a table guards."""
    return [str(element) for element in elements(programs, table, GUARDED)]


def elements(programs: Programs, table: str, name: str) -> list[Any]:
    """What is in a set of a table; nothing, where another process has removed the table meanwhile."""
    try:
        found = programs.listed("set", "inet", table, name)
    except NetworkError as error:
        if error.missing:
            return []
        raise
    for one in found:
        if "set" in one:
            return list(one["set"].get("elem", ()))
    return []


def tables(programs: Programs) -> list[str]:
    """The tables of all runs in this network namespace."""
    found = (one["table"] for one in programs.listed("tables", "inet") if "table" in one)
    return [table["name"] for table in found if str(table.get("name", "")).startswith(TABLE_PREFIX)]


def set_device(device: str, key: str, value: str, *, family: str = "ipv4") -> None:
    """Change a setting of a device of the calling thread's namespace, unless it is so.

    Raises:
        RuntimeUnavailable: It cannot be changed.
    """
    change(f"{family}/conf/{device}/{key}", value)


def change(key: str, value: str) -> None:
    """Change one of the kernel's settings of the network, as it is named below /proc/sys/net, unless it is so.

    Raises:
        RuntimeUnavailable: It cannot be changed.
    """
    path = f"/proc/sys/net/{key}"
    try:
        with open(path, encoding="ascii") as stream:
            if stream.read().strip() == value:
                return
        with open(path, "w", encoding="ascii") as stream:
            stream.write(value)
    except OSError as error:
        raise RuntimeUnavailable(
            f"cannot set {path} to {value}: {error.strerror}",
            f"echo {value} > {path}; in a container: make /proc/sys/net writable",
        ) from error


def _forwards(device: str) -> bool:
    try:
        with open(f"/proc/sys/net/ipv4/conf/{device}/forwarding", encoding="ascii") as stream:
            return stream.read().strip() == "1"
    except OSError:
        return False


def _guarded_elsewhere(programs: Programs, table: str) -> set[str]:
    others = [other for other in tables(programs) if other != table]
    return {device for other in others for device in guarded(programs, other)}
