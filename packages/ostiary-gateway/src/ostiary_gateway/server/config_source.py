"""The source of the configuration, at the start and at each reload."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ostiary.core.yaml import read_bytes
from ostiary_gateway.config import default_config, load
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.settings.outgoing import opening_keys


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration file, or the default configuration.

    Providers and limits count in `counts`, which all workers share and which outlives reloads; the app joins them with
    those of other replicas. `text` is the content of the file at one moment, so that all workers load the same
    configuration.
    """

    path: Path | None = None
    counts: ReplicatedCounts = field(default_factory=lambda: ReplicatedCounts(MemoryCounts()))
    text: str | None = None

    def at_this_moment(self) -> ConfigSource:
        """Return a copy with the current content of the file. Raises `ConfigurationError` if it cannot be read."""
        return (
            self if self.path is None else replace(self, text=read_bytes(self.path).decode("utf-8", "surrogateescape"))
        )

    def load(self, built: list[object] | None = None) -> GatewayConfig:
        """Load the configuration. The providers are added to *built* even if it is invalid.

        Raises `ConfigurationError`, which lists every error.
        """
        if self.path is None:
            return default_config()
        # Open the signing keys, so that an unusable one is reported as a configuration error too.
        with opening_keys():
            return load(self.path, text=self.text, built=built, counts=self.counts)
