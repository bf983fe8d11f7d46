"""``agentenv sandbox stop``: sandboxes ended in order."""

from __future__ import annotations

from typing import Annotated

import typer

_AT_ONCE = 32


def stop(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="As agentenv sandbox ls shows them.")],
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="S", min=0.0, max=86_400.0, help="Seconds that programs have (default 10)."),
    ] = 10.0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """End sandboxes in order and free everything: as rm, but programs get SIGTERM and time to end by themselves.

    What has not ended by then is killed. What programs write until then arrives. A paused sandbox goes on for it.
    Memory and files are gone afterwards; snapshots stay.

    Exits as for the first that could not be ended in order; the others are.

    \b
    Examples:
      agentenv sandbox stop web
      agentenv sandbox stop web db --timeout 60
    """
    from agentenv.boxes.box import Sandbox
    from agentenv.boxes.remote import Ended
    from agentenv.cli.exits import exit_code
    from agentenv.cli.sandbox_words import open_status, print_stopped
    from agentenv.cli.side_by_side import side_by_side
    from agentenv.errors import AgentEnvError, ConfigError
    from agentenv.sandbox.workbench import Shutdown

    found = [Sandbox.connect(name) for name in dict.fromkeys(names)]

    def end(box: Sandbox) -> Shutdown | Exception:
        try:
            return box.shutdown(timeout_s)
        except Ended as error:  # as if that had been before this command
            try:
                Sandbox.connect(box.id)
            except ConfigError as unknown:
                return unknown
            return error
        except (AgentEnvError, OSError) as error:
            return error

    with open_status("stopping sandboxes", 0):
        told = dict(zip((box.id for box in found), side_by_side(end, found, _AT_ONCE), strict=True))
    failed = {name: one for name, one in told.items() if isinstance(one, Exception)}
    stopped = {name: one for name, one in told.items() if isinstance(one, Shutdown)}
    print_stopped(stopped, failed, as_json=json_)
    if failed:
        raise typer.Exit(exit_code(next(iter(failed.values()))))
