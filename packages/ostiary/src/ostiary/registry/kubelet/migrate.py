"""Converts older configurations to ``CredentialProviderConfig`` v1: other versions, and flags of an in-tree kubelet.

Takes what `load` returned, so an invalid configuration has been rejected already.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import yaml

from ostiary.core.duration import format_duration
from ostiary.core.text import printable
from ostiary.core.yaml import Json, read
from ostiary.errors import ConfigurationError
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
    """Text of the configuration, always written in quotes: a bare ``*``, ``y`` or ``5`` is no string in YAML."""


class _MigrationDumper(yaml.SafeDumper):
    pass


_MigrationDumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def migrate(config: ProvidersConfig) -> str:
    """Return *config* as YAML in v1. A provider of the proposal's dialect must be changed to the current protocol."""
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


# The value of aadClientId and aadClientSecret that stood for the machine's own identity.
_MACHINE = "msi"
_AUTHORITIES = {
    "azurepubliccloud": "",
    "azurechinacloud": "https://login.chinacloudapi.cn",
    "azureusgovernmentcloud": "https://login.microsoftonline.us",
    "azureusgovernment": "https://login.microsoftonline.us",
}


@dataclass(frozen=True, slots=True)
class AzureIdentity:
    """The identity with which the node signs in: variables for azure-identity, and the remaining manual steps."""

    env: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def read_azure_identity(path: str) -> AzureIdentity:
    """Convert the file of ``--azure-container-registry-config`` to variables of today's provider.

    The file may be JSON or YAML. A secret in it is named and never printed: the kubelet's configuration is no place for
    it. The files of other clouds (``cloud.conf`` of AWS and GCE) had no settings for their credential providers. Raises
    `ConfigurationError`.
    """
    value = read(path).value
    if not isinstance(value, dict):
        raise ConfigurationError(
            "the cloud configuration cannot be read", cause="it is no object", where=path, code="config-invalid"
        )
    return AzureIdentity(tuple(_variables(value)), tuple(_notes(value)))


def _variables(value: dict[str, Json]) -> Iterator[tuple[str, str]]:
    if tenant := _text(value, "tenantId"):
        yield "AZURE_TENANT_ID", tenant
    by_machine = value.get("useManagedIdentityExtension") is True
    client = _text(value, "userAssignedIdentityID") if by_machine else _text(value, "aadClientId")
    if client and client != _MACHINE:
        yield "AZURE_CLIENT_ID", client
    if not by_machine and (certificate := _text(value, "aadClientCertPath")):
        yield "AZURE_CLIENT_CERTIFICATE_PATH", certificate
    if authority := _AUTHORITIES.get(_text(value, "cloud").lower()):
        yield "AZURE_AUTHORITY_HOST", authority


def _notes(value: dict[str, Json]) -> Iterator[str]:
    cloud = _text(value, "cloud")
    if cloud and cloud.lower() not in _AUTHORITIES:
        yield f"the cloud {printable(cloud)} is not known: set AZURE_AUTHORITY_HOST for the provider"
    if value.get("useManagedIdentityExtension") is True:
        return
    if _text(value, "aadClientSecret") not in ("", _MACHINE):
        yield "aadClientSecret is not printed: give it to the kubelet as AZURE_CLIENT_SECRET, from a file"
    if _text(value, "aadClientCertPassword"):
        yield "aadClientCertPassword is not printed: give it to the kubelet as AZURE_CLIENT_CERTIFICATE_PASSWORD"


def _text(value: dict[str, Json], key: str) -> str:
    text = value.get(key)
    return text if isinstance(text, str) else ""


# The patterns of each in-tree provider, in today's format.
_IN_TREE = {
    "aws": (
        "ostiary-ecr-credential-provider",
        (
            "*.dkr.ecr.*.amazonaws.com",
            "*.dkr.ecr.*.amazonaws.com.cn",
            "*.dkr.ecr-fips.*.amazonaws.com",
            "*.dkr.ecr.us-iso-east-1.c2s.ic.gov",
            "*.dkr.ecr.us-isob-east-1.sc2s.sgov.gov",
        ),
        timedelta(hours=12),
    ),
    "gce": (
        "ostiary-google-credential-provider",
        ("container.cloud.google.com", "gcr.io", "*.gcr.io", "*.pkg.dev"),
        timedelta(minutes=1),
    ),
    "azure": (
        "ostiary-azure-credential-provider",
        ("*.azurecr.io", "*.azurecr.cn", "*.azurecr.de", "*.azurecr.us"),
        timedelta(minutes=10),
    ),
}
# These had nothing to do with images.
_WITHOUT_PROVIDER = ("", "external", "openstack", "vsphere", "fake")
_KNOWN = ("cloud-provider", "cloud-config", "azure-container-registry-config")
_LATER = ("image-credential-provider-config", "image-credential-provider-bin-dir")


