"""A cookie of the single sign-on keeps the contract of an identity provider."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.common.jwt_issuer import FileKeys
from ostiary_gateway.providers.sso_cookie import SsoCookieIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.issuer import ec_key, public, token

KEY = ec_key()


class TestSsoCookieIdentity(IdentityContract):
    """S3, S25, S26, S27, S28."""

    @pytest.fixture
    def provider(self, clock: FakeClock, tmp_path: Path) -> SsoCookieIdentity:
        (tmp_path / "keys").write_text(json.dumps({"keys": [public(KEY)]}))
        keys = FileKeys(tmp_path / "keys", clock=clock)
        return SsoCookieIdentity(
            cookie="sso", issuer="https://sso.example.com", audiences=("gateway",), keys=keys, clock=clock
        )

    @pytest.fixture
    def proof(self, clock: FakeClock) -> LoginRequest:
        return cookie(clock, "gateway")

    @pytest.fixture
    def wrong_proof(self, clock: FakeClock) -> LoginRequest:
        return cookie(clock, "another-application")


def cookie(clock: FakeClock, audience: str) -> LoginRequest:
    expires = clock.now().timestamp() + 60
    claims = {"iss": "https://sso.example.com", "sub": "alice", "aud": audience, "exp": expires}
    return LoginRequest("GET", "/auth", headers=(("cookie", f"sso={token(claims, KEY)}"),))
