"""What runs by the Python of an image runs by 3.9, with the newest and with the oldest packages that are accepted."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from agentenv.guest.needed import PACKAGES
from older_python import provide

SOURCES = Path(str(files("agentenv"))).parent
OLDEST = [f"{name}=={'.'.join(map(str, least))}.*" for name, least in PACKAGES]

# Everything but what only the host imports; as a zygote is started, and then an environment in it.
INSIDE = """
import importlib, pkgutil, sys
import gymnasium
from gymnasium import spaces
found = []
for package in map(importlib.import_module, ("agentenv.wire", "agentenv.guest")):
    found += [m.name for m in pkgutil.iter_modules(package.__path__, package.__name__ + ".") if not m.ispkg]
found += ["agentenv.errors", "agentenv.checks.inside", "agentenv.testing.samples"]
for name in found:
    importlib.import_module(name)
from agentenv.guest.needed import find_fault
assert find_fault() == "", find_fault()
from agentenv.guest.warming import warm_up
warm_up()
from agentenv.wire.spaces import describe, rebuild
from agentenv.wire.values import decode, encode
parts = [
    spaces.Box(-1, 1, (3,)), spaces.Discrete(3, start=1), spaces.MultiBinary([2, 3]), spaces.MultiDiscrete([3, 4]),
    spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Box(0, 1, (2,)), None),
]
parts += [spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3)))] if hasattr(spaces, "OneOf") else []
for space in [*parts, spaces.Tuple(parts), spaces.Dict({str(number): part for number, part in enumerate(parts)})]:
    assert rebuild(describe(space)) == space, space

class Loud(complex):
    def __pos__(self):
        raise RuntimeError("not asked")

class Blob(bytes):
    def __getitem__(self, key):
        raise RuntimeError("not asked")

value = [Loud(1 - 0j), Blob(b"ab"), {"a": (True, None, 1.5)}, gymnasium.error.Error("x")]
back = decode(encode(value), max_bytes=1 << 20)
assert back[:3] == value[:3] and [type(one) for one in back[:2]] == [complex, bytes], back
from agentenv.guest.capture import Capture
env = gymnasium.make("CartPole-v1")
env.reset(seed=1)
capture = Capture(env)
state = capture.dump(False)
assert capture.proven(env, state, False) == "", capture.proven(env, state, False)
first = env.step(1)[0].tobytes()
assert capture.load(state) is False
assert env.step(1)[0].tobytes() == first
from agentenv.envs.registration import register_envs
register_envs()
env = gymnasium.make("agentenv/GridWorld-v0")
env.reset(seed=1)
env.step(env.action_space.sample())
print(*sys.version_info[:2], len(found))
"""


# Of the standard library's newer keyword arguments, those that one writes without thinking; ruff knows the syntax only.
NEWER = {"zip": "strict", "dataclass": "slots"}


def test_no_newer_keyword_arguments() -> None:
    table = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = table["tool"]["ruff"]["per-file-target-version"]
    found, seen = [], 0
    for path in sorted(SOURCES.rglob("*.py")):
        name = str(path.relative_to(SOURCES.parent))
        if not any(fnmatch.fnmatch(name, one) for pattern in patterns for one in spelled_out(pattern)):
            continue
        seen += 1
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                newer = NEWER.get(node.func.id)
                if any(keyword.arg == newer for keyword in node.keywords if newer):
                    found.append(f"{name}:{node.lineno}: {node.func.id}({newer}=...)")
    assert found == []
    assert seen > 60


def spelled_out(pattern: str) -> list[str]:
    """A pattern's alternatives, as fnmatch knows none."""
    alternatives = re.search(r"\{(.*?)\}", pattern)
    if alternatives is None:
        return [pattern]
    return [pattern.replace(alternatives[0], one) for one in alternatives[1].split(",")]


@pytest.fixture(scope="module")
def shelf(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what is made once is kept; for these tests alone where pytest keeps nothing."""
    cache = getattr(pytestconfig, "cache", None)
    return tmp_path_factory.mktemp("older") if cache is None else Path(cache.mkdir("older-python"))


def run(python: str, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.defpath, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"}
    variables["OPENBLAS_NUM_THREADS"] = "1"  # what runs threads is not forked
    argv = [python, "-s", *options, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, env=variables, timeout=100)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("packages", [["numpy", "gymnasium"], OLDEST], ids=["newest", "oldest"])
def test_all_of_it_runs(shelf: Path, packages: list[str]) -> None:
    python = provide(shelf, *packages)
    done = run(python, INSIDE)
    assert done.returncode == 0, done.stderr[-3000:]
    major, minor, modules = map(int, done.stdout.split())
    assert (major, minor) == (3, 9)
    assert modules > 50


@pytest.mark.timeout(300)
def test_packages_that_are_too_old_are_named(shelf: Path) -> None:
    python = provide(shelf, "numpy==1.26.4", "gymnasium==0.28.1")
    done = run(python, "from agentenv.guest.needed import find_fault; print(find_fault())")
    assert done.stdout.startswith("expected gymnasium 0.29 or newer in the image, found 0.28.1 at /"), done


def test_packages_that_are_missing_are_named() -> None:
    done = run(sys.executable, "from agentenv.guest.needed import find_fault; print(find_fault())", "-S")
    version = ".".join(map(str, sys.version_info[:3]))
    assert done.stdout.startswith(f"expected numpy 1.21 or newer in the image, found none for Python {version} at /"), (
        done
    )
