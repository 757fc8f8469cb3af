"""Opens the issuer of a configuration, with its keys from files or from the token store. Called by the app."""

from __future__ import annotations

from ostiary.core.abilities import ability
from ostiary.core.clock import Clock
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.issuer.issuer import JwtIssuer
from ostiary.gateway.issuer.key_files import KeyFiles
from ostiary.gateway.issuer.key_source import SigningKeySource
from ostiary.gateway.issuer.settings import IssuerKeys
from ostiary.gateway.issuer.stored_keys import StoredKeys
from ostiary.gateway.process.app.shared import Shared
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore


def open_issuer(config: GatewayConfig, shared: Shared, clock: Clock) -> JwtIssuer | None:
    """None if no JWTs are to be signed. Nothing is read yet."""
    settings = config.issuer
    if settings is None:
        return None
    return JwtIssuer(
        config.issuer_url,
        settings.audiences,
        settings.lifetime,
        _key_source(settings.keys, shared, clock),
        shared.tokens,
        clock=clock,
        metrics=shared.metrics,
        counts=shared.counts,
    )


def _key_source(keys: IssuerKeys, shared: Shared, clock: Clock) -> SigningKeySource:
    if keys.secret_file is None:
        return KeyFiles(keys.files, clock)
    objects = ability(shared.tokens.store, ObjectStore)
    assert objects is not None, "the configuration was checked"
    return StoredKeys(objects, str(keys.secret_file), keys.life, clock)
