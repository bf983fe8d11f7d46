"""``agentenv image``: root file systems for virtual machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.exits import guarded

image = typer.Typer(
    name="image",
    help="Root file systems for virtual machines: make, list and remove them.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def build(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it; rootfs_image in a configuration.")],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="PKG", help="More packages for --pip.", show_default=False)
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="debian:SUITE, a directory, oci:REFERENCE, oci-archive:FILE, or a Dockerfile.",
        ),
    ] = "debian:bookworm",
    pip: Annotated[
        list[str] | None, typer.Option("--pip", metavar="PKG", help="A Python package to install; several are allowed.")
    ] = None,
    project: Annotated[
        Path | None, typer.Option("--project", metavar="DIR", help="A directory to copy and make importable.")
    ] = None,
    size_mb: Annotated[
        int | None, typer.Option("--size", metavar="MB", min=1, help="Size of the image; measured without.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option("--mirror", metavar="URL", help="Where Debian's packages come from.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do finished steps again, as for newer packages.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Make a root file system, as an ext4 image that machines share read-only.

    Root is not needed. What was made before is found again: steps, layers and images are kept by the digest of what
    they are made of, and an interrupted build goes on after its last finished step. Packages are installed by the
    image's own Python; indexes, certificates and constraints are those of your pip's configuration.

    \b
    Examples:
      agentenv image build gymnasium --from debian:bookworm --pip gymnasium numpy
      agentenv image build mine --from ./Dockerfile --project .
      agentenv image build other --from oci:127.0.0.1:5000/team/env:3 --json
    """
    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result, start_logging
    from agentenv.cli.reporting import open_report
    from agentenv.errors import ConfigError, Problem
    from agentenv.images.rootfs import Recipe, build_image
    from agentenv.images.store import Store

    if more and not pip:
        problem = Problem("command line", "PKG", f"expected packages after --pip, got {' '.join(more)}")
        raise ConfigError([problem])
    console = open_stderr()
    start_logging(console, "info", quiet=False, verbose=verbose)
    recipe = Recipe(source, (*(pip or ()), *(more or ())), project, size_mb, mirror, fresh)
    made = build_image(name, recipe, Store.default(), open_report(console))
    if json_:
        print_json(made.to_json())
        return
    print_result(
        open_stdout(),
        f"{made.name}: {made.size_bytes >> 20} MB, made from {made.source}, in {made.path}",
        f'in a configuration: rootfs_image = "{name}"',
    )


def ls(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the images.

    \b
    Example:
      agentenv image ls
    """
    from agentenv.cli.console import make_table, open_stdout, print_json, print_result
    from agentenv.images.files import disk_bytes
    from agentenv.images.image import list_images
    from agentenv.images.store import Store

    store = Store.default()
    found = list_images(store)
    if json_:
        images = [{**one.to_json(), "disk_bytes": disk_bytes(one.path)} for one in found]
        print_json({"store": str(store.root), "disk_bytes": disk_bytes(store.root), "images": images})
        return
    if not found:
        print_result(open_stdout(), f"no images in {store.root}; agentenv image build NAME --from debian:bookworm")
        return
    columns = [("image", "left"), ("MB", "right"), ("source", "left"), ("created", "left"), ("digest", "left")]
    rows = [
        [one.name, str(one.size_bytes >> 20), one.source, one.created[:19].replace("T", " "), one.digest[:12]]
        for one in found
    ]
    print_result(
        open_stdout(),
        make_table(columns, rows),
        f"\n{disk_bytes(store.root) >> 20} MB in {store.root}",
    )


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As agentenv image ls shows it.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove an image. A machine that runs keeps what it uses; it goes with a later gc.

    \b
    Example:
      agentenv image rm gymnasium
    """
    from agentenv.cli.stored import remove

    remove("image", name, as_json=json_)


def gc(
    now: Annotated[
        bool, typer.Option("--now", help="Also what was used in the last ten minutes; not while machines start.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give room back: remove what no name refers to and no machine or stored snapshot uses, such as finished steps.

    \b
    Example:
      agentenv image gc
    """
    from dataclasses import asdict

    from agentenv.boxes.needs import needed_objects
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.cli.stored import IN_DOUBT
    from agentenv.errors import counted
    from agentenv.images.collect import GRACE_S, collect
    from agentenv.images.store import Store
    from agentenv.snapshots.store import SnapshotStore

    store, snapshots = Store.default(), SnapshotStore.default()
    done = collect(store, needed=lambda: needed_objects(store, snapshots), unused_for_s=-1.0 if now else GRACE_S)
    if json_:
        print_json(asdict(done))
        return
    kept = f"; {done.held} in use or used lately stay" if done.held else ""
    print_result(open_stdout(), f"removed {counted(done.removed, 'object')}, {done.freed_bytes >> 20} MB{kept}")
    if done.doubt:
        print_result(open_stdout(), f"no image or drive was removed: {IN_DOUBT.format(done.doubt)}")


for command in (build, ls, rm, gc):
    image.command()(guarded(command))
