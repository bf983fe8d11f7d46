"""The attempts as a whole program, for sandboxes that run a command: ``python -m agentenv.testing.hostile.program``.

Reads the hints as JSON from its first argument, prints one JSON object: attempt -> what was reached.
"""

from __future__ import annotations

import json
import sys

from agentenv.testing.hostile import reaching_files, reaching_kernel, reaching_network, reaching_processes


def main(arguments: list[str]) -> None:
    """Make every attempt and report."""
    hints = json.loads(arguments[0])
    reaching_files.plant()
    reaching_processes.plant()
    attempts = {
        **reaching_files.ATTEMPTS,
        **reaching_processes.ATTEMPTS,
        **reaching_kernel.ATTEMPTS,
        **reaching_network.ATTEMPTS,
    }
    print(json.dumps({name: [text for text in attempt(hints) if text] for name, attempt in attempts.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
