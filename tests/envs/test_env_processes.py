"""The trainer's own process: its end, its exceptions, its forks. Each case is a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentenv.testing.leftovers import becomes_true

_TESTS = Path(__file__).parents[1]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _run(script: str, *, timeout_s: float = 40) -> subprocess.CompletedProcess[str]:
    """Run a trainer; TimeoutExpired means that it does not exit."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**os.environ, "PYTHONPATH": str(_TESTS), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize("runtime", ["bubblewrap", "process"])
def test_an_exception_with_open_environments_ends_the_interpreter(runtime: str) -> None:
    done = _run(
        "from agentenv import AgentENV, AgentVectorEnv\n"
        "from agentenv.testing.leftovers import descendants\n"
        f"env = AgentENV.from_env('envs.samples:Counter', runtime='{runtime}')\n"
        f"vec = AgentVectorEnv.from_env('envs.samples:Counter', num_envs=3, runtime='{runtime}')\n"
        "env.reset(), vec.reset()\n"
        "print(*descendants(), flush=True)\n"
        "raise RuntimeError('the trainer has a bug')\n"
    )
    assert done.returncode == 1
    assert "the trainer has a bug" in done.stderr
    assert done.stderr.count("Traceback") == 1
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 6
    assert becomes_true(lambda: not any(map(_runs, pids)), 10)


def test_a_child_forked_by_the_trainer_disturbs_nothing() -> None:
    """It exits, normally and by exception, and even closes its copies: the parent's environments go on."""
    done = _run(
        "import multiprocessing, os, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "import numpy as np\n"
        "from agentenv import AgentENV, AgentVectorEnv\n"
        "env = AgentENV.from_env('envs.samples:Counter', env_kwargs={'length': 99})\n"
        "vec = AgentVectorEnv.from_env('envs.samples:Counter', num_envs=2, env_kwargs={'length': 99})\n"
        "env.reset(), vec.reset()\n"
        "def leave():\n"
        "    pass\n"
        "def fail():\n"
        "    raise SystemExit(3)\n"
        "def close():\n"
        "    env.close(), vec.close()\n"
        "context = multiprocessing.get_context('fork')\n"
        "codes = []\n"
        "for number, work in enumerate((leave, fail, close), 1):\n"
        "    child = context.Process(target=work)\n"
        "    child.start()\n"
        "    child.join(20)\n"
        "    codes.append(child.exitcode)\n"
        "    assert env.step(0)[0].tolist() == [number, number]\n"
        "    assert vec.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [number, number]\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    raise SystemExit(0)  # runs the interpreter's exit handlers, unlike multiprocessing\n"
        "os.waitpid(pid, 0)\n"
        "assert env.step(0)[0].tolist() == [4, 4]\n"
        "assert vec.reset()[0].tolist() == [[0, 0]] * 2\n"
        "print(codes)\n"
    )
    assert done.stdout.split("\n")[0] == "[0, 3, 0]", done.stderr


def test_a_forked_child_is_told_that_the_environment_is_its_parents() -> None:
    done = _run(
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "from agentenv import AgentENV, ClosedError\n"
        "env = AgentENV.from_env('envs.samples:Counter')\n"
        "env.reset()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        env.step(0)\n"
        "    except ClosedError as error:\n"
        "        print('told:', error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "assert env.step(0)[0].tolist() == [1, 1]\n"
    )
    assert done.returncode == 0, done.stderr
    assert "told:" in done.stdout
    assert "fork" in done.stdout


def test_an_environment_of_main_says_what_to_do() -> None:
    done = _run(
        "import gymnasium\n"
        "from agentenv import AgentENV\n"
        "class Mine(gymnasium.Env):\n"
        "    pass\n"
        "try:\n"
        "    AgentENV.from_env(Mine)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
        "gymnasium.register('Mine-v0', entry_point=Mine)\n"
        "for name in ('Mine-v0', '__main__:Mine'):\n"
        "    try:\n"
        "        AgentENV.from_env(name)\n"
        "    except Exception as error:\n"
        "        print(error)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("__main__") >= 3
    assert done.stdout.count("module:callable") >= 3


def test_importing_agentenv_imports_no_gymnasium_and_registers_when_it_comes() -> None:
    done = _run(
        "import sys, agentenv\n"
        "assert 'gymnasium' not in sys.modules and 'numpy' not in sys.modules\n"
        "import gymnasium\n"
        "assert 'agentenv/GridWorld-v0' in gymnasium.registry\n"
        "assert type(gymnasium.__spec__.loader).__name__ == 'SourceFileLoader'\n"
        "assert not [finder for finder in sys.meta_path if 'agentenv' in type(finder).__module__]\n"
    )
    assert done.returncode == 0, done.stderr
