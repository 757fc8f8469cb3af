"""Which changed settings a reload cannot take up, by their declarations. Pure; called by `gateway.process.worker`."""

from __future__ import annotations

from collections.abc import Iterator

from ostiary.core.abilities import ability
from ostiary.core.settings.declare import settings_of
from ostiary.core.settings.sections import Section
from ostiary.gateway.config.settings import GatewayConfig, Provider
from ostiary.gateway.config.settings.gateway_file import GatewayFile
from ostiary.gateway.config.settings.kinds import ProviderEntry
from ostiary.gateway.config.settings.listen import HealthSettings
from ostiary.interfaces.token_store import KeptInFile, TokenStore


def changes_that_need_a_restart(old: GatewayConfig, new: GatewayConfig) -> Iterator[str]:
    """The changed settings that are declared with ``reload=False``; a whole section if that is declared so."""
    for setting in settings_of(GatewayFile):
        kind = setting.kind
        if not isinstance(kind, Section):
            continue
        before, after = (_section(config, setting.attribute) for config in (old, new))
        if not kind.reload and before != after:
            yield setting.name
        elif kind.reload and not isinstance(kind, ProviderEntry):
            for inner in settings_of(kind.of):
                is_changed = getattr(before, inner.attribute, None) != getattr(after, inner.attribute, None)
                if not inner.kind.reload and is_changed:
                    yield f"{setting.name}.{inner.name}"


def _section(config: GatewayConfig, attribute: str) -> object:
    if attribute == "health":
        return HealthSettings(config.health)
    if attribute == "store":
        return _store_key(config.store)
    return getattr(config, attribute)


def _store_key(store: Provider[TokenStore]) -> tuple[str, str]:
    """What tells one store from another: each load builds a new object."""
    kept = ability(store.instance, KeptInFile)
    return store.type, "" if kept is None else kept.path
