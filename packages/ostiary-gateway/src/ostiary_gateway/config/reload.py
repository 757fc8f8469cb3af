"""Detect changed settings that a reload cannot apply, from their declarations. No side effects.

``ostiary-gateway store migrate`` uses `store_key` to check whether two configurations name the same store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ostiary.errors import ConfigurationError
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.gateway_file import GatewayFile
from ostiary_gateway.config.kinds import ProviderEntry
from ostiary_gateway.config.listen import HealthSettings
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.settings.declare import read_settings, settings_of
from ostiary_gateway.settings.sections import Section, declared_settings


def changes_that_need_a_restart(old: GatewayConfig, new: GatewayConfig) -> Iterator[str]:
    """Yield the changed settings declared with ``reload=False``; a section's name if the section is declared so."""
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
        return store_key(config.store, config.directory)
    return getattr(config, attribute)


def store_key(store: Provider[TokenStore], directory: Path) -> tuple[str, object]:
    """Return what identifies a store: its type and all of its settings as read, because each load builds a new object.

    A setting that one file contains and the other omits, because it is the default, is equal.
    """
    if store.fields is None:
        return store.type, None
    fields = store.fields.again()
    declaration = declared_settings("token_store", store.type)
    if declaration is None:
        return store.type, {key: fields.plain(key) for key in fields}
    settings: object = read_settings(declaration, fields, directory)
    return store.type, [getattr(settings, setting.attribute) for setting in settings_of(declaration)]


def check_reloadable(old: GatewayConfig, new: GatewayConfig) -> None:
    """Raise `ConfigurationError` for a change that requires a restart: addresses, workers, store, tokens, limits."""
    changed = list(changes_that_need_a_restart(old, new))
    if changed:
        raise ConfigurationError(
            "the configuration was not reloaded",
            cause=f"changing {', '.join(changed)} needs a restart",
            hint="restart the gateway, or undo the change",
            code="config-invalid",
        )
