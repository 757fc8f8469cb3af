"""``gateway.yaml``, read and checked. `load` is where it begins; the result is `config.settings`."""

from ostiary.gateway.config.loading import default_config, load, loads
from ostiary.gateway.config.rules import warnings
from ostiary.gateway.config.settings.gateway_file import API_VERSION, KIND

__all__ = ["API_VERSION", "KIND", "default_config", "load", "loads", "warnings"]
