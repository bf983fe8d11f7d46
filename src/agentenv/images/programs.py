"""Programs of the host that do the work: found or named with their package, run to their end, and ended with us."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agentenv.disk import FULL, no_room
from agentenv.errors import RuntimeUnavailable
from agentenv.images.files import MAKE_ROOM

# Where administrators' programs are, which are often not on the PATH of others.
_SYSTEM = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_PACKAGES = {
    "busybox": "busybox-static",
    "qemu-system-x86_64": "qemu-system-x86",
    "e2fsck": "e2fsprogs",
    "apt-cache": "apt",
    "apt-get": "apt",
    "debugfs": "e2fsprogs",
    "depmod": "kmod",
    "dpkg-deb": "dpkg",
    "ldd": "libc-bin",
    "mkfs.ext4": "e2fsprogs",
    "mksquashfs": "squashfs-tools",
    "modprobe": "kmod",
    "xz": "xz-utils",
}
_LINES = 15


class Output(NamedTuple):
    """What a program wrote.

    Attributes:
        text: On its standard output.
        errors: On its standard error.
    """

    text: str
    errors: str


def find_program(name: str) -> str | None:
    """The path of a program, or None."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM])
    return shutil.which(name, path=path)


def need_program(name: str, purpose: str) -> str:
    """The path of a program.

    Args:
        name: As it is called on the command line.
        purpose: What it is needed for, as in "to make ext4 images".

    Raises:
        RuntimeUnavailable: It is not installed; names the package.
    """
    found = find_program(name)
    if found is None:
        package = _PACKAGES.get(name, name)
        raise RuntimeUnavailable(f"expected the program {name} {purpose}, and it is not on PATH", apt(package))
    return found


def apt(package: str) -> str:
    """The remedy that installs a package."""
    return f"sudo apt-get install {package} (or the package of your system that has it)"


def run(
    argv: Sequence[str],
    *,
    purpose: str,
    remedy: str = "",
    directory: Path | None = None,
    variables: Mapping[str, str] | None = None,
    text: str = "",
    stdout: int | None = None,
) -> Output:
    """Run a program to its end; it and its children are ended if we are interrupted, and told to end if we are killed.

    Args:
        argv: Program and arguments.
        purpose: What it is doing, as in "making the root file system"; begins the message when it fails.
        remedy: What helps when it fails.
        directory: Where it runs.
        variables: Added to our own environment.
        text: Its standard input.
        stdout: Descriptor for its standard output, which is returned otherwise.

    Returns:
        What it wrote.

    Raises:
        RuntimeUnavailable: It failed; has its last lines.
        ResourceLimit: It failed because the disk is full.
    """
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **(variables or {})}
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
        given.write(text.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                [*_leash(), *argv],
                cwd=directory,
                env=environment,
                stdin=given,
                stdout=output if stdout is None else stdout,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeUnavailable(f"{purpose}: {argv[0]} cannot be started: {error.strerror}", remedy) from error
        try:
            code = process.wait()
        except BaseException:
            end(process)
            raise
        output.seek(0)
        errors.seek(0)
        said, complaint = output.read().decode(errors="replace"), errors.read().decode(errors="replace")
    if code == 0:
        return Output(said, complaint)
    for number in FULL:  # "read-only" may be said of something in the sandbox of a step
        if os.strerror(number) in complaint:
            raise no_room("", directory or Path.cwd(), MAKE_ROOM, number)
    raise failed(argv[0], code, complaint if complaint.strip() else said, purpose, remedy)


@functools.cache
def _leash() -> tuple[str, ...]:
    """What has a program get SIGTERM when we end, however we end; nothing on a system that has no such program."""
    argv = ("setpriv", "--pdeathsig", "TERM", "--")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run([*argv, sys.executable, "-V"], capture_output=True, timeout=60, check=True)
        return argv
    return ()


def failed(program: str, code: int, output: str, purpose: str, remedy: str) -> RuntimeUnavailable:
    """The error of a program that ended with a code other than 0."""
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    lines = [line.rstrip() for line in output.splitlines() if line.strip()][-_LINES:]
    shown = "".join(f"\n    {line}" for line in lines)
    return RuntimeUnavailable(f"{purpose}: {os.path.basename(program)} {how}{':' if lines else ''}{shown}", remedy)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program that was started in a session of its own, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
