"""The packages that environments need of an image's Python, looked for before anything else is.

It imports nothing of ours, so that what it says comes before the traceback of whoever misses something.
"""

from __future__ import annotations

import re
import sys

# The oldest that were seen to work: Gymnasium 0.28 cannot say all of a MultiDiscrete.
PACKAGES = (("numpy", (1, 21)), ("gymnasium", (0, 29)))


def find_fault() -> str:
    """What is missing or too old, with what was found, or ""."""
    for name, least in PACKAGES:
        wanted = f"expected {name} {'.'.join(map(str, least))} or newer in the image"
        try:
            found = str(__import__(name).__version__)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            python = ".".join(map(str, sys.version_info[:3]))
            return f"{wanted}, found none for Python {python} at {sys.executable}"
        if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < least:
            return f"{wanted}, found {found} at {sys.executable}"
    return ""
