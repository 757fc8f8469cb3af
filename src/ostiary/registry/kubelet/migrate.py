"""Writes any configuration that `config` can read as the ``CredentialProviderConfig`` v1 of today.

Called with what `load` returned, so that a broken configuration has been refused already. Pure.
"""

from __future__ import annotations

import yaml

from ostiary.core.go.duration import format_duration
from ostiary.registry.kubelet.document import CONFIG_V1, KIND
from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig, TokenAttributes
from ostiary.wire.credential_provider import V1, ProviderDialect

_PROPOSAL_NOTE = f"""\
# This was a RegistryCredentialConfig, which no kubelet reads. What changes for its providers:
# - The kubelet speaks {V1} to them: a request has kind and apiVersion besides the
#   image, and an answer has cacheKeyType, cacheDuration and auth: {{pattern: {{username, password}}}}.
# - They must stand in the directory of --image-credential-provider-bin-dir; PATH is not searched.
# - A pattern without a port matches only images without a port.
# - An answer without a cacheDuration is cached for defaultCacheDuration; 0s caches nothing, as before.
"""


class _Quoted(str):
    """Text of the configuration, always written in quotes: a bare ``*``, ``y`` or ``5`` is no text in YAML."""


class _MigrationDumper(yaml.SafeDumper):
    pass


_MigrationDumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def migrate(config: ProvidersConfig) -> str:
    """The YAML of *config* as v1. A provider of the proposal's dialect must be taught the protocol of today."""
    fields = {
        "apiVersion": CONFIG_V1,
        "kind": KIND,
        "providers": [_provider(provider) for provider in config.providers],
    }
    text = yaml.dump(fields, Dumper=_MigrationDumper, sort_keys=False, allow_unicode=True, width=float("inf"))
    proposed = any(provider.dialect is ProviderDialect.PROPOSAL for provider in config.providers)
    return _PROPOSAL_NOTE + text if proposed else text


def _provider(provider: ProviderConfig) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": _Quoted(provider.name),
        "matchImages": [_Quoted(pattern) for pattern in provider.match_images],
        "defaultCacheDuration": _Quoted(format_duration(provider.default_cache_duration)),
        "apiVersion": V1 if provider.dialect is ProviderDialect.PROPOSAL else provider.api_version,
    }
    if provider.args:
        fields["args"] = [_Quoted(argument) for argument in provider.args]
    if provider.env:
        fields["env"] = [{"name": _Quoted(name), "value": _Quoted(value)} for name, value in provider.env]
    if provider.token_attributes is not None:
        fields["tokenAttributes"] = _token_attributes(provider.token_attributes)
    return fields


def _token_attributes(attributes: TokenAttributes) -> dict[str, object]:
    fields: dict[str, object] = {
        "serviceAccountTokenAudience": _Quoted(attributes.audience),
        "cacheType": attributes.cache_type,
        "requireServiceAccount": attributes.require_service_account,
    }
    lists = {
        "requiredServiceAccountAnnotationKeys": attributes.required_annotation_keys,
        "optionalServiceAccountAnnotationKeys": attributes.optional_annotation_keys,
    }
    return fields | {name: [_Quoted(key) for key in keys] for name, keys in lists.items() if keys}
