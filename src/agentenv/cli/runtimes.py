"""``agentenv runtimes``: what works on this machine, found out by trying."""

from __future__ import annotations

from typing import Annotated

import typer


def runtimes(
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    deadline_s: Annotated[
        float | None,
        typer.Option("--deadline", metavar="S", min=1.0, help="Seconds to wait for each (default 20; machines 120)."),
    ] = None,
) -> None:
    """Try each runtime and say whether it works here, which limits it enforces, and what to do where it does not.

    \b
    Examples:
      agentenv runtimes
      agentenv runtimes --json
    """
    from dataclasses import asdict

    from agentenv.cli.console import make_table, open_stderr, open_stdout, print_json, print_result, start_logging
    from agentenv.config import load_config
    from agentenv.fleet.choosing import explain_automatic
    from agentenv.fleet.machines import machine_files
    from agentenv.sandbox.probe import probe
    from agentenv.sandbox.registry import REGISTRY

    console = open_stderr()
    start_logging(console, "error", quiet=False, verbose=0)
    find_files = machine_files([])
    probes = []
    for name in REGISTRY:
        if console.is_terminal:
            with console.status(f"trying {name}"):
                probes.append(probe(name, deadline_s=deadline_s, find_files=find_files))
        else:
            probes.append(probe(name, deadline_s=deadline_s, find_files=find_files))
    automatic, why = explain_automatic(load_config({"environments": [{"id": "probe"}]}))
    if json_:
        tried = [{**asdict(one), "limits": dict(one.limits)} for one in probes]
        print_json({"runtimes": tried, "auto": {"runtime": automatic, "why": why}})
        return
    columns = [("runtime", "left"), ("isolation", "left"), ("state", "left"), ("what", "left")]
    rows = [[one.name, one.isolation, "works" if one.works else "does not work", one.detail] for one in probes]
    out = open_stdout()
    print_result(out, make_table(columns, rows))
    for one in probes:
        if one.works:
            limits = ", ".join(f"{name}: {how}" for name, how in one.limits.items())
            print_result(out, f"\n{one.name} limits: {limits}")
        if one.remedy:
            print_result(out, f"\n{one.name}: to do: {one.remedy}")
    print_result(out, f'\nruntime = "auto" is {automatic or "none of them"} ({why})')
