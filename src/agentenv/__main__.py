"""``python -m agentenv``: the command line where the script is not on PATH."""

from __future__ import annotations

import sys

from agentenv.cli import main

if __name__ == "__main__":
    sys.exit(main())
