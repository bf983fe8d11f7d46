"""``agentenv sandbox exec``: a program in a sandbox, as if it ran here."""

from __future__ import annotations

import errno
from typing import Annotated

import typer

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


def exec_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As agentenv sandbox ls shows it.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and arguments.")],
    terminal: Annotated[bool, typer.Option("--tty", "-t", help="In a terminal, which this one stands for.")] = False,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Name or number, or USER:GROUP; the image's own.")
    ] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", metavar="DIR", help="Working directory; the image's own.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable; several are allowed.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=0.0, help="Seconds until it is killed.")
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Twice: tracebacks.")] = 0,
) -> None:
    """Run a program in a sandbox. Standard input, output and error are its own, byte by byte.

    The exit code is the program's: 128 plus its number where a signal ended it, 124 where its time was over, 127 where
    there is no such program and 126 where it may not run. Ctrl-C goes to the program, twice kills it, and
    three times ends this command alone.

    \b
    Examples:
      agentenv sandbox exec web -- python3 -c "print(1)"
      agentenv sandbox exec --tty web -- bash
      tar c . | agentenv sandbox exec web --cwd /srv -- tar x
    """
    from agentenv.boxes.arguments import read_wait
    from agentenv.boxes.box import Sandbox
    from agentenv.cli.exits import FAILED, tell_unprinted
    from agentenv.cli.passing import Passing, have_standard_descriptors
    from agentenv.cli.sandbox_options import in_options
    from agentenv.cli.sandbox_words import read_pairs
    from agentenv.cli.terminal import RawTerminal, expect_terminal, size_of
    from agentenv.errors import AgentEnvError
    from agentenv.telemetry.text import one_line

    have_standard_descriptors()
    with in_options({"timeout_s": "--timeout"}):
        read_wait(timeout_s)  # before anything is started
    variables = read_pairs(env)
    if terminal:
        expect_terminal()
    with Sandbox.connect(name) as box:
        try:
            with in_options():
                process = box.start(
                    command, terminal=size_of() if terminal else None, env=variables, cwd=cwd, user=user
                )
        except OSError as error:
            codes = {errno.ENOENT: _NOT_FOUND, errno.EACCES: _NOT_EXECUTABLE}
            if isinstance(error, AgentEnvError) or error.errno not in codes:
                raise
            typer.echo(f"agentenv: {one_line(str(error.strerror))}", err=True)
            raise typer.Exit(codes[error.errno]) from error
        passing = Passing(process, timeout_s, name)
        if terminal:
            with RawTerminal(process.resize):
                code = passing.run()
        else:
            code = passing.run()
    if passing.failed:  # whatever the program says: somebody would take a part of it for all
        code = FAILED
        if unread := passing.failed.get(0):
            typer.echo(f"agentenv: stdin cannot be read: {unread.strerror}", err=True)
        if unwritten := passing.failed.get(1):
            tell_unprinted(unwritten)
    raise typer.Exit(code)
