"""Writes docs/config.md from the JSON Schema, so that the page cannot disagree with the loader.

    python tools/config_docs.py           write the page
    python tools/config_docs.py --check   exit 1 when the page is not what would be written

The tables come from the schema, the example is loaded before it is printed, and the errors shown are the loader's own.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import tempfile
from typing import Any

from agentenv.config import json_schema, load_config
from agentenv.config.emit import emit_value
from agentenv.config.words import expected
from agentenv.errors import ConfigError

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "config.md"

EXAMPLE = """\
[global]
log_level = "info"
runtime = "auto"
seed = 42
max_parallel_envs = 10

[global.defaults]
memory_mb = 256
env_vars = { AGENT_TYPE = "dqn" }

[[environments]]
id = "cartpole"
env = "CartPole-v1"
count = 8                                # cartpole-0 .. cartpole-7
max_episode_steps = 200

[[environments]]
id = "lake"
env = "FrozenLake-v1"
env_kwargs = { desc = "@none", map_name = "8x8" }
wrappers = ["gymnasium.wrappers:RecordEpisodeStatistics"]
env_vars = { LEARNING_RATE = 0.001 }     # and AGENT_TYPE, from the defaults

[[environments]]
id = "trainer"
command = ["python", "train.py"]
timeout_s = 3600
vcpu_count = 2

[[environments]]
id = "agent_1"                           # neither env nor command: the built-in GridWorld
"""

MISTAKES = """\
[global]
log_level = "verbose"
memory_mb = 512

[[environments]]
id = "agent_1"
num_env = 8
vcpu_count = "2"

[[environments]]
memory_mb = 8
env = "my_env.py:MyEnv"
"""

HEAD = """\
# Configuration

One TOML file describes a run. This page is generated from the schema by `tools/config_docs.py`; change the
descriptions in `src/agentenv/config`, not here.
"""

RULES = """\
## How a file is read

- Types are strict: `"8"`, `8.0` and `true` are not integers. Unknown keys are errors, never ignored.
- `[global.defaults]` holds for every environment that does not say otherwise; `env_vars` and `env_kwargs` merge key
  by key. An environment with a `command` takes no `env`, `env_kwargs` or `wrappers` from the defaults, and one
  without takes no `command` and no `timeout_s`.
- `count = 3` turns the id `a` into `a-0`, `a-1` and `a-2`. Ids are unique after that, over the whole file. A `seed`
  given together with a count is the seed of the first copy; copy i gets `seed + i`.
- `env_vars` take strings, numbers and booleans (`true` becomes the string `true`). A null, which TOML lacks but a dict
  in Python has, omits the variable, also one of the defaults.
- In `env_kwargs` and in the `kwargs` of a wrapper the string `"@none"` stands for Python's `None`, at any depth.
- Paths of images are relative to the file, `run_dir` to the directory in which the command is started.

## Changing a key from the command line

`--set path=value` changes one key before the file is checked. The value is read as TOML, and as a string where it is
not TOML; `null` unsets the key.

    --set global.seed=3
    --set environments.agent_1.memory_mb=64
    --set environments[0].count=5
    --set global.defaults.env_vars.DEBUG=null

## In an editor

`agentenv schema > agentenv.schema.json`, and as the first line of the configuration, for editors that use Taplo:

    #:schema ./agentenv.schema.json

## From Python

`load_config` takes the path of a file, or a dict of the same structure. `AgentENV.from_env` and
`AgentVectorEnv.from_env` take every key of `[[environments]]` and of `[global]` as a keyword; `seed` is the
environment's. A runtime's own table is a dict by its name: `qemu={"agent_port": "vsock"}`.
"""


def page() -> str:
    """The whole page as Markdown."""
    schema = json_schema()
    definitions = schema["$defs"]
    load_text(EXAMPLE)
    sections = [
        HEAD,
        f"{_code('toml', EXAMPLE)}\nThe only key that is required is the `id` of an environment.\n",
        _section("[global]", definitions["GlobalTable"], schema),
        _section("[[environments]]", definitions["EnvironmentConfig"], schema),
        _section("A wrapper as a table", definitions["WrapperConfig"]["anyOf"][1], schema),
        _section("[bubblewrap]", definitions["BubblewrapConfig"], schema),
        _section("[qemu]", definitions["QemuConfig"], schema),
        _section("[firecracker]", definitions["FirecrackerConfig"], schema),
        _section("[network]", definitions["NetworkConfig"], schema),
        _section("A drive of a machine", definitions["DriveConfig"], schema),
        RULES,
        _mistakes(),
    ]
    return "\n".join(sections)


def load_text(text: str) -> str:
    """Load a file of this content, called config.toml, and return the error's text; empty where there is none."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        pathlib.Path("config.toml").write_text(text, encoding="utf-8")
        try:
            load_config("config.toml")
        except ConfigError as error:
            return str(error)
    return ""


def _mistakes() -> str:
    told = load_text(MISTAKES)
    if not told:
        raise SystemExit("tools/config_docs.py: the example of mistakes has none")
    return (
        "## Mistakes\n\nAll are reported together, in the order of the file, before anything is started; "
        "the exit code is 2. This file\n\n"
        f"{_code('toml', MISTAKES)}\nis answered with\n\n{_code('text', told)}"
    )


def _section(title: str, table: dict[str, Any], schema: dict[str, Any]) -> str:
    required = table.get("required", [])
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, node in table["properties"].items():
        resolved = {**schema["$defs"].get(node.get("$ref", "").rsplit("/", 1)[-1], {}), **node}
        items = resolved.get("items", {})
        if "$ref" in items:
            resolved["items"] = schema["$defs"][items["$ref"].rsplit("/", 1)[1]]
        if key in required:
            default = "required"
        else:
            default = f"`{emit_value(node['default'])}`" if "default" in node else "unset"
        cells = (f"`{key}`", expected(resolved), default, node.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    heading = f"`{title}`" if title.startswith("[") else title
    return f"## {heading}\n\n{table.get('description', '')}\n\n" + "\n".join(rows) + "\n"


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare it. Returns the exit code."""
    written = page()
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == written:
            return 0
        print(f"{PAGE} is out of date: run python tools/config_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
