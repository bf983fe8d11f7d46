"""``agentenv kernel``: kernels for virtual machines."""

from __future__ import annotations

from typing import Annotated

import typer

from agentenv.cli.exits import guarded

kernel = typer.Typer(
    name="kernel",
    help="Kernels for virtual machines: fetch, list and remove them.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


def fetch(
    package: Annotated[
        str | None,
        typer.Option("--package", metavar="PKG", help="A package of this system; the usual one without."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="PATH|URL", help="A vmlinux, a bzImage, or a package's file.")
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="What a file from a URL must be; needed with one.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call it; its version without.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Fetch it even if it is there.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Fetch a kernel that virtual machines boot, with the modules they need. Nothing is installed on this system.

    Without options it is Debian's or Ubuntu's kernel for virtual machines, in the version apt has now.

    \b
    Examples:
      agentenv kernel fetch
      agentenv kernel fetch --package linux-image-amd64
      agentenv kernel fetch --from ./vmlinux --name mine
    """
    import os
    import re
    from pathlib import Path

    from agentenv.cli.console import open_stderr, open_stdout, print_json, print_result, start_logging
    from agentenv.cli.reporting import open_report
    from agentenv.errors import ConfigError, Problem
    from agentenv.images.kernels import download_kernel, fetch_kernel, take_kernel
    from agentenv.images.store import Store

    is_url = source is not None and re.match(r"[a-z]+://", source) is not None
    fault = None
    if source is not None and package is not None:
        fault = Problem("command line", "--from", "expected either --from or --package, got both")
    elif is_url and sha256 is None:
        message = "expected the SHA-256 of the file beside a URL, got none"
        fault = Problem("command line", "--sha256", message, "as whoever offers the file tells it, or sha256sum FILE")
    elif is_url and (sha256 is None or not re.fullmatch(r"[0-9A-Fa-f]{64}", sha256)):
        message = f"expected the file's SHA-256 beside a URL, as 64 hexadecimal digits, got {sha256!r}"
        fault = Problem("command line", "--sha256", message)
    elif sha256 is not None and not is_url:
        fault = Problem("command line", "--sha256", "expected it only with a URL after --from")
    if fault is not None:
        raise ConfigError([fault])
    console = open_stderr()
    start_logging(console, "info", quiet=False, verbose=verbose)
    store, report = Store.default(), open_report(console)
    if source is None:
        found = fetch_kernel(store, package=package, name=name, report=report, fresh=fresh)
    elif is_url:
        found = download_kernel(store, source, sha256 or "", name=name, report=report)
    else:
        found = take_kernel(store, Path(os.path.expanduser(source)), name=name, report=report)
    if json_:
        print_json(found.to_json())
        return
    print_result(
        open_stdout(),
        f"{found.name}: Linux {found.version} with {len(found.modules)} modules, from {found.source}",
        f"{found.path}",
    )


def ls(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the kernels, the one that is used by default last.

    \b
    Example:
      agentenv kernel ls
    """
    from agentenv.cli.console import make_table, open_stdout, print_json, print_result
    from agentenv.images.kernels import list_kernels
    from agentenv.images.store import Store

    store = Store.default()
    found = sorted(list_kernels(store), key=lambda one: one.fetched)
    if json_:
        print_json({"store": str(store.root), "kernels": [one.to_json() for one in found]})
        return
    if not found:
        print_result(open_stdout(), f"no kernels in {store.root}; agentenv kernel fetch")
        return
    columns = [("kernel", "left"), ("version", "left"), ("modules", "right"), ("fetched", "left"), ("source", "left")]
    rows = [
        [one.name, one.version, str(len(one.modules)), one.fetched[:19].replace("T", " "), one.source] for one in found
    ]
    print_result(open_stdout(), make_table(columns, rows))


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As agentenv kernel ls shows it.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove a kernel. A machine that runs keeps what it uses; it goes with a later agentenv image gc.

    \b
    Example:
      agentenv kernel rm 6.1.0-40-cloud-amd64
    """
    from agentenv.cli.stored import remove

    remove("kernel", name, as_json=json_)


for command in (fetch, ls, rm):
    kernel.command()(guarded(command))
