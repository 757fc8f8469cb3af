"""What all pages know: where they are."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from ostiary.core.config.document import Json
from ostiary.wire.kubeconfig import context_name, gateway_kubeconfig


@dataclass(frozen=True, slots=True)
class Site:
    external_url: str
    authorities_pem: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, provider: str) -> str:
        """What people call an identity provider."""
        return dict(self.labels).get(provider, provider)

    @property
    def host(self) -> str:
        return urlsplit(self.external_url).netloc

    @property
    def context(self) -> str:
        return context_name(self.external_url)

    @property
    def kubeconfig(self) -> dict[str, Json]:
        """For kubectl: the same as ``ostiary kubeconfig`` makes. There is no secret in it."""
        return gateway_kubeconfig(self.external_url, name=self.context, authorities_pem=self.authorities_pem)
