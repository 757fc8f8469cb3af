"""The service provider keeps the contract of an identity provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.saml.identity import SamlIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.saml.service import Service


class TestSamlIdentity(IdentityContract):
    """S1, S3, S10, S25."""

    @pytest.fixture
    async def provider(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[SamlIdentity]:
        service = Service(tmp_path, clock)
        yield service.provider
        await service.provider.close()

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        form = (("SAMLResponse", "canary"), ("RelayState", "canary"))
        return LoginRequest("POST", "/auth", form=form, headers=(("cookie", "session=canary"),))
