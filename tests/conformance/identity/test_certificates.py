"""Client certificates, a person's own and a proxy's, keep the contract of an identity provider."""

from __future__ import annotations

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.client_certificate import ClientCertificateIdentity
from ostiary_gateway.providers.trusted_header import TrustedHeaderIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.certificates import certificate

ALICE = (("x-remote-user", "alice"), ("x-remote-group", "developers"))


class TestClientCertificateIdentity(IdentityContract):
    """S3, S25, S26, S27, S28, S41."""

    @pytest.fixture
    def provider(self, clock: FakeClock) -> ClientCertificateIdentity:
        return ClientCertificateIdentity(clock=clock)

    @pytest.fixture
    def proof(self, clock: FakeClock) -> LoginRequest:
        return LoginRequest("GET", "/auth", peer_certificate=certificate("alice", now=clock.now()))

    @pytest.fixture
    def wrong_proof(self, clock: FakeClock) -> LoginRequest:
        return LoginRequest("GET", "/auth", peer_certificate=certificate(now=clock.now()))


class TestTrustedHeaderIdentity(IdentityContract):
    """S3, S25, S26, S27, S28, S41, H3."""

    @pytest.fixture
    def provider(self, clock: FakeClock) -> TrustedHeaderIdentity:
        return TrustedHeaderIdentity(names=("front-proxy",), clock=clock)

    @pytest.fixture
    def proof(self, clock: FakeClock) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=ALICE, peer_certificate=certificate("front-proxy", now=clock.now()))

    @pytest.fixture
    def wrong_proof(self, clock: FakeClock) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=ALICE, peer_certificate=certificate("alice", now=clock.now()))
