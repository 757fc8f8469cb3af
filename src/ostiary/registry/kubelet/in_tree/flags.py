"""From the flags of a kubelet that still had credential providers inside to the ``CredentialProviderConfig`` of today.

    --cloud-provider, --azure-container-registry-config, --cloud-config  ->  the providers that took their place

Called by ``ostiary registry migrate --kubelet-flags``. The providers inside the kubelet were on by default where the
machine was one of their cloud, so that the cloud is what has to be known; clouds that had none are told. What their
configuration file says beyond that (`cloud_config`) is told too, for there is nobody left who reads it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.registry.kubelet.in_tree.cloud_config import AzureIdentity
from ostiary.registry.kubelet.model import ProviderConfig

# What each of them matched inside the kubelet, in the form of today.
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
# They had nothing to do with images.
_WITHOUT_PROVIDER = ("", "external", "openstack", "vsphere", "fake")
_KNOWN = ("cloud-provider", "cloud-config", "azure-container-registry-config")
_LATER = ("image-credential-provider-config", "image-credential-provider-bin-dir")


@dataclass(frozen=True, slots=True)
class KubeletFlags:
    """Those flags of a kubelet that have to do with its credential providers."""

    cloud_provider: str = ""
    cloud_config: str = ""
    azure_config: str = ""
    gates_off: bool = False


def parse_flags(text: str) -> KubeletFlags:
    """Read a command line of a kubelet, or a file of it: ``KUBELET_KUBEADM_ARGS="--cloud-provider=aws ..."``.

    Flags that have nothing to do with credential providers are passed over. Raises `ConfigurationError`.
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
                # A file of the environment: one variable that holds the whole command line.
                name, equals, value = word.partition("=")
                is_variable = equals and name.isidentifier() and name.isupper()
                words += shlex.split(value) if is_variable else [word]
    except ValueError:
        raise _unusable("a quote is not closed") from None
    return zip(words, [*words[1:], ""], strict=False)


def in_tree_providers(
    flags: KubeletFlags, azure: AzureIdentity | None = None
) -> tuple[list[ProviderConfig], list[str]]:
    """The providers of today, and what to tell about them. Raises `ConfigurationError` if there was none inside.

    *azure* is what the configuration file of the flags says.
    """
    if flags.gates_off:
        raise _unusable(
            "DisableKubeletCloudCredentialProviders=true: this kubelet has no providers inside",
            hint="what it uses instead is in the file of --image-credential-provider-config",
        )
    clouds = [flags.cloud_provider] if flags.cloud_provider not in _WITHOUT_PROVIDER else []
    if flags.azure_config and "azure" not in clouds:
        # The flag alone was enough: the provider for Azure needed nothing else.
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
    return [_provider(cloud, azure) for cloud in clouds], notes


def _provider(cloud: str, azure: AzureIdentity | None) -> ProviderConfig:
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
