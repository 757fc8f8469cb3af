"""Opens the issuer of a configuration, with its keys from files or from the token store. Called by the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostiary.core.abilities import ability
from ostiary.core.clock import Clock
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.issuer.settings import IssuerKeys
from ostiary.gateway.process.app.shared import Shared
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore

if TYPE_CHECKING:
    # Imported where it is needed: most gateways sign no JWTs.
    from ostiary.gateway.issuer.issuer import JwtIssuer
    from ostiary.gateway.issuer.key_source import SigningKeySource


def open_issuer(config: GatewayConfig, shared: Shared, clock: Clock) -> JwtIssuer | None:
    """None if no JWTs are to be signed. Nothing is read yet."""
    settings = config.issuer
    if settings is None:
        return None
    from ostiary.gateway.issuer.issuer import JwtIssuer

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
    from ostiary.gateway.issuer.key_files import KeyFiles
    from ostiary.gateway.issuer.stored_keys import StoredKeys

    if keys.secret_file is None:
        return KeyFiles(keys.files, clock)
    objects = ability(shared.tokens.store, ObjectStore)
    assert objects is not None, "the configuration was checked"
    return StoredKeys(objects, str(keys.secret_file), keys.life, clock)
