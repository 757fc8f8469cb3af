"""The proof of a redirected request is believed for one request, for a short time. S69."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.scopes import NOTHING, decode
from ostiary.errors import ConfigurationError
from ostiary.model import UserInfo
from ostiary_gateway.middleware.authenticator import SKEW, ActionVerifier
from ostiary_gateway.middleware.config import loads
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.wire.action_token import TYPE, url_digest
from tests.support.scripted_gateway import ScriptedGateway
from tests.unit.ostiary_gateway.middleware.test_jwt_verifier import Issuer

ORIGIN = "https://files.example"
ACTION = {
    "aud": [ORIGIN],
    "method": "GET",
    "url": url_digest(f"{ORIGIN}/a?x=1".encode()),
    "cid": "ef" * 32,
    "extra": {"team": ["shop"]},
}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with ScriptedGateway().running() as served:
        yield Issuer(served)


@pytest.fixture
async def verifier(issuer: Issuer, tmp_path: Path) -> AsyncIterator[ActionVerifier]:
    settings = issuer.gateway.settings(tmp_path, actions={"origin": ORIGIN})
    config = loads(json.dumps(settings), directory=tmp_path)
    assert config.actions is not None
    verifier = ActionVerifier(config.actions, config.gateway, issuer.clock)
    yield verifier
    await verifier.close()


def request_with(
    issuer: Issuer, *, kind: str = TYPE, changes: dict[str, Any] | None = None, **more: Any
) -> BackendRequest:
    proof = issuer.keys[-1].sign(issuer.claims(**ACTION, **(changes or {})), kind=kind).encode()
    return BackendRequest(**{"method": "GET", "target": b"/a?x=1", "host": b"files.example", "action": proof, **more})


async def test_a_proof_says_who_was_allowed_and_by_what(verifier: ActionVerifier, issuer: Issuer) -> None:
    """S69. It is for nothing else, and a revocation of the token that it came by is one of the proof."""
    action = await verifier.verify(request_with(issuer))
    assert action is not None
    assert action.id == "ab" * 32
    assert action.description.user == UserInfo("ann", "u1", ("dev",), (("team", ("shop",)),))
    assert (action.description.credential_id, action.description.session) == ("ef" * 32, "cd" * 32)
    assert decode(action.description.delegation) == NOTHING


@pytest.mark.parametrize("host", [b"files.example", b"FILES.example", b"files.example:443"])
async def test_a_host_is_the_same_in_any_spelling(verifier: ActionVerifier, issuer: Issuer, host: bytes) -> None:
    assert await verifier.verify(request_with(issuer, host=host)) is not None


@pytest.mark.parametrize(
    "more",
    [
        {"host": b"other.example"},
        {"host": b""},
        {"host": b"files.example:8443"},
        {"method": "HEAD"},
        {"method": "get"},
        {"target": b"/a?x=2"},
        {"target": b"/a"},
        {"upgrade": "websocket"},
        {"has_body": True},
        {"action": b""},
        {"action": b"\xff.a.b"},
        {"kind": "JWT"},
    ],
)
async def test_it_is_for_no_other_request(verifier: ActionVerifier, issuer: Issuer, more: dict[str, Any]) -> None:
    """S69."""
    assert await verifier.verify(request_with(issuer, **more)) is None


async def test_a_proof_must_have_its_type(verifier: ActionVerifier, issuer: Issuer) -> None:
    """A JWT may leave the type out; this one may not."""
    key = issuer.keys[-1]
    unsigned = key.sign(issuer.claims(**ACTION), kind="")
    assert await verifier.verify(request_with(issuer, action=unsigned.encode())) is None


async def test_it_ends_and_clocks_may_differ_a_little(verifier: ActionVerifier, issuer: Issuer) -> None:
    """S69."""
    request = request_with(issuer)
    issuer.clock.advance(seconds=300 + SKEW.total_seconds() - 1)
    assert await verifier.verify(request) is not None
    issuer.clock.advance(seconds=1)
    assert await verifier.verify(request) is None
    assert timedelta(minutes=1) > SKEW


def test_views_that_decide_for_themselves_accept_none(issuer: Issuer, tmp_path: Path) -> None:
    settings = issuer.gateway.settings(tmp_path, actions={"origin": ORIGIN}, authorizeEveryRequest=False)
    with pytest.raises(ConfigurationError, match="views that decide for themselves"):
        loads(json.dumps(settings), directory=tmp_path)


def test_the_origin_must_be_one(issuer: Issuer, tmp_path: Path) -> None:
    for origin in ("http://files.example", "https://files.example/x", "files.example", ""):
        with pytest.raises(ConfigurationError, match=r"actions\.origin"):
            loads(json.dumps(issuer.gateway.settings(tmp_path, actions={"origin": origin})), directory=tmp_path)
