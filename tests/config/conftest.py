"""A file written, loaded and refused: what every test of a mistake needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.config import load_config
from agentenv.errors import ConfigError, Problem

ProblemsOf = Callable[..., list[Problem]]


@pytest.fixture
def problems_of(tmp_path: Path) -> ProblemsOf:
    """Load a text, or bytes, as the file f.toml with overrides, and give the problems, placed as ``f.toml:line``."""

    def refuse(text: str | bytes, *overrides: str) -> list[Problem]:
        path = tmp_path / "f.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigError) as caught:
            load_config(path, overrides=overrides)
        found = caught.value.problems
        return [Problem(p.where.replace(str(path), "f.toml"), p.path, p.message, p.hint) for p in found]

    return refuse
