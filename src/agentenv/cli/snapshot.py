"""``agentenv snapshot``: stored snapshots of machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentenv.cli.exits import guarded

if TYPE_CHECKING:
    from agentenv.snapshots.manifest import Snapshot
    from agentenv.snapshots.store import SnapshotStore

snapshot = typer.Typer(
    name="snapshot",
    help="Stored snapshots of machines: list, check and remove them.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def ls(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the snapshots, oldest first, and what is known to be damaged.

    "changes of" names the snapshot an incremental one is made from; MB is what each takes of the disk by itself.

    \b
    Example:
      agentenv snapshot ls
    """
    from agentenv.cli.console import make_table, open_stdout, print_json, print_result
    from agentenv.snapshots.store import SnapshotStore

    store = SnapshotStore.default()
    found = store.list()
    total, copies = store.disk_bytes()
    if json_:
        listed = [_record(one) for one in found]
        print_json({"store": str(store.root), "disk_bytes": total, "copies_bytes": copies, "snapshots": listed})
        return
    if not found:
        print_result(open_stdout(), f"no snapshots in {store.root}")
        return
    labels = {one.id: one.name or one.id[:12] for one in found}
    columns = [("snapshot", "left"), ("id", "left"), ("created", "left"), ("MB", "right"), ("changes of", "left")]
    columns += [("runtime", "left"), ("memory", "right"), ("detail", "left")]
    rows = [
        [
            one.name or "-",
            one.id[:12],
            one.created[:19].replace("T", " "),
            _megabytes(one.stored_bytes),
            "-" if one.parent is None else labels.get(one.parent, one.parent[:12]),
            one.runtime or "-",
            "-" if one.memory_mb is None else str(one.memory_mb),
            f"damaged: {one.damage}" if one.damage else "",
        ]
        for one in found
    ]
    extra = f", {_megabytes(copies)} MB of it copies that agentenv snapshot gc removes" if copies else ""
    print_result(open_stdout(), make_table(columns, rows), f"\n{_megabytes(total)} MB in {store.root}{extra}")


def show(
    name: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A name, an id, or the first digits of an id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read all files it is made from and compare them.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what is known of a snapshot. Exits 1 if it is damaged.

    \b
    Examples:
      agentenv snapshot show trained
      agentenv snapshot show 3f9a --verify
    """
    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result, start_logging
    from agentenv.cli.reporting import open_progress
    from agentenv.errors import SnapshotDamaged
    from agentenv.snapshots.store import SnapshotStore

    store = SnapshotStore.default()
    found = _find(store, name)
    if verify:
        console = open_stderr()
        start_logging(console, "info", quiet=False, verbose=0)
        with open_progress(console) as progress:
            store.verify(found, progress=progress)
    if found.damage and not verify:
        file, _, reason = found.damage.partition(": ")
        raise SnapshotDamaged(found.id, file, reason or "unknown", label=found.label)
    if json_:
        print_json({**_record(found), "verified": verify})
        return
    lines = [
        ("snapshot", found.name or "-"),
        ("id", found.id),
        ("created", found.created[:19].replace("T", " ")),
        ("kind", found.kind + (f", changes of {found.parent}" if found.parent else "")),
        ("disk", f"{_megabytes(found.stored_bytes)} MB for {_megabytes(found.logical_bytes)} MB of files"),
        ("runtime", " ".join(str(one) for one in (found.runtime, found.runtime_version, found.accelerator) if one)),
        ("memory", "" if found.memory_mb is None else f"{found.memory_mb} MiB"),
        ("processor", found.processor or ""),
        *((f"made with {key}", str(value)) for key, value in _plain(found.sandbox)),
        *((f"about {key}", str(value)) for key, value in _without_values(found.about).items()),
        *((f"file {part.name}", f"{part.bytes} bytes, {part.digest}") for part in found.files),
        ("directory", str(found.path)),
        ("verified", "yes" if verify else ""),
    ]
    width = max(len(key) for key, value in lines if value)
    print_result(open_stdout(), "\n".join(_line(key, value, width) for key, value in lines if value))


def rm(
    name: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A name, an id, or the first digits of an id.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove a snapshot. Refused while another one is made from it, or a machine uses it.

    \b
    Example:
      agentenv snapshot rm trained
    """
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.snapshots.store import SnapshotStore

    store = SnapshotStore.default()
    found = _find(store, name)
    freed = store.remove(found)
    if json_:
        print_json({"removed": found.id, "name": found.name, "freed_bytes": freed})
        return
    print_result(open_stdout(), f"removed {found.name or found.id}, {_megabytes(freed)} MB")


def gc(
    now: Annotated[bool, typer.Option("--now", help="Also what was made or used in the last ten minutes.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give room back: remove snapshots without a name that nothing needs, and copies that can be made again.

    \b
    Example:
      agentenv snapshot gc
    """
    from dataclasses import asdict

    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.errors import counted
    from agentenv.snapshots.store import SnapshotStore

    done = SnapshotStore.default().gc(now=now)
    if json_:
        print_json(asdict(done))
        return
    kept = f"; {counted(done.kept, 'snapshot')} without a name, needed or new, stay" if done.kept else ""
    removed = f"{counted(done.removed, 'snapshot')} and {counted(done.copies, 'copy', 'copies')}"
    print_result(open_stdout(), f"removed {removed}, {_megabytes(done.freed_bytes)} MB{kept}")


def _find(store: SnapshotStore, name: str) -> Snapshot:
    """A snapshot as it is called on the command line.

    Raises:
        ConfigError: There is none.
    """
    from agentenv.errors import ConfigError, Problem, SnapshotUnknown

    try:
        return store.find(name)
    except SnapshotUnknown as error:
        raise ConfigError([Problem("command line", "SNAPSHOT", str(error))]) from error


def _record(found: Snapshot) -> dict[str, object]:
    return {**_without_values(found.to_json()), "damaged": bool(found.damage)}


def _without_values(told: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what environment variables hold, wherever they are: keys and passwords, as often as not."""
    return {key: _names_alone(value) if key == "variables" else _inner(value) for key, value in told.items()}


def _inner(value: Any) -> Any:
    return _without_values(value) if isinstance(value, Mapping) else value


def _names_alone(variables: Any) -> Any:
    """Of a mapping, or of pairs."""
    if isinstance(variables, Mapping):
        return dict.fromkeys(variables)
    pairs = variables if isinstance(variables, list | tuple) else ()
    return [[pair[0], None] for pair in pairs if isinstance(pair, list | tuple) and pair]


def _plain(found: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What fits on a line each, of an object and of those in it."""
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _plain(value)
        elif isinstance(value, str | int | float) and value != "" and key != "format":
            yield key, value


def _line(key: str, value: str, width: int) -> str:
    from agentenv.telemetry.text import one_line

    # What was made with a sandbox's own words is cleaned like them.
    return f"{one_line(key, 200):{width}}  {one_line(value, 1000)}"


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):.1f}"


for command in (ls, show, rm, gc):
    snapshot.command()(guarded(command))
