"""Load and check ``gateway.yaml``. `load` is the entry point; `config.settings` has the resulting types."""

from ostiary_gateway.config.checks import warnings
from ostiary_gateway.config.gateway_file import API_VERSION, KIND
from ostiary_gateway.config.loading import default_config, load, loads

__all__ = ["API_VERSION", "KIND", "default_config", "load", "loads", "warnings"]
