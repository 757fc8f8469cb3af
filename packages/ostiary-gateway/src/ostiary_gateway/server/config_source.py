"""Where the configuration comes from, at the start and at each reload.

Called by ``ostiary-gateway serve``, the supervisor and its workers.
"""

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
    """A file, or the default configuration where there is none.

    Its providers and limits count in `counts`, which all workers share and which outlives reloads; the app joins them
    with those of other replicas. `text` is what the file contained at one moment, so that all workers load the same.
    """

    path: Path | None = None
    counts: ReplicatedCounts = field(default_factory=lambda: ReplicatedCounts(MemoryCounts()))
    text: str | None = None

    def at_this_moment(self) -> ConfigSource:
        """The same, with the text that the file has now. Raises `ConfigurationError` if it cannot be read."""
        return (
            self if self.path is None else replace(self, text=read_bytes(self.path).decode("utf-8", "surrogateescape"))
        )

    def load(self, built: list[object] | None = None) -> GatewayConfig:
        """Raises `ConfigurationError` with every mistake. The providers are added to *built* in any case."""
        if self.path is None:
            return default_config()
        # The gateway signs with its keys: one that cannot be used is a mistake, too.
        with opening_keys():
            return load(self.path, text=self.text, built=built, counts=self.counts)
