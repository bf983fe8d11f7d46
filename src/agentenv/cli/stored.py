"""Taking a name away from an image or a kernel, and what it referred to with it."""

from __future__ import annotations

from agentenv.boxes.needs import needed_objects
from agentenv.cli.console import open_stdout, print_json, print_result
from agentenv.config.nearest import suggest_value
from agentenv.errors import ConfigError, Problem
from agentenv.images.collect import remove_object
from agentenv.images.store import Store
from agentenv.snapshots.store import SnapshotStore

IN_DOUBT = (
    "what a stored snapshot needs cannot be read, and may be any of them: {}; put that file back from a copy, or remove"
    " the snapshot: agentenv snapshot ls"
)


def remove(kind: str, name: str, *, as_json: bool) -> None:
    """Remove it and say so.

    Raises:
        ConfigError: There is none of this name.
    """
    store = Store.default()
    found = store.named(kind, name)
    if found is None or not store.forget(kind, name):
        names = [one.name for one in store.names(kind)]
        a_kind = f"an {kind}" if kind == "image" else f"a {kind}"
        there = f"the {kind}s here are {', '.join(names)}" if names else "there are none"
        hint = suggest_value(name, names) or there
        raise ConfigError([Problem("command line", "NAME", f"expected the name of {a_kind}, got {name!r}", hint)])
    snapshots = SnapshotStore.default()
    done = remove_object(store, found.digest, needed=lambda: needed_objects(store, snapshots))
    if as_json:
        print_json({"removed": name, "digest": found.digest, "freed_bytes": done.freed_bytes, "doubt": done.doubt})
        return
    kept = "" if done.removed else "; its file stays as long as another name, a machine or a snapshot uses it"
    if done.doubt:
        kept = f"; its file stays: {IN_DOUBT.format(done.doubt)}"
    print_result(open_stdout(), f"removed {name}, {done.freed_bytes >> 20} MB{kept}")
