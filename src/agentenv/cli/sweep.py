"""``agentenv sweep``: remove what killed runs left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from agentenv.errors import counted


def sweep(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Remove control groups, directories and networks' rules of runs that were killed; those that live are left.

    Every run does it when it starts.

    \b
    Example:
      agentenv sweep
    """
    from agentenv.boxes.kept import sweep as sweep_kept
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.sandbox.sweep import sweep as sweep_all

    removed, lost = sweep_all(), sweep_kept()
    if json_:
        print_json({"removed": list(removed), "sandboxes": list(lost)})
        return
    names = f": {', '.join(removed)}" if removed else ""
    print_result(open_stdout(), f"removed what was left of {counted(len(removed), 'run')}{names}")
    if lost:
        print_result(open_stdout(), f"forgot {counted(len(lost), 'sandbox', 'sandboxes')}: {', '.join(lost)}")
