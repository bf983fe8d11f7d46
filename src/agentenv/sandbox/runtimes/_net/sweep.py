"""What killed runs left of networks on this host: their tables. Devices and namespaces went with the machines."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._net import forwarding
from agentenv.sandbox.runtimes._net.programs import find_programs, may_administer
from agentenv.sandbox.runtimes._runid import is_run_id, run_is_alive


def sweep_networks(is_alive: Callable[[str], bool] = run_is_alive) -> tuple[str, ...]:
    """Remove the tables of runs that are dead; returns the ids of those it removed.

    A table to whose machines devices still lead is left: its run may live where this process cannot see it, in a
    container that shares this host's network.
    """
    if not may_administer() or shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        return ()
    try:
        programs = find_programs()
        tables = forwarding.tables(programs)
    except RuntimeUnavailable:  # a kernel without nftables has no tables
        return ()
    removed = []
    for table in tables:
        run_id = table.removeprefix(forwarding.TABLE_PREFIX)
        if not is_run_id(run_id) or is_alive(run_id):
            continue
        present = {word for index, name in socket.if_nameindex() for word in (index, name, str(index))}
        # Others sweep as well: whoever comes second finds nothing, and has removed nothing.
        if present.isdisjoint(forwarding.elements(programs, table, "machines")) and forwarding.remove_table(
            programs, table
        ):
            removed.append(run_id)
    return tuple(removed)
