"""The values of a ``CredentialProviderConfig``.

Created by `config` and `document`; all other code depends only on this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ostiary.model import Place, Problem
from ostiary.wire.credential_provider import V1, ProviderDialect


@dataclass(frozen=True, slots=True)
class TokenAttributes:
    """The service account token that a provider gets, and how its responses are cached."""

    audience: str
    cache_type: str
    require_service_account: bool
    required_annotation_keys: tuple[str, ...] = ()
    optional_annotation_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One credential provider. Two are equal if they run the same, regardless of their position.

    In the proposal's dialect a response states its own lifetime, so the default is no caching.
    """

    name: str
    match_images: tuple[str, ...]
    default_cache_duration: timedelta = timedelta(0)
    api_version: str = V1
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    token_attributes: TokenAttributes | None = None
    place: Place = field(default=Place(), compare=False)
    dialect: ProviderDialect = ProviderDialect.KUBELET

    @property
    def any_port(self) -> bool:
        """Return whether a pattern without a port matches any port, as in the proposal but not in the kubelet."""
        return self.dialect is ProviderDialect.PROPOSAL


@dataclass(frozen=True, slots=True)
class ProvidersConfig:
    """All providers, in the order in which they are run. `hash` is the value in the kubelet's metric.

    `warnings` are about settings that the kubelet accepts and ignores.
    """

    providers: tuple[ProviderConfig, ...]
    hash: str = ""
    files: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
