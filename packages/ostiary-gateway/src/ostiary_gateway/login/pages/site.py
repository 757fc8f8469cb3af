"""Location and provider branding that all pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ostiary.core.yaml.document import Json
from ostiary.wire.kubeconfig import OfferedCluster, clusters_kubeconfig, context_name, gateway_kubeconfig
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import SignIn, TellsSignIn
from ostiary_gateway.login.clusters import ClusterOffer

# Icon of a provider for which the operator configured none.
_ICONS = {
    SignIn.REDIRECT: "building",
    SignIn.PASSWORD: "person",
    SignIn.NEGOTIATE: "key",
    SignIn.AMBIENT: "certificate",
    SignIn.PROGRAM: "code",
}


@dataclass(frozen=True, slots=True)
class ProviderLook:
    """Appearance of an identity provider: `icon` is a bundled icon, `image` a custom one."""

    label: str
    icon: str = "key"
    image: str = field(default="", repr=False)


def provider_look(provider: Identity) -> ProviderLook:
    return ProviderLook(provider.label, provider.icon or _ICONS[sign_in_kind(provider)], provider.image)


def sign_in_kind(provider: Identity) -> SignIn:
    """Return how users sign in with *provider*."""
    telling = ability(provider.instance, TellsSignIn)
    return SignIn.REDIRECT if telling is None else telling.sign_in


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages share: the external URL, the authorities, and the branding of the providers."""

    external_url: str
    authorities_pem: str | None = None
    providers: Mapping[str, ProviderLook] = field(default_factory=dict)

    def label(self, provider: str) -> str:
        """Return the display name of an identity provider."""
        return self.look_of(provider).label

    def look_of(self, provider: str) -> ProviderLook:
        return self.providers.get(provider) or ProviderLook(provider)

    @property
    def host(self) -> str:
        return urlsplit(self.external_url).netloc

    @property
    def context(self) -> str:
        return context_name(self.external_url)

    @property
    def kubeconfig(self) -> dict[str, Json]:
        """The kubeconfig that ``ostiary kubeconfig`` writes. It contains no secret."""
        return gateway_kubeconfig(self.external_url, name=self.context, authorities_pem=self.authorities_pem)

    def kubeconfig_of(self, clusters: Sequence[ClusterOffer]) -> dict[str, Json]:
        """Return the kubeconfig that ``ostiary kubeconfig --all`` writes, with a context for each of *clusters*."""
        return clusters_kubeconfig(
            self.external_url,
            [OfferedCluster(cluster.name, cluster.server) for cluster in clusters],
            name=self.context,
            authorities_pem=self.authorities_pem,
        )
