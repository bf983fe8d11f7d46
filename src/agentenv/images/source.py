"""What ``--from`` may say, parsed; nothing is fetched or read here but to see what kind of file a path is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentenv.errors import ConfigError, Problem

FORMS = "debian:SUITE, a directory, oci:REFERENCE, oci-archive:FILE, or the path of a Dockerfile"
_SUITE = re.compile(r"[a-z][a-z0-9-]{0,31}")
# As distribution's reference grammar, without what would be read as an option.
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,511}")

_DOCKERFILE = re.compile(r"(?i)(docker|container)file")


@dataclass(frozen=True, slots=True)
class Source:
    """Where an image's files come from.

    Attributes:
        kind: Which of the forms.
        value: Suite, absolute path, or reference.
    """

    kind: Literal["debian", "directory", "oci", "oci-archive", "dockerfile"]
    value: str

    def __str__(self) -> str:
        return self.value if self.kind == "directory" else f"{self.kind}:{self.value}"


def parse_source(text: str) -> Source:
    """Parse it.

    Raises:
        ConfigError: It is none of the forms, or names a path that is not there.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "debian":
        if not _SUITE.fullmatch(rest):
            raise _wrong(f"expected a suite such as debian:bookworm, got {text!r}")
        return Source("debian", rest)
    if colon and scheme == "oci":
        rest = rest.removeprefix("//")
        if not _REFERENCE.fullmatch(rest):
            raise _wrong(f"expected a reference such as oci:HOST/NAME:TAG, got {text!r}")
        return Source("oci", rest)
    if colon and scheme == "oci-archive":
        path = Path(os.path.expanduser(rest)).absolute()
        if not os.path.isfile(path):
            raise _wrong(f"expected a file after oci-archive:, and {str(path)[:200]} is none{why_not(path)}")
        _expect_readable(path)
        return Source("oci-archive", str(path))
    path = Path(os.path.expanduser(text.removeprefix("dockerfile:"))).absolute()
    if text and os.path.isdir(path) and not text.startswith("dockerfile:"):
        return Source("directory", str(path))
    if os.path.isfile(path):
        if text.startswith("dockerfile:") or _DOCKERFILE.match(path.name):
            _expect_readable(path)
            return Source("dockerfile", str(path))
        raise _wrong(f"expected {FORMS}; {path} is a file", f"oci-archive:{path} or dockerfile:{path} says which")
    is_path = text.startswith(("dockerfile:", ".", "/", "~")) or ("/" in text and ":" not in text)
    if is_path or _DOCKERFILE.match(text):
        raise _wrong(f"expected {FORMS}, and there is no {str(path)[:200]}{why_not(path)}")
    raise _wrong(f"expected {FORMS}, got {text[:200]!r}")


def _expect_readable(path: Path) -> None:
    if not os.access(path, os.R_OK, effective_ids=True):
        raise _wrong(f"expected a file that can be read, and {path} cannot")


def why_not(path: Path) -> str:
    """Why a path cannot be looked at, to end a sentence with; "" where there is nothing of this name, or something."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""
    except OSError as error:
        return f": {error.strerror}"
    return ""


def _wrong(message: str, hint: str = "") -> ConfigError:
    return ConfigError([Problem("command line", "--from", message, hint)])
