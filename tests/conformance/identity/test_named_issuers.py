"""The types for issuers that are known by name keep the contract of an identity provider, with an issuer over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trustme

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.providers.oidc.presets import (
    Auth0Identity,
    GitLabIdentity,
    GoogleIdentity,
    KeycloakIdentity,
    MicrosoftIdentity,
    OktaIdentity,
)
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.issuer import Issuer
from tests.support.relying_party import RelyingParty

TENANT = "11111111-0000-4000-8000-000000000001"


class NamedIssuerContract(IdentityContract):
    provider_class: ClassVar[Any]
    path: ClassVar[str] = ""
    settings: ClassVar[dict[str, Any]]

    @pytest.fixture
    async def provider(self, ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[OidcIdentity]:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with Issuer(ca, clock).running() as issuer:
            issuer.path = self.path
            party = RelyingParty(issuer, tmp_path, clock)
            places = {"URL": issuer.url, "HOST": issuer.host}
            settings = {name: places.get(value, value) for name, value in self.settings.items()}
            yield party.make(self._at(issuer), **settings)
            await party.close()

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=(("authorization", "Bearer canary"), ("cookie", "id_token=canary")))

    def _at(self, issuer: Issuer) -> Any:
        return self.provider_class


class TestGoogleIdentity(NamedIssuerContract):
    """S1, S3."""

    provider_class = GoogleIdentity
    settings: ClassVar[dict[str, Any]] = {"hostedDomains": ("example.com",)}

    def _at(self, issuer: Issuer) -> Any:
        return type("Google", (GoogleIdentity,), {"ISSUER": issuer.url})


class TestMicrosoftIdentity(NamedIssuerContract):
    """S1, S3."""

    provider_class = MicrosoftIdentity
    path = f"/{TENANT}/v2.0"
    settings: ClassVar[dict[str, Any]] = {"authority": "URL", "tenant": TENANT}


class TestGitLabIdentity(NamedIssuerContract):
    """S1, S3."""

    provider_class = GitLabIdentity
    settings: ClassVar[dict[str, Any]] = {"url": "URL"}


class TestOktaIdentity(NamedIssuerContract):
    """S1, S3."""

    provider_class = OktaIdentity
    settings: ClassVar[dict[str, Any]] = {"domain": "HOST"}


class TestAuth0Identity(NamedIssuerContract):
    """S1, S3."""

    provider_class = Auth0Identity
    path = "/"
    settings: ClassVar[dict[str, Any]] = {"domain": "HOST"}


class TestKeycloakIdentity(NamedIssuerContract):
    """S1, S3."""

    provider_class = KeycloakIdentity
    path = "/realms/acme"
    settings: ClassVar[dict[str, Any]] = {"url": "URL", "realm": "acme"}
