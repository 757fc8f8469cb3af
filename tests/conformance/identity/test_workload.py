"""A workload provider keeps the contract of an identity provider, whatever the platform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.issuer import ABSENT, ec_key, public
from tests.support.workloads import GITHUB, GITLAB, JWT_SVID, SERVICE_ACCOUNT, platform_token, workload

KEY = ec_key()
RULES = "rules: [{match: {sub: '**'}, username: 'ci:{sub}'}]"
PLATFORMS: dict[str, tuple[str, Any, Any]] = {
    "github": (RULES, GITHUB, "https://token.actions.githubusercontent.com"),
    "gitlab": (RULES, GITLAB, "https://gitlab.com"),
    "oidc": (f"issuer: https://issuer.example\n{RULES}", {"sub": "robot"}, "https://issuer.example"),
    "kubernetes": ("", SERVICE_ACCOUNT, "https://kubernetes.default.svc.cluster.local"),
    "spiffe": ("trustDomain: example.org", JWT_SVID, ABSENT),
}


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestWorkloadIdentity(IdentityContract):
    """S3, S25, S26, S27, S28, S72."""

    @pytest.fixture
    def provider(self, platform: str, clock: FakeClock, tmp_path: Path) -> WorkloadIdentity:
        use = {"use": "jwt-svid"} if platform == "spiffe" else {}
        (tmp_path / "keys").write_text(json.dumps({"keys": [public(KEY, **use)]}))
        return workload(f"platform: {platform}\nkeysFile: keys\n{PLATFORMS[platform][0]}", clock, tmp_path)

    @pytest.fixture
    def proof(self, platform: str, clock: FakeClock) -> LoginRequest:
        return bearer(platform, clock)

    @pytest.fixture
    def wrong_proof(self, platform: str, clock: FakeClock) -> LoginRequest:
        return bearer(platform, clock, audience="https://another.example.com")


def bearer(platform: str, clock: FakeClock, **more: Any) -> LoginRequest:
    _, claims, issuer = PLATFORMS[platform]
    text = platform_token(clock, KEY, claims, issuer=issuer, **more)
    return LoginRequest("GET", "/auth/ci", headers=(("authorization", f"Bearer {text}"),))
