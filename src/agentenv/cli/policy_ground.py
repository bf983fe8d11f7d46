"""What a policy, the user's own code in the process of the command, finds there: where it prints, what it can import.

It prints to stderr: stdout carries the command's result and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from agentenv.config import Config
from agentenv.sandbox.runtimes._stage_plan import unreadable
from agentenv.sandbox.runtimes._view import homes, is_too_wide


@contextlib.contextmanager
def stdout_kept() -> Iterator[None]:
    """Send to stderr whatever is printed to stdout in here, by native code and by children too."""
    with contextlib.ExitStack() as undo:
        try:
            sys.stdout.flush()
            kept = os.dup(1)
            undo.callback(os.close, kept)
            os.dup2(2, 1)
            undo.callback(os.dup2, kept, 1)
        except (OSError, ValueError):
            pass  # one of them is closed: what Python prints is still kept apart
        printed = sys.stdout
        undo.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        finally:
            # Somebody may have kept the original object; its buffer belongs to stderr as well.
            with contextlib.suppress(OSError, ValueError):
                printed.flush()


def make_importable(config: Config, directory: Path) -> None:
    """Append the directory of the configuration, then the one the command was started in, to ``sys.path``.

    ``python`` would look into the latter; an installed script does not. Environments see what is on ``sys.path``, so
    a home, a directory of the system, and one that would keep root's sandboxes root's, is added only where the
    configuration names a module that lies in it; what else it holds is then protected as for any such directory.
    """
    if not _names_module_in(config, directory):
        if is_too_wide(str(directory), homes()):
            return
        if os.geteuid() == 0 and unreadable([str(directory)]):
            return
    for path in (str(config.base_dir), str(directory)):
        if path not in map(os.path.abspath, sys.path):
            sys.path.append(path)


def _names_module_in(config: Config, directory: Path) -> bool:
    names: set[str] = set()
    for environment in config.environments:
        wrappers = (wrapper.wrapper for wrapper in environment.wrappers)
        names.update(name for name in (environment.env, environment.policy, *wrappers) if name and ":" in name)
    modules = {name.partition(":")[0].partition(".")[0] for name in names}
    # By os.path, for which a name that no file can have is one that no file has.
    return any(os.path.isfile(directory / f"{one}.py") or os.path.isdir(directory / one) for one in modules)
