"""``agentenv schema``: the JSON Schema of the configuration, for editors."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of a configuration file.

    \b
    Example:
      agentenv schema > agentenv.schema.json
    """
    from agentenv.cli.console import print_json
    from agentenv.config import json_schema

    print_json(json_schema())
