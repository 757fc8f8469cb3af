"""The single user keeps the contract of an identity provider."""

from __future__ import annotations

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.single_user import SingleUserIdentity
from ostiary_gateway.testing.identity import IdentityContract


class TestSingleUserIdentity(IdentityContract):
    """S3, S15, S26, S28."""

    @pytest.fixture
    def provider(self) -> SingleUserIdentity:
        return SingleUserIdentity(username="alice")

    @pytest.fixture
    def proof(self) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=(("host", "127.0.0.1:8443"),), remote_address="127.0.0.1")

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return LoginRequest("GET", "/auth", headers=(("host", "127.0.0.1:8443"),), remote_address="192.0.2.1")
