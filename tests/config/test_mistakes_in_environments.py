"""Every kind of mistake in an environment with the exact Problem it gives, the line included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentenv.errors import Problem

ProblemsOf = Callable[..., list[Problem]]


def in_environment(line: str) -> str:
    return f'[[environments]]\nid = "a"\n{line}\n'


COUNT = "expected an integer from 1 to 100000, "
NUMBER = "expected a number > 0, "
CORES = "expected a number from 0.01 to 65536, "
ENTRY = 'such as "my_package.my_module:MyClass"'
FILE = 'name a module as import does, not a file: "my_package.my_module:MyClass"'
ENV = 'expected a Gymnasium id or "module:callable", '
ENV_HINT = 'such as "CartPole-v1" or "my_package.my_module:MyEnv"'
JSON = "it travels into the sandbox as JSON; build the object inside, in a module:callable"
TOO_DEEP = (
    "expected tables and lists nested at most 100 levels deep, got more",
    "build what is nested so deeply inside, in a module:callable",
)
NETWORK = 'expected "none", "internet", or a table with allow and deny, '
QUOTES = "write it without quotes"

IN_ENVIRONMENT = [
    # integers
    ("count = 0", "count", COUNT + "got 0", ""),
    ('count = "8"', "count", COUNT + 'got "8" (a string)', QUOTES),
    ("count = 2.0", "count", COUNT + "got 2.0 (a float)", "write 2"),
    ("count = true", "count", COUNT + "got true (a boolean)", ""),
    ("count = 100001", "count", COUNT + "got 100001", ""),
    ("count = []", "count", COUNT + "got an empty list", ""),
    ("memory_mb = 15", "memory_mb", "expected an integer >= 16, got 15", ""),
    ("memory_mb = 256.5", "memory_mb", "expected an integer >= 16, got 256.5 (a float)", ""),
    ("pids = 3", "pids", "expected an integer >= 4, got 3", ""),
    ("disk_mb = 0", "disk_mb", "expected an integer >= 1, got 0", ""),
    ("seed = -1", "seed", "expected an integer >= 0, got -1", ""),
    ('seed = "1"', "seed", 'expected an integer >= 0, got "1" (a string)', QUOTES),
    ("seed = false", "seed", "expected an integer >= 0, got false (a boolean)", ""),
    ("episodes = 0", "episodes", "expected an integer >= 1, got 0", ""),
    ("max_episode_steps = 0", "max_episode_steps", "expected an integer >= 1, got 0", ""),
    ("max_message_mb = 0", "max_message_mb", "expected an integer >= 1, got 0", ""),
    # numbers
    ("vcpu_count = 0", "vcpu_count", CORES + "got 0", ""),
    ("vcpu_count = 1e300", "vcpu_count", CORES + "got 1e+300", ""),
    ("pids = 99999999999", "pids", "expected an integer of at most 4194304, got 99999999999", ""),
    ("step_timeout_s = 1e300", "step_timeout_s", "expected a number of at most 1e+08, got 1e+300", ""),
    ("vcpu_count = -0.5", "vcpu_count", CORES + "got -0.5", ""),
    ('vcpu_count = "2"', "vcpu_count", CORES + 'got "2" (a string)', QUOTES),
    ("vcpu_count = true", "vcpu_count", CORES + "got true (a boolean)", ""),
    ("step_timeout_s = inf", "step_timeout_s", "expected a number of at most 1e+08, got inf", ""),
    ("reset_timeout_s = nan", "reset_timeout_s", NUMBER + "got nan", ""),
    ("start_timeout_s = 1979-05-27", "start_timeout_s", NUMBER + "got 1979-05-27 (a date)", ""),
    # the rest of the simple types
    ("network = 1", "network", NETWORK + "got 1 (an integer)", ""),
    ('network = "yes"', "network", NETWORK + 'got "yes" (a string)', 'write "internet"'),
    ('network = "false"', "network", NETWORK + 'got "false" (a string)', 'write "none"'),
    ('memory_mb = "much"', "memory_mb", 'expected an integer >= 16, got "much" (a string)', ""),
    ('evn = "X-v0"', "evn", "unknown key", 'did you mean "env"?'),
    (
        'env = "__main__:Q"',
        "env",
        '__main__ is not available in a sandbox, got "__main__:Q"',
        'move it to a module and name it as "module:callable", such as "my_module:Q"',
    ),
    ("kernel_image = 1", "kernel_image", "expected a string, got 1 (an integer)", ""),
    ('rootfs_image = ""', "rootfs_image", "expected a non-empty string, got an empty one", ""),
    (
        'invalid_action = "cilp"',
        "invalid_action",
        'expected one of "error", "clip", got "cilp"',
        'did you mean "clip"?',
    ),
    ("invalid_action = 1", "invalid_action", 'expected one of "error", "clip", got 1 (an integer)', ""),
    (
        'render_mode = "human"',
        "render_mode",
        'expected one of "rgb_array", "ansi", "rgb_array_list", got "human"',
        "there is no display inside a sandbox; render with rgb_array and show the frames yourself",
    ),
    (
        'render_mode = "rgb"',
        "render_mode",
        'expected one of "rgb_array", "ansi", "rgb_array_list", got "rgb"',
        "",
    ),
    # names
    ('env = "foo bar"', "env", ENV + 'got "foo bar"', ENV_HINT),
    ('env = ""', "env", ENV + 'got ""', ENV_HINT),
    ("env = 3", "env", ENV + "got 3 (an integer)", ENV_HINT),
    ('env = "mod:1x"', "env", ENV + 'got "mod:1x"', ENV_HINT),
    ('env = "./envs/my.py:Env"', "env", ENV + 'got "./envs/my.py:Env"', FILE),
    ('policy = "greedy"', "policy", 'expected "random" or "module:callable", got "greedy"', ENTRY),
    ('policy = "p.py:act"', "policy", 'expected "random" or "module:callable", got "p.py:act"', FILE),
    ('wrappers = ["Flatten"]', "wrappers[0]", 'expected "module:callable", got "Flatten"', ENTRY),
    ('wrappers = "a:B"', "wrappers", 'expected a list of strings or tables, got "a:B" (a string)', ""),
    ("wrappers = [1]", "wrappers[0]", "expected a string or a table, got 1 (an integer)", ""),
    ('wrappers = [{ wrapper = "a:B", kwarg = 1 }]', "wrappers[0].kwarg", "unknown key", 'did you mean "kwargs"?'),
    ("wrappers = [{ kwargs = {} }]", "wrappers[0].wrapper", "expected a string, got nothing", "this key is required"),
    # tables
    ("env_kwargs = 1", "env_kwargs", "expected a table, got 1 (an integer)", ""),
    (
        "env_kwargs = { a = { b = [1, 07:32:00] } }",
        "env_kwargs.a.b[1]",
        "expected a string, number, boolean, list or table, got 07:32:00 (a time of day)",
        JSON,
    ),
    (
        "env_kwargs = { a = nan }",
        "env_kwargs.a",
        "expected a number, got nan",
        "nan equals nothing, so two configs could not be compared",
    ),
    (f"env_kwargs = {{ a = {'[' * 400}1{']' * 400} }}", "env_kwargs.a", *TOO_DEEP),
    (f"env_kwargs.a{'.b' * 900} = 1", "env_kwargs.a", *TOO_DEEP),
    (f"wrappers = [{{ wrapper = 'a:B', kwargs.a{'.b' * 100} = 1 }}]", "wrappers[0].kwargs.a", *TOO_DEEP),
    ("env_vars = []", "env_vars", "expected a table, got an empty list", ""),
    ("env_vars.A = [1]", "env_vars.A", "expected a string, a number, true or false, got a list", ""),
    (
        "env_vars.1A = 1",
        "env_vars.1A",
        "expected a name of letters, digits and '_' that does not start with a digit, got \"1A\"",
        "",
    ),
    ('env_vars.A = "\\u0000"', "env_vars.A", "expected text without NUL characters, which no process can be given", ""),
    # command
    (
        "command = \"python 'my train.py'\"",
        "command",
        "expected a non-empty list of strings, got \"python 'my train.py'\" (a string)",
        'write ["python", "my train.py"]',
    ),
    ("command = []", "command", "expected a non-empty list of strings, got an empty list", ""),
    ('command = ["sleep", 3]', "command[1]", "expected a string, got 3 (an integer)", ""),
    ('command = [""]', "command[0]", "expected the name of a program, got an empty string", ""),
    (
        "timeout_s = 5",
        "timeout_s",
        "expected timeout_s only together with command",
        "an environment has start_timeout_s, reset_timeout_s and step_timeout_s",
    ),
    # unknown keys
    *[
        (f"{wrong} = 1", wrong, "unknown key", f'did you mean "{right}"?')
        for wrong, right in [
            ("num_env", "count"),
            ("num_envs", "count"),
            ("n_envs", "count"),
            ("num-envs", "count"),
            ("replicas", "count"),
            ("memory", "memory_mb"),
            ("mem_mb", "memory_mb"),
            ("RAM", "memory_mb"),
            ("memry_mb", "memory_mb"),
            ("memory-mb", "memory_mb"),
            ("cpus", "vcpu_count"),
            ("vcpus", "vcpu_count"),
            ("kernel", "kernel_image"),
            ("timeout", "step_timeout_s"),
            ("env_id", "env"),
            ("environment", "env"),
            ("kwargs", "env_kwargs"),
            ("envvars", "env_vars"),
            ("environment_variables", "env_vars"),
            ("max_steps", "max_episode_steps"),
            ("name", "id"),
        ]
    ],
    ("log_level = 1", "log_level", "unknown key", "log_level belongs in [global]"),
    ("nested = 1", "nested", "unknown key", "nested belongs in [bubblewrap]"),
    ("max_envs = 1", "max_envs", "unknown key", 'did you mean "max_parallel_envs"? It belongs in [global]'),
    ("runtme = 1", "runtme", "unknown key", 'did you mean "runtime"? It belongs in [global]'),
]


@pytest.mark.parametrize(("line", "path", "message", "hint"), IN_ENVIRONMENT, ids=[row[0] for row in IN_ENVIRONMENT])
def test_in_an_environment(line: str, path: str, message: str, hint: str, problems_of: ProblemsOf) -> None:
    expected = Problem("f.toml:3", f"environments[0].{path}", message, hint)
    assert problems_of(in_environment(line)) == [expected]


def test_a_key_nothing_is_near_to_lists_the_valid_ones(problems_of: ProblemsOf) -> None:
    [problem] = problems_of(in_environment("zzz = 1"))
    assert problem.message == "unknown key"
    assert problem.hint.startswith("valid keys of [[environments]]: id, count, env, env_kwargs, wrappers, command")
