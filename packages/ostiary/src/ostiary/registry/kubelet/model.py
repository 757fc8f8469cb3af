"""What a ``CredentialProviderConfig`` says, as values.

Made by `document` and `config`; everything that runs, caches or explains a provider knows only this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from ostiary.model import Place, Problem
from ostiary.wire.credential_provider import V1, ProviderDialect


@dataclass(frozen=True, slots=True)
class TokenAttributes:
    """Which service account token a provider is given, and what its answers are cached by."""

    audience: str
    cache_type: str
    require_service_account: bool
    required_annotation_keys: tuple[str, ...] = ()
    optional_annotation_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderConfig:
    """One credential provider. Two are equal if they run the same, wherever they stand.

    In the proposal's dialect an answer tells itself how long it holds, so that the default is no caching.
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
        """Whether a pattern without a port matches images with any: so says the proposal, and not the kubelet."""
        return self.dialect is ProviderDialect.PROPOSAL


@dataclass(frozen=True, slots=True)
class ProvidersConfig:
    """All providers, in the order in which they are asked. `hash` is what the kubelet's metric shows.

    `warnings` tell what the kubelet takes and does not use.
    """

    providers: tuple[ProviderConfig, ...]
    hash: str = ""
    files: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