@dataclass(frozen=True, slots=True)
class KubeletFlags:
    """The kubelet flags that concern its credential providers."""

    cloud_provider: str = ""
    cloud_config: str = ""
    azure_config: str = ""
    gates_off: bool = False


def parse_flags(text: str) -> KubeletFlags:
    """Parse a kubelet command line, or a file with one: ``KUBELET_KUBEADM_ARGS="--cloud-provider=aws ..."``.

    Other flags are ignored. Raises `ConfigurationError`.
    """
    values: dict[str, str] = {}
    for word, following in _words(text):
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        if name in _LATER:
            raise _unusable(
                f"the kubelet has --{name} already: its providers are configured there",
                hint="give that file to ostiary registry migrate --config",
            )
        if name == "feature-gates" and "DisableKubeletCloudCredentialProviders=true" in (value or following):
            values["gate"] = "on"
        if name in _KNOWN:
            values[name] = value if equals else following
    return KubeletFlags(
        values.get("cloud-provider", ""),
        values.get("cloud-config", ""),
        values.get("azure-container-registry-config", ""),
        "gate" in values,
    )


def _words(text: str) -> Iterable[tuple[str, str]]:
    try:
        words: list[str] = []
        for line in text.splitlines():
            for word in shlex.split(line, comments=True):
                # An environment file: one variable that holds the whole command line.
                name, equals, value = word.partition("=")
                is_variable = equals and name.isidentifier() and name.isupper()
                words += shlex.split(value) if is_variable else [word]
    except ValueError:
        raise _unusable("a quote is not closed") from None
    return zip(words, [*words[1:], ""], strict=False)


def in_tree_providers(
    flags: KubeletFlags, azure: AzureIdentity | None = None
) -> tuple[list[ProviderConfig], list[str]]:
    """Return the providers that replace a kubelet's in-tree ones, and notes about them.

    In-tree providers were enabled by default on machines of their cloud, so the cloud has to be known. There are notes
    about clouds without a provider, and about settings that no program reads any more. *azure* are the settings of the
    configuration file that the flags name. Raises `ConfigurationError` if there was no in-tree provider.
    """
    if flags.gates_off:
        raise _unusable(
            "DisableKubeletCloudCredentialProviders=true: this kubelet has no providers inside",
            hint="what it uses instead is in the file of --image-credential-provider-config",
        )
    clouds = [flags.cloud_provider] if flags.cloud_provider not in _WITHOUT_PROVIDER else []
    if flags.azure_config and "azure" not in clouds:
        # The flag alone was enough: the Azure provider needed nothing else.
        clouds.append("azure")
    unknown = [cloud for cloud in clouds if cloud not in _IN_TREE]
    if unknown or not clouds:
        named = f"--cloud-provider={printable(flags.cloud_provider)}" if flags.cloud_provider else "these flags"
        raise _unusable(
            f"a kubelet with {named} had no credential provider for a cloud's registry",
            hint=f"clouds that had one: {', '.join(_IN_TREE)}",
        )
    notes = [f"put {_IN_TREE[cloud][0]} into the directory of --image-credential-provider-bin-dir" for cloud in clouds]
    notes.append(f"remove {_removed(flags)} from the kubelet; with a cloud controller it is --cloud-provider=external")
    if azure is not None:
        notes += azure.notes
    return [_flags_provider(cloud, azure) for cloud in clouds], notes


def _flags_provider(cloud: str, azure: AzureIdentity | None) -> ProviderConfig:
    name, patterns, duration = _IN_TREE[cloud]
    env = azure.env if cloud == "azure" and azure is not None else ()
    return ProviderConfig(name, patterns, default_cache_duration=duration, env=env)


def _removed(flags: KubeletFlags) -> str:
    given = {
        "--cloud-provider": flags.cloud_provider,
        "--cloud-config": flags.cloud_config,
        "--azure-container-registry-config": flags.azure_config,
    }
    return ", ".join(name for name, value in given.items() if value)


def _unusable(cause: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError("the kubelet's flags cannot be migrated", cause=cause, hint=hint, code="config-invalid")
