"""JWTs are believed if our issuer has signed them for us, and say what a revocation names."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.middleware.config import loads
from ostiary_gateway.middleware.jwt_verifier import JwtVerifier
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import Request, Response
from tests.support.scripted_gateway import ScriptedGateway

AUDIENCE = "https://shop.example"


class Issuer:
    """The documents of an issuer, at the address of the gateway."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway, self.clock, self.keys = gateway, FakeClock(), [SigningKey.generate()]
        self.fetches = 0
        gateway.instead = self._document

    def _document(self, request: Request) -> Response:
        if request.path == "/.well-known/openid-configuration":
            return Response(body={"issuer": self.gateway.url, "jwks_uri": f"{self.gateway.url}/keys"})
        self.fetches += 1
        return Response(body={"keys": [dict(key.jwk) for key in self.keys]})

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(self.clock.now().timestamp())
        said = {
            "iss": self.gateway.url,
            "sub": "ann",
            "aud": [AUDIENCE],
            "exp": now + 300,
            "nbf": now,
            "iat": now,
            "jti": "ab" * 32,
            "sid": "cd" * 32,
            "auth_time": now - 60,
            "sequence": 7,
            "username": "ann",
            "uid": "u1",
            "groups": ["dev"],
            **changes,
        }
        return {key: value for key, value in said.items() if value is not None}

    def sign(self, **changes: Any) -> str:
        return self.keys[-1].sign(self.claims(**changes))


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with ScriptedGateway().running() as served:
        yield Issuer(served)


@pytest.fixture
async def verifier(issuer: Issuer, tmp_path: Path) -> AsyncIterator[JwtVerifier]:
    settings = issuer.gateway.settings(tmp_path, jwt={"audiences": [AUDIENCE]})
    config = loads(json.dumps(settings), directory=tmp_path)
    assert config.jwt is not None
    verifier = JwtVerifier(config.jwt, config.jwt.audiences, config.gateway, issuer.clock)
    yield verifier
    await verifier.close()


async def test_a_jwt_of_ours_is_described(verifier: JwtVerifier, issuer: Issuer) -> None:
    description = await verifier.describe(issuer.sign())
    assert description is not None
    assert description.user == UserInfo("ann", "u1", ("dev",))
    assert (description.credential_id, description.session) == ("ab" * 32, "cd" * 32)
    assert (description.sequence, description.began_at) == (7, issuer.claims()["auth_time"])
    assert description.issued_at == issuer.claims()["iat"]


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": ["https://other.example"]},
        {"aud": [AUDIENCE, "https://other.example"]},
        {"exp": None},
        {"exp": 1},
        {"username": None},
        {"username": ""},
        {"groups": "dev"},
        {"jti": None},
        {"sid": 5},
        {"sequence": None},
        {"auth_time": None},
        {"iat": None},
    ],
)
async def test_any_other_is_nobodys(verifier: JwtVerifier, issuer: Issuer, changes: dict[str, Any]) -> None:
    """L7; without what a revocation names it could never be withdrawn."""
    assert await verifier.describe(issuer.sign(**changes)) is None


@pytest.mark.parametrize("token", ["", "a.b.c", "..", "x" * 70_000])
async def test_what_is_no_jwt_is_nobodys(verifier: JwtVerifier, token: str) -> None:
    assert await verifier.describe(token) is None


async def test_a_forgery_is_nobodys(verifier: JwtVerifier, issuer: Issuer) -> None:
    assert await verifier.describe(SigningKey.generate().sign(issuer.claims())) is None


async def test_a_new_key_is_found_when_the_first_jwt_needs_it(verifier: JwtVerifier, issuer: Issuer) -> None:
    assert await verifier.describe(issuer.sign()) is not None
    issuer.keys.append(SigningKey.generate())
    assert await verifier.describe(issuer.sign()) is not None
    # Tokens that no key fits may come from anybody: they do not become as many questions.
    for _ in range(5):
        await verifier.describe(SigningKey.generate().sign(issuer.claims()))
    assert issuer.fetches == 2


async def test_keys_that_cannot_be_had_are_could_not_ask(verifier: JwtVerifier, issuer: Issuer) -> None:
    """T5."""
    token = issuer.sign()
    issuer.gateway.instead = lambda request: Response(500, {})
    with pytest.raises(ProviderError):
        await verifier.describe(token)
    issuer.gateway.instead = issuer._document
    assert await verifier.describe(token) is not None


async def test_a_withdrawn_key_is_believed_for_minutes_and_not_longer(verifier: JwtVerifier, issuer: Issuer) -> None:
    token = issuer.sign(exp=issuer.claims()["exp"] + 3600)
    assert await verifier.describe(token) is not None
    issuer.keys[:] = [SigningKey.generate()]
    issuer.clock.advance(timedelta(minutes=6).total_seconds())
    assert await verifier.describe(token) is None
