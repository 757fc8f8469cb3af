"""What an object asks for must be allowed besides the request, and nobody waits for the impossible. S46."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision
from ostiary_gateway.config.gateway_config import GatewayConfig
from tests.support.http1 import chunked, until, upstream
from tests.unit.ostiary_gateway.extauth.test_forward_auth import ask, doors
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    Policy,
    at,
    configured,
    kubernetes,
    serving,
)

PODS = "/api/v1/namespaces/team/pods"
ATTRIBUTES = {"type": "kubernetes", "capabilities": {"preset": "podSecurity"}}


def without_capabilities(attributes: Attributes) -> Decision:
    return DENY if attributes.request.resource == "capabilities" else ALLOW


@pytest.mark.parametrize(("rule", "status"), [(ALLOW, 200), (without_capabilities, 403)])
async def test_a_proxy_that_shows_no_body_may_carry_anything(tmp_path: Path, rule: Any, status: int) -> None:
    """S46: nobody waits for a body that never comes; all capabilities are assumed."""
    upstreams = [{"name": "shop", "attributes": ATTRIBUTES, "hosts": ["shop.example"]}]
    policy = ImmediatePolicy(rule)
    async with doors(tmp_path, policy, upstreams=upstreams) as site:
        answer = await ask(site, PODS, X_Original_Method="POST", X_Original_Length="20")
        assert answer.status == status
        reason = (await site.events())[-1]["annotations"]["authorization.k8s.io/reason"]
        assert status == 200 or "another proxy carries it, and shows no body" in reason
        read = await ask(site, PODS)
        assert read.status == 200
    asked = [attributes.request for attributes in policy.asked]
    assert "privileged" in {request.name for request in asked} or status == 403
    assert [request.resource for request in asked[:2]] == ["pods", "pods"]
    assert (asked[0].capabilities, "privileged" in asked[1].capabilities) == ((), True)


STRONG = json.dumps({"kind": "Pod", "spec": {"hostPID": True, "containers": []}}).encode()
PLAIN = b'{"kind":"Pod","spec":{"containers":[]}}'
JSON = "Content-Type: application/json"


def reading(folder: Path, server: str, policy: Policy | None = None) -> GatewayConfig:
    upstreams = [{"name": "k", "server": server, "attributes": ATTRIBUTES, "identity": "none"}]
    return configured(folder, "", policy or ImmediatePolicy(), upstreams=upstreams)


async def test_what_is_decided_on_is_what_is_forwarded(tmp_path: Path) -> None:
    """S46: the request, the request with its capabilities, and each capability."""
    policy = ImmediatePolicy()
    async with upstream() as made, serving(reading(tmp_path, at(made), policy)) as site:
        assert (await site.ask(PODS, JSON, method="POST", body=STRONG)).status == 200
        assert made.requests[0].body == STRONG
    asked = [(each.request.verb, each.request.resource, each.request.name) for each in policy.asked]
    assert asked == [("create", "pods", ""), ("create", "pods", ""), ("use", "capabilities", "host-pid")]
    assert [each.request.capabilities for each in policy.asked] == [(), ("host-pid",), ()]
    assert {each.request.namespace for each in policy.asked} == {"team"}
    assert {each.request.upstream for each in policy.asked} == {"k"}


async def test_a_policy_that_sees_the_capabilities_can_refuse_by_them(tmp_path: Path) -> None:
    """S46."""
    policy = ImmediatePolicy(lambda attributes: DENY if attributes.request.capabilities else ALLOW)
    async with upstream() as made, serving(reading(tmp_path, at(made), policy)) as site:
        refused = await site.ask(PODS, JSON, method="POST", body=STRONG)
        assert (refused.status, b"the capability host-pid; the policy refuses" in refused.body) == (403, True)
        assert (await site.ask(PODS, JSON, method="POST", body=PLAIN)).status == 200
        assert (len(made.requests), site.seats) == (1, 0)


async def test_a_token_that_is_revoked_while_the_policy_is_asked_forwards_nothing(tmp_path: Path) -> None:
    async with upstream() as made:
        policy = ImmediatePolicy()
        async with serving(reading(tmp_path, at(made), policy)) as site:

            def revoke(attributes: Attributes) -> Decision:
                if attributes.request.resource == "capabilities":
                    for token in site.worker.app.shared.authenticator.in_use.every():
                        token.revoked = True
                return ALLOW

            policy.rule = revoke
            assert (await site.ask(PODS, JSON, method="POST", body=STRONG)).status == 401
            assert (made.requests, site.seats) == ([], 0)


async def test_nobody_who_can_be_asked_is_no_yes(tmp_path: Path) -> None:
    def fail(attributes: Attributes) -> Decision:
        if attributes.request.resource == "capabilities":
            raise ProviderError("it cannot be asked", cause="connection refused")
        return ALLOW

    async with upstream() as made, serving(reading(tmp_path, at(made), ImmediatePolicy(fail))) as site:
        assert (await site.ask(PODS, JSON, method="POST", body=STRONG)).status == 500
        assert (made.requests, site.seats) == ([], 0)


async def test_a_body_is_read_where_it_matters_and_nowhere_else(tmp_path: Path) -> None:
    """What cannot be read goes on untouched where no capability is."""
    policy = ImmediatePolicy(without_capabilities)
    async with upstream() as made, serving(reading(tmp_path, at(made), policy)) as site:
        for path in ("/api/v1/namespaces/team/configmaps", f"{PODS}/a/eviction"):
            assert (await site.ask(path, method="POST", body=b"{")).status == 200
        assert (await site.ask(PODS, method="POST", body=b"{")).status == 403
        assert len(made.requests) == 2


async def test_a_right_that_is_withdrawn_while_the_body_comes_forwards_nothing(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(reading(tmp_path, at(made), policy)) as site:
        whole = site.request(PODS, JSON, method="POST", body=PLAIN)
        site.client.send(whole[:-5])
        await until(lambda: bool(policy.asked))
        policy.rule, policy.revision = DENY, 2
        site.client.send(whole[-5:])
        assert (await site.client.answer("POST")).status == 403
        assert (made.requests, site.seats) == ([], 0)


async def test_a_client_that_hangs_up_in_its_body_leaves_nothing_behind(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(reading(tmp_path, at(made), policy)) as site:
        site.client.send(site.request(PODS, JSON, method="POST", body=PLAIN)[:-5])
        await until(lambda: bool(policy.asked))
        site.client.writer.close()
        await until(lambda: site.seats == 0)
        assert made.requests == []


async def test_a_body_without_a_length_is_refused_beyond_the_bound(tmp_path: Path) -> None:
    """It has gone by: there is no way back to forward it."""
    async with upstream() as made, serving(reading(tmp_path, at(made))) as site:
        head = site.request(PODS, JSON, "Transfer-Encoding: chunked", method="POST")
        answer = await site.client.ask(head + chunked(*[b"x" * 65536] * 17), "POST")
        assert (answer.status, made.requests, site.seats) == (413, [], 0)


async def test_without_the_setting_no_body_is_looked_at(tmp_path: Path) -> None:
    policy = ImmediatePolicy(without_capabilities)
    async with upstream() as made:
        config = configured(tmp_path, "", policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            assert (await site.ask(PODS, JSON, method="POST", body=STRONG)).status == 200
    assert len(policy.asked) == 1
