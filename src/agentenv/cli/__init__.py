"""The command line: each command parses, calls what stands below, and renders.

This module is what the installed script calls. It imports nothing heavy, so that ``agentenv --help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows the program's name; None takes it from ``sys.argv``.

    Returns:
        0 if it went well, 1 if the run failed, 2 for wrong usage or a wrong configuration, 3 if this machine cannot do
        it, 130 after Ctrl-C, 143 after SIGTERM and 129 after SIGHUP (128 plus the signal's number, as shells have it).
    """
    try:
        from agentenv.cli.app import run_app

        return run_app(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before a command, or after it
        return 130
