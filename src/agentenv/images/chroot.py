"""Runs a program of an image inside the image's tree, as its root and nobody's outside.

The program is not trusted: it runs in namespaces of its own, sees the tree and nothing of the host, and is root only
there. What it writes belongs to the caller on the disk, as everything in a tree does. Called by root, it is nobody to
the host all the same: as root it could write to the settings of the kernel, whatever namespaces it is in.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.programs import Output, run
from agentenv.images.trees import Tree
from agentenv.sandbox.runtimes._bwrap import explain_failure, find_binary
from agentenv.sandbox.runtimes._stage_plan import plan_tree_stage

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST = "/tmp/.host"


def run_inside(
    tree: Tree,
    argv: Sequence[str],
    *,
    purpose: str,
    remedy: str = "",
    variables: Mapping[str, str] | None = None,
    files: Sequence[tuple[str, str]] = (),
    network: bool = False,
) -> Output:
    """Run it to its end; what it has set on files that may not lie on the host like that goes into the tree's table.

    Args:
        tree: The root file system.
        argv: Program and arguments, as seen inside.
        purpose: Begins the message when it fails.
        remedy: What helps then.
        variables: All of its environment beside PATH and HOME.
        files: Of the host, shown read-only: (path on the host, path below ``HOST``).
        network: Whether it may use the network.

    Raises:
        RuntimeUnavailable: It failed, or there is no sandbox to run it in.
    """
    inside = {"PATH": DEFAULT_PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", "TMPDIR": "/tmp", **(variables or {})}
    stage = plan_tree_stage(str(tree.root), [origin for origin, _ in files])
    bwrap = [find_binary(None), "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--die-with-parent"]
    bwrap += ["--share-net"] if network else []
    bwrap += ["--clearenv", *(word for name, value in inside.items() for word in ("--setenv", name, value))]
    bwrap += [
        "--bind",
        stage.source(str(tree.root)),
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--tmpfs",
        "/run",
    ]
    for origin, place in files:
        bwrap += ["--ro-bind", stage.source(origin), f"{HOST}/{place}"]
    for name in ("dev", "proc", "tmp", "run"):
        _directory(tree, name)
    with contextlib.ExitStack() as stack:
        more = stack.enter_context(_resolver(tree)) if network else []
        try:
            said = run(stage.wrap([*bwrap, *more, "--chdir", "/", "--", *argv]), purpose=purpose, remedy=remedy)
        except RuntimeUnavailable as error:
            if why := explain_failure(str(error)):
                raise RuntimeUnavailable(f"{purpose}: no sandbox to run it in", why) from error
            raise
    tree.take_back()
    return said


def _directory(tree: Tree, name: str) -> None:
    place = tree.root / name
    if place.is_symlink() or not place.is_dir():
        place.unlink(missing_ok=True)
        place.mkdir()


@contextlib.contextmanager
def _resolver(tree: Tree) -> Iterator[list[str]]:
    """The host's way to find addresses, shown inside for the time of the program only."""
    with contextlib.suppress(FileExistsError):
        (tree.root / "etc").mkdir()
    try:
        # What the program makes of this name meanwhile may lead out of the tree.
        etc = os.open(tree.root / "etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        yield []
        return
    place, kept = "resolv.conf", f".resolv.conf.{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(place, kept, src_dir_fd=etc, dst_dir_fd=etc)
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=etc))
        host = Path("/etc/resolv.conf")
        yield ["--ro-bind", str(host.resolve()), "/etc/resolv.conf"] if host.exists() else []
    finally:
        # It may have put other things there, or taken them away: then they are the image's.
        with contextlib.suppress(OSError):
            os.unlink(place, dir_fd=etc)
        with contextlib.suppress(OSError):
            os.rename(kept, place, src_dir_fd=etc, dst_dir_fd=etc)
        os.close(etc)
