"""The one place where errors become exit codes and words for a terminal.

A user sees a traceback only after asking for it: with ``-v -v`` or AGENTENV_DEBUG=1.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TextIO, TypeVar

import typer

from agentenv.errors import AgentEnvError, ConfigError, ResourceLimit, RuntimeUnavailable

OK, FAILED, USAGE, MACHINE, INTERRUPTED = 0, 1, 2, 3, 130

Command = TypeVar("Command", bound=Callable[..., None])


def exit_code(error: BaseException) -> int:
    """The code that stands for an error."""
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, RuntimeUnavailable | ResourceLimit):
        return MACHINE
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED


def error_record(error: BaseException) -> dict[str, Any]:
    """An error as the JSON object that ``--json`` prints instead of a result."""
    record: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, ConfigError):
        record["problems"] = [
            {"where": p.where, "path": p.path, "message": p.message, "hint": p.hint} for p in error.problems
        ]
    return {"error": record, "exit_code": exit_code(error)}


class Ended(KeyboardInterrupt):
    """A signal that ends this process; like Ctrl-C, so that what was begun is taken back.

    Attributes:
        number: Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP raise ``Ended``, unless whoever started us had us ignore them; commands may take them over."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise Ended(number)

    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)


def guarded(command: Command) -> Command:
    """A command whose errors end in words and the right exit code."""

    @functools.wraps(command)
    def call(**arguments: Any) -> None:
        debug = arguments.get("verbose", 0) >= 2 or os.environ.get("AGENTENV_DEBUG") == "1"
        try:
            with _ended_in_order():
                command(**arguments)
        except Ended as error:
            raise typer.Exit(128 + error.number) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(exit_code(error)) from error
        except (AgentEnvError, OSError) as error:
            if isinstance(error, BrokenPipeError) and error.strerror in (None, os.strerror(errno.EPIPE)):
                # Whoever read our output has seen enough, as in `agentenv runs | head`.
                silence_stdout()
                return
            error = _in_words(error)
            _report(error, as_json=bool(arguments.get("json_")), debug=debug)
            raise typer.Exit(exit_code(error)) from error
        except typer.Exit:
            raise
        except Exception as error:
            # Of what is raised while a class is made, some versions of Python make a RuntimeError.
            if isinstance(error, RuntimeError) and isinstance(ended := error.__cause__, KeyboardInterrupt):
                raise typer.Exit(128 + ended.number if isinstance(ended, Ended) else INTERRUPTED) from error
            if type(error).__module__.partition(".")[0] in ("typer", "click"):
                raise
            _report(error, as_json=bool(arguments.get("json_")), debug=debug, unexpected=True)
            raise typer.Exit(FAILED) from error

    return call  # type: ignore[return-value]  # same signature, through functools.wraps


def _in_words(error: AgentEnvError | OSError) -> AgentEnvError | OSError:
    from agentenv.fleet.descriptors import in_words

    return in_words(error) or error


def have_streams() -> None:
    """Where this process was started without standard output, printing fails as on any file that cannot be written."""
    if sys.stdout is None:
        sys.stdout = _open_aside(os.O_RDONLY)
    if sys.stderr is None:
        sys.stderr = _open_aside(os.O_WRONLY)


def _open_aside(flags: int) -> TextIO:
    """Nothing, under a number that nobody takes for a standard stream."""
    low = os.open(os.devnull, flags | os.O_CLOEXEC)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(low)
    return os.fdopen(high, "w")


def tell_unprinted(error: OSError) -> None:
    """Say that stdout takes nothing, and why."""
    silence_stdout()
    with contextlib.suppress(OSError):
        sys.stderr.write(f"agentenv: stdout cannot be written: {error.strerror or error}\n")
        sys.stderr.flush()


def silence_stdout() -> None:
    """Point stdout nowhere, so that nothing more fails because its reader is gone."""
    _silence(sys.stdout)


def silence_stderr() -> None:
    """Point stderr nowhere, where its terminal is gone."""
    _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _report(error: Exception, *, as_json: bool, debug: bool, unexpected: bool = False) -> None:
    from agentenv.cli.console import print_json
    from agentenv.telemetry.text import printable

    told = printable("".join(traceback.format_exception(error))) if debug else ""
    text = str(error)
    if unexpected:
        text = f"{type(error).__name__}: {text}\n  this is a fault of agentenv; AGENTENV_DEBUG=1 shows where"
    elif not isinstance(error, AgentEnvError):
        text = f"{type(error).__name__}: {text}"
    with contextlib.suppress(OSError):  # the exit code says it as well
        sys.stderr.write(f"{told}agentenv: {printable(text)}\n")
    try:
        if as_json:
            print_json(error_record(error))
    except OSError:  # that may be what went wrong
        silence_stdout()
