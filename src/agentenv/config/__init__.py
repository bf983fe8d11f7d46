"""The configuration: one TOML file, checked completely before anything is started.

Reads, checks and explains. It starts nothing and imports no environment, no NumPy and no Gymnasium, so that a mistake
in the file is reported in milliseconds.
"""

from agentenv.config.load import config_from_keywords, load_config
from agentenv.config.model import BubblewrapConfig, EnvironmentConfig, GlobalConfig, WrapperConfig
from agentenv.config.resolved import Config
from agentenv.config.schema import json_schema

__all__ = [
    "BubblewrapConfig",
    "Config",
    "EnvironmentConfig",
    "GlobalConfig",
    "WrapperConfig",
    "config_from_keywords",
    "json_schema",
    "load_config",
]
