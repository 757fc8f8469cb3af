"""The relying party keeps the contract of an identity provider, with an issuer over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.issuer import Issuer


class TestOidcIdentity(IdentityContract):
    """S3, S25, S26, S27, S29."""

    @pytest.fixture
    async def provider(self, ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[OidcIdentity]:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with Issuer(ca, clock).running() as issuer:
            outbound = Outbound("the issuer", ca=tmp_path / "ca.pem")
            provider = OidcIdentity(issuer=issuer.url, client_id=issuer.client_id, outbound=outbound, clock=clock)
            yield provider
            await provider.close()

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=(("authorization", "Bearer canary"), ("cookie", "id_token=canary")))
