"""A provider that serves resources of its own: behind the same steps as any request, and in discovery."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.config.api_groups import check_provider_groups
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.resources import MountedResource, ResourceAnswer, ResourceGroup, ResourceRequest
from tests.support.http1 import Upstreamed, get, upstream
from tests.unit.ostiary_gateway.proxy.gateways import ALLOW, Gateway, Policy, at, configured, kubernetes, serving

GROUP = "policies.example.com"
RULES = f"/apis/{GROUP}/v1/rules"
APIS = {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps"}]}


class PolicyWithRules(Policy):
    """Decides, and shows its rules as resources."""

    resource_group = ResourceGroup(
        GROUP, "v1", (MountedResource("rules", "Rule", False, ("get", "list", "create"), "rule", ("rl",)),)
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests: list[ResourceRequest] = []

    async def serve_resource(self, request: ResourceRequest) -> ResourceAnswer:
        self.requests.append(request)
        match request.info.name:
            case "wrong":
                raise ValueError("there is no such form")
            case "away":
                raise ProviderError("the database is away", cause="connection refused")
        return ResourceAnswer(201 if request.body else 200, {"kind": "Rule", "by": request.user.username})


async def cluster(connection: Upstreamed) -> None:
    while True:
        request = await connection.request()
        connection.upstream.requests.append(request)
        body = json.dumps(APIS).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.send(head % len(body) + body)


@asynccontextmanager
async def gateway(folder: Path, policy: PolicyWithRules) -> AsyncIterator[Gateway]:
    async with upstream(cluster) as made:
        config = configured(folder, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            yield site


async def test_a_request_gets_there_with_its_user_after_the_decision(tmp_path: Path) -> None:
    """S7: a provider may serve REST resources of its own."""
    policy = PolicyWithRules()
    async with gateway(tmp_path, policy) as site:
        answer = await site.ask(f"{RULES}?limit=5")
        assert (answer.status, json.loads(answer.body)) == (200, {"kind": "Rule", "by": "alice"})
        (request,) = policy.requests
        assert (request.info.verb, request.info.resource, request.query) == ("list", "rules", "limit=5")
        assert policy.asked[-1].request == request.info
        assert request.info.upstream == ""
        events = await site.events()
        assert events[-1]["objectRef"] == {"resource": "rules", "apiGroup": GROUP, "apiVersion": "v1"}


async def test_what_the_policy_refuses_never_gets_there(tmp_path: Path) -> None:
    """S7: its resources are authorized like any other."""

    def rule(attributes: Attributes) -> Decision:
        return ALLOW if attributes.request.verb == "get" else Decision(Verdict.DENY, "no")

    policy = PolicyWithRules(rule)
    async with gateway(tmp_path, policy) as site:
        assert (await site.ask(RULES)).status == 403
        assert (await site.client.ask(get(RULES))).status == 401
        assert policy.requests == []


async def test_a_body_arrives_whole(tmp_path: Path) -> None:
    policy = PolicyWithRules()
    async with gateway(tmp_path, policy) as site:
        head = f"POST {RULES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.token}\r\nContent-Length: 7\r\n\r\n"
        answer = await site.client.ask(head.encode() + b'{"a":1}', "POST")
        assert answer.status == 201
        assert policy.requests[0].body == b'{"a":1}'


async def test_what_it_does_not_serve_is_refused(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        (f"{RULES}/wrong", "GET", 400),
        (f"{RULES}/away", "GET", 503),
        (f"{RULES}/one/status", "GET", 405),
        (f"{RULES}/one", "DELETE", 405),
        (f"{RULES}?watch=1", "GET", 405),
        (f"/apis/{GROUP}/v1/others", "GET", 404),
        (f"/apis/{GROUP}/v2/rules", "GET", 404),
        (f"/apis/{GROUP}/v2", "GET", 404),
        (f"/apis/{GROUP}", "DELETE", 405),
    ]
    for path, method, status in cases:
        with subtests.test(path=path, method=method, status=status):
            tmp_path = tmp_path_factory.mktemp("case")
            async with gateway(tmp_path, PolicyWithRules()) as site:
                assert (await site.ask(path, method=method)).status == status


async def test_it_stands_in_discovery(tmp_path: Path) -> None:
    async with gateway(tmp_path, PolicyWithRules()) as site:
        groups = json.loads((await site.ask("/apis")).body)["groups"]
        assert [group["name"] for group in groups] == ["apps", GROUP]
        assert json.loads((await site.ask(f"/apis/{GROUP}")).body)["preferredVersion"]["version"] == "v1"
        (resource,) = json.loads((await site.ask(f"/apis/{GROUP}/v1")).body)["resources"]
        assert (resource["name"], resource["shortNames"]) == ("rules", ["rl"])


@pytest.mark.parametrize("group", ["apps", "metrics.k8s.io", "Policies.example.com"])
def test_a_group_of_others_stops_the_start(tmp_path: Path, group: str) -> None:
    policy = PolicyWithRules()
    policy.resource_group = replace(policy.resource_group, group=group)
    config = configured(tmp_path, "http://127.0.0.1:1", policy)
    with pytest.raises(ConfigurationError, match=r"."):
        _check(config)


def _check(config: GatewayConfig) -> None:
    reading = ConfigReader(parse(b"{}", file=None))
    check_provider_groups(config, reading.root)
    reading.finish("it cannot be started")
