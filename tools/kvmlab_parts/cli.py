"""The command line of kvmlab."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .assets import Assets, fetch
from .errors import FAILED, LabError
from .job import Job, checkout
from .qemu import Machine
from .relay import STILL_S, Relay
from .terminal import raw

DESCRIPTION = """\
Runs a command in an emulated machine that has what this one may lack: a working /dev/kvm, /dev/net/tun,
/dev/vhost-vsock and pure control groups v2. It sees this machine's files, and what it changes is lost."""

EXAMPLES = """\
examples:
  tools/kvmlab run -- ls -l /dev/kvm
  tools/kvmlab run --timeout 300 -- .venv/bin/python -m pytest tests/sandbox -q
  tools/kvmlab run --write /tmp/results --env SEED=3 -- sh -c 'firecracker --version >/tmp/results/version'
  tools/kvmlab shell

The exit code of `run` is the command's, 128+N where signal N ended it, 124 at the timeout, 125 where the machine could
not be made or was lost, 2 for wrong usage. docs/lab.md has the rest."""

RUN = """\
Boots the machine, runs COMMAND there as root in the directory this is called from, and ends it. Output comes as it is
written, standard input is passed on. The first SIGINT, SIGTERM or SIGHUP goes to the command and its process group,
the second ends the machine."""

_KEPT = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER", "AGENTENV_CACHE", "XDG_CACHE_HOME")
"""Variables that a command has without being asked for."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; returns the exit code."""
    given = _parser().parse_args(arguments)
    while os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) <= 2:  # a standard stream that is closed is an empty one
        continue
    for number in (signal.SIGTERM, signal.SIGHUP):  # as SIGINT does, they let everything be cleaned up
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        assets = fetch(_say, getattr(given, "again", False))
        if given.action == "fetch":
            print(f"kernel {assets.version}\n  {assets.vmlinux}\n  {assets.modules}\nFirecracker\n  {assets.bin}")
            return 0
        return _run(given, assets)
    except (LabError, OSError) as error:
        print(f"kvmlab: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _say(line: str) -> None:
    print(f"kvmlab: {line}", file=sys.stderr, flush=True)


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _run(given: argparse.Namespace, assets: Assets) -> int:
    shell = given.action == "shell"
    here = Path.cwd()
    cwd = (here / given.cwd).absolute()
    job = Job(
        command=["bash"] if shell else given.command,
        cwd=cwd,
        variables=_variables(given.env, assets),
        see=[here, cwd, checkout(here), checkout(cwd), *given.read],
        write=given.write,
        tty=shell,
    )
    deadline = None if given.timeout is None else time.monotonic() + given.timeout
    machine = Machine(job, assets, given.memory, given.cpus)
    try:
        with raw(0 if job.tty else None):
            return Relay(job, machine, deadline, given.still).run()
    finally:
        machine.kill()
        if given.console is not None:
            given.console.write_bytes(machine.console)


def _variables(given: Sequence[str], assets: Assets) -> dict[str, str]:
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    variables["PATH"] = f"{assets.bin}:{variables.get('PATH', os.defpath)}"
    variables |= {"KVMLAB": "1", "KVMLAB_VMLINUX": str(assets.vmlinux)}
    for one in given:
        name, equals, value = one.partition("=")
        if equals:
            variables[name] = value
        elif name in os.environ:
            variables[name] = os.environ[name]
    return variables


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("kvmlab", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=style)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run a command there", description=RUN, epilog=EXAMPLES, formatter_class=style)
    shell = actions.add_parser("shell", help="a shell there, with a terminal; Ctrl-] ends the machine")
    getting = actions.add_parser("fetch", help="get the kernel and Firecracker, which the others also do when needed")
    getting.add_argument("--again", action="store_true", help="get them anew, such as a newer kernel")
    for one in (run, shell):
        _add_options(one)
    run.add_argument("command", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--timeout", type=_seconds, metavar="S", help="end it after so many seconds, boot included, with exit code 124")
    what = f"give the machine up after so many seconds without a sign of life, with exit code 125 ({STILL_S:g})"
    add("--still", type=_seconds, default=STILL_S, metavar="S", help=what)
    add("--memory", type=_positive, default=4096, metavar="MB", help="memory of the machine, in MiB (4096)")
    add("--cpus", type=_positive, default=2, metavar="N", help="its processors (2)")
    add("--env", action="append", default=[], metavar="K=V", help="a variable, or K for its value here; repeatable")
    add("--cwd", type=Path, default=Path(), metavar="DIR", help="where the command is started; here by default")
    what = "share a directory writably, so that results stay; repeatable"
    add("--write", type=_sharable, action="append", default=[], metavar="DIR", help=what)
    what = "let it see a directory below /tmp, /run or /dev/shm, where it has its own; repeatable"
    add("--read", type=_directory, action="append", default=[], metavar="DIR", help=what)
    add("--console", type=Path, metavar="FILE", help="keep there what the kernel prints")


def _seconds(text: str) -> float:
    value = float(text) if text.replace(".", "", 1).isdigit() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a directory that exists, got {text!r}; make it first")
    if set("\t\n") & set(str(path.resolve())):
        raise argparse.ArgumentTypeError(f"expected a path without tabs and line ends, got {text!r}")
    return path.absolute()


def _sharable(text: str) -> Path:
    path = _directory(text).resolve()
    if str(path) in ("/", "/dev", "/proc", "/run", "/sys"):
        raise argparse.ArgumentTypeError(f"expected a directory below {path}, the machine needs its own there")
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
