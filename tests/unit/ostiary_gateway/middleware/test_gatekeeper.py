"""The order of the steps, with a server in the gateway's place."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.middleware import AccessRefused, Bearer, Gatekeeper
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.wire.revoked_credentials import RevokedSubject
from tests.support.gateway import role
from tests.support.scripted_gateway import ScriptedGateway, garbage

GET_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway().running() as served:
        yield served


@pytest.fixture
async def gatekeeper(gateway: ScriptedGateway, tmp_path: Path) -> AsyncIterator[Gatekeeper]:
    documents = [
        *role("shop", GET_PODS, User="ann"),
        *role("", {"nonResourceURLs": ["/x"], "verbs": ["get"]}, User="ann"),
    ]
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump_all(documents))
    policy = {"chain": [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]}
    audit = {"log": {"path": "audit.log"}}
    settings = gateway.settings(tmp_path, authorization=policy, audit=audit)
    async with Gatekeeper.from_mapping(settings, directory=tmp_path) as gatekeeper:
        yield gatekeeper


def request(token: str | None, target: bytes = b"/x", method: str = "GET", **more: Any) -> BackendRequest:
    return BackendRequest(method, target, None if token is None else token.encode(), **more)


async def status(gatekeeper: Gatekeeper, *asked: Any, **more: Any) -> int:
    try:
        await gatekeeper.check(request(*asked, **more))
    except AccessRefused as refusal:
        return refusal.status
    return 200


async def test_the_first_step_that_refuses_answers(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    """S56: who it is, then what is asked, then whether they may."""
    ann, bob = gateway.add("ann"), gateway.add("bob")
    assert await status(gatekeeper, None, b"/a//b") == 401
    assert await status(gatekeeper, "ost_x", b"/a//b") == 401
    assert await status(gatekeeper, bob, b"/a//b") == 400
    assert await status(gatekeeper, bob) == 403
    assert await status(gatekeeper, ann) == 200
    assert await status(gatekeeper, ann, mistake="two headers") == 400


async def test_an_equal_request_is_let_through_at_once(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    token = gateway.add("ann")
    assert gatekeeper.recall(request(token)) is None
    await gatekeeper.check(request(token))
    access = gatekeeper.recall(request(token))
    assert access is not None
    assert access.user == UserInfo("ann")
    assert gatekeeper.recall(request(token, b"/y")) is None
    assert gatekeeper.recall(request(token, method="DELETE")) is None


async def test_a_changed_policy_is_asked_at_once(
    gatekeeper: Gatekeeper, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    """S57: what was remembered under the old policy is not used."""
    token = gateway.add("ann")
    await gatekeeper.check(request(token))
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump_all(role("shop", GET_PODS, User="bob")))
    while await status(gatekeeper, token) == 200:
        # The policy looks at its files in the background.
        await asyncio.sleep(0)
    assert await status(gatekeeper, token) == 403


async def test_a_narrowed_token_is_refused_beyond_its_scope(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    token = gateway.add("ann", delegation=narrow(None, parse_scope("get /y")).encode())
    with pytest.raises(AccessRefused) as caught:
        await gatekeeper.check(request(token))
    assert b"beyond this token's scope: get /y" in caught.value.body


async def test_a_view_may_ask_for_more(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    access = await gatekeeper.check(request(gateway.add("ann")))
    await access.require("get", resource="pods", namespace="shop", name="web")
    with pytest.raises(AccessRefused) as caught:
        await access.require("delete", resource="pods", namespace="shop", name="web")
    assert dict(caught.value.headers)["Audit-Id"] == access.request_id
    with pytest.raises(ValueError, match="either"):
        await access.require("get")


async def test_a_token_that_is_revoked_meanwhile_requires_nothing(
    gatekeeper: Gatekeeper, gateway: ScriptedGateway
) -> None:
    access = await gatekeeper.check(request(gateway.add("ann")))
    gateway.revoke(subjects=(RevokedSubject("ann", None, 9),))
    await gatekeeper._authenticator.follower._poll()
    with pytest.raises(AccessRefused) as caught:
        await access.require("get", resource="pods", namespace="shop", name="web")
    assert caught.value.status == 401


async def test_without_a_middleware(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    bearer = await gatekeeper.authenticate(f"Bearer {gateway.add('ann')}")
    assert bearer == Bearer(UserInfo("ann"))
    await gatekeeper.require(bearer, "get", path="/x")
    with pytest.raises(AccessRefused):
        await gatekeeper.require(bearer, "delete", path="/x")
    for header in (None, "", "Basic x", "Bearer \u20ac"):
        with pytest.raises(AccessRefused) as caught:
            await gatekeeper.authenticate(header)
        assert caught.value.status == 401


async def test_could_not_ask_is_503_and_the_operator_reads_why(
    gatekeeper: Gatekeeper, gateway: ScriptedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.instead = garbage
    token = gateway.add("ann")
    with caplog.at_level(logging.INFO, "ostiary.backend"), pytest.raises(AccessRefused) as caught:
        await gatekeeper.check(request(token))
    assert caught.value.status == 503
    assert "its answer cannot be used" in caplog.text
    for secret in (token, "token-of-the-backend"):
        assert secret not in caplog.text + str(caught.value) + repr(caught.value.__dict__)


async def test_a_provider_that_cannot_be_asked_is_500(gateway: ScriptedGateway, tmp_path: Path) -> None:
    """S53. The policy is another server, and that is gone."""
    chain = [{"name": "far", "type": "subject_access_review", "server": "https://127.0.0.1:1", "timeout": "100ms"}]
    settings = gateway.settings(tmp_path, authorization={"chain": chain})
    async with Gatekeeper.from_mapping(settings, directory=tmp_path) as gatekeeper:
        assert await status(gatekeeper, gateway.add("ann")) == 500


async def test_every_request_leaves_its_event(gatekeeper: Gatekeeper, gateway: ScriptedGateway, tmp_path: Path) -> None:
    """S70."""
    access = await gatekeeper.check(request(gateway.add("ann"), remote="192.0.2.7", user_agent=b"curl"))
    gatekeeper.finish(access, 204)
    failed = gatekeeper.recall(access.request)
    assert failed is not None
    gatekeeper.fail(failed)
    await status(gatekeeper, None)
    await gatekeeper.close()
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    ended = [(each["stage"], each["responseStatus"]["code"]) for each in events if "responseStatus" in each]
    assert ended == [("ResponseComplete", 204), ("Panic", 500), ("ResponseComplete", 401)]
    assert events[0]["sourceIPs"] == ["192.0.2.7"]
    assert access.token.description.credential_id not in (tmp_path / "audit.log").read_text()


async def test_an_application_may_bring_its_own_mapper(gateway: ScriptedGateway, tmp_path: Path) -> None:
    """S49."""

    class Own:
        def request_info(self, line: RequestLine) -> RequestInfo:
            return RequestInfo("visit", line.method, line.path)

        def long_running(self, info: RequestInfo) -> bool:
            return False

    async with Gatekeeper.from_mapping(gateway.settings(tmp_path), directory=tmp_path, mapper=Own()) as gatekeeper:
        access = await gatekeeper.check(request(gateway.add("ann")))
        assert access.info.verb == "visit"
        assert "visit" in repr(access)


async def test_a_token_that_is_too_long_is_not_even_hashed(gatekeeper: Gatekeeper, gateway: ScriptedGateway) -> None:
    assert await status(gatekeeper, "ost_" + "a" * 100_000) == 401
    assert not any("introspection" in request.path for request in gateway.requests)
