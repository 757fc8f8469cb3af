"""Service accounts by API: what the policy allows, and Kubernetes' own words for what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.model import UserInfo
from tests.support.gateway import role
from tests.support.http1 import connected, get, turn, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

API = "/apis/ostiary.dev/v1"
SHOP = f"{API}/namespaces/shop/serviceaccounts"
ALL = {"apiGroups": ["ostiary.dev"], "resources": ["serviceaccounts", "serviceaccounts/token"], "verbs": ["*"]}


def config(folder: Path, server: str, *, rules: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    """Alice may do everything with service accounts, or what *rules* say."""
    deployer = role("", {"nonResourceURLs": ["*"], "verbs": ["*"]}, User="ostiary:serviceaccount:shop:deployer")
    manifests = [*role("", *(rules or [ALL]), User="alice"), *deployer]
    (folder / "policy.yaml").write_text(yaml.safe_dump_all(manifests))
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]
    return configured(folder, server, authorization={"chain": chain}, **more)


async def ask(site: Served, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await site.client.ask(site.request(path, method=method, body=data), method)
    return answer.status, json.loads(answer.body)


async def create(site: Served, name: str, **spec: Any) -> tuple[int, dict[str, Any]]:
    return await ask(site, "POST", SHOP, {"metadata": {"name": name}, "spec": spec})


async def use(site: Served, token: str) -> int:
    return (await site.client.ask(get("/x", f"Authorization: Bearer {token}"))).status


async def test_an_account_gets_a_token_that_is_good_until_the_account_is_deleted(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        status, account = await create(site, "deployer", description="rolls out")
        assert status == 201
        assert account["metadata"] | {"creationTimestamp": "", "resourceVersion": ""} == {
            "name": "deployer",
            "namespace": "shop",
            "creationTimestamp": "",
            "resourceVersion": "",
        }
        assert account["status"] == {
            "username": "ostiary:serviceaccount:shop:deployer",
            "state": "active",
            "source": "api",
            "createdBy": "alice",
        }
        status, issued = await ask(site, "POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": 600}})
        assert (status, issued["kind"]) == (201, "TokenRequest")
        token = issued["status"]["token"]
        assert await use(site, token) == 200
        status, deleted = await ask(site, "DELETE", f"{SHOP}/deployer")
        assert (status, deleted["ended"]) == (200, 1)
        assert await use(site, token) == 401
        assert (await ask(site, "GET", f"{SHOP}/deployer"))[0] == 404


async def test_a_disabled_account_has_no_tokens(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        await create(site, "deployer")
        token = (await ask(site, "POST", f"{SHOP}/deployer/token"))[1]["status"]["token"]
        assert await use(site, token) == 200
        status, account = await ask(site, "PATCH", f"{SHOP}/deployer", {"spec": {"disabled": True}})
        assert (status, account["status"]["state"]) == (200, "disabled")
        assert await use(site, token) == 401
        status, refusal = await ask(site, "POST", f"{SHOP}/deployer/token")
        assert (status, refusal["reason"]) == (422, "Invalid")
        await ask(site, "PATCH", f"{SHOP}/deployer", {"spec": {"disabled": False}})
        assert (await ask(site, "POST", f"{SHOP}/deployer/token"))[0] == 201


async def test_accounts_are_listed_in_pages(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        for name in ("a", "b", "c"):
            await create(site, name)
        _, first = await ask(site, "GET", f"{SHOP}?limit=2")
        assert [each["metadata"]["name"] for each in first["items"]] == ["a", "b"]
        _, second = await ask(site, "GET", f"{SHOP}?limit=2&continue={first['metadata']['continue']}")
        assert [each["metadata"]["name"] for each in second["items"]] == ["c"]
        assert "continue" not in second["metadata"]
        _, every = await ask(site, "GET", f"{API}/serviceaccounts")
        assert len(every["items"]) == 3


async def test_the_policy_says_who_may_act_as_which_account(tmp_path: Path) -> None:
    rules = [
        {**ALL, "resources": ["serviceaccounts"]},
        {**ALL, "resources": ["serviceaccounts/token"], "resourceNames": ["deployer"]},
    ]
    async with upstream() as made, served(config(tmp_path, at(made), rules=rules)) as site:
        await create(site, "deployer")
        await create(site, "other")
        assert (await ask(site, "POST", f"{SHOP}/deployer/token"))[0] == 201
        assert (await ask(site, "POST", f"{SHOP}/other/token"))[0] == 403


BAD = [
    ("POST", SHOP, {"metadata": {"name": "A"}}, 400),
    ("POST", SHOP, {"metadata": {}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a", "namespace": "other"}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a", "labels": {}}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a"}, "spec": {"disabled": "yes"}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a"}, "spec": {"disabled": True}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a"}, "spec": {"description": "a\x1b[31m"}}, 400),
    ("POST", SHOP, {"metadata": {"name": "a"}, "kind": "Secret"}, 400),
    ("POST", SHOP, {"metadata": {"name": "deployer"}}, 409),
    ("POST", SHOP, b"[" * 30_000, 400),
    ("POST", SHOP, b'{"metadata": {"name": "\\ud800"}}', 400),
    ("POST", f"{API}/namespaces/Shop/serviceaccounts", {"metadata": {"name": "a"}}, 400),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": 10**9}}, 422),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": 0}}, 400),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": -1}}, 400),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": True}}, 400),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"expirationSeconds": 10**30}}, 400),
    ("POST", f"{SHOP}/deployer/token", {"spec": {"audiences": ["vault"]}}, 400),
    ("POST", f"{SHOP}/nobody/token", {}, 404),
    ("PATCH", f"{SHOP}/deployer", {"spec": {"description": "new"}}, 400),
    ("PATCH", f"{SHOP}/deployer", {}, 400),
    ("PATCH", f"{SHOP}/nobody", {"spec": {"disabled": True}}, 404),
    ("DELETE", f"{SHOP}/nobody", None, 404),
    ("GET", f"{SHOP}?labelSelector=a", None, 400),
    ("GET", f"{SHOP}?watch=true", None, 400),
    ("GET", f"{SHOP}?limit=many", None, 400),
]


async def test_what_cannot_be_done_is_told(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for method, path, body, expected in BAD:
        with subtests.test(method=method, path=path, body=body, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            async with upstream() as made, served(config(tmp_path, at(made))) as site:
                await create(site, "deployer")
                status, answer = await ask(site, method, path, body)
                assert (status, answer["kind"], answer["status"]) == (expected, "Status", "Failure")


async def test_a_declared_account_that_is_taken_out_loses_its_tokens_at_the_reload(tmp_path: Path) -> None:
    declared: dict[str, Any] = {"serviceAccounts": {"declared": [{"namespace": "shop", "name": "deployer"}]}}
    async with upstream() as made, served(config(tmp_path, at(made), **declared)) as site:
        token = (await ask(site, "POST", f"{SHOP}/deployer/token"))[1]["status"]["token"]
        assert await use(site, token) == 200
        # Another change of the file leaves it as it is.
        await site.worker.reload(config(tmp_path, at(made), **declared))
        await turn(20)
        assert await use(site, token) == 200
        await site.worker.reload(config(tmp_path, at(made)))
        tokens = site.worker.app.shared.tokens
        for _ in range(50):
            if await tokens.find(token) is None:
                break
            await turn()
        await turn(20)
        async with connected(site.port) as client:
            assert (await client.ask(get("/x", f"Authorization: Bearer {token}"))).status == 401


async def test_a_token_of_an_account_that_is_gone_is_not_good_even_if_nobody_revoked_it(tmp_path: Path) -> None:
    """The configuration was changed while the gateway was stopped."""
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        issued = await site.worker.app.shared.tokens.issue_token(
            UserInfo("ostiary:serviceaccount:shop:deployer"),
            provider="ostiary:serviceaccount",
            lifetime=site.worker.app.config.tokens.lifetime,
        )
        assert await use(site, issued.token.reveal()) == 401


async def test_the_body_of_a_token_request_is_in_no_audit_event(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        await create(site, "deployer")
        token = (await ask(site, "POST", f"{SHOP}/deployer/token"))[1]["status"]["token"]
        await use(site, token)
    assert token not in (tmp_path / "audit.log").read_text()
    assert '"subresource":"token"' in (tmp_path / "audit.log").read_text()


async def test_a_named_token_of_an_account_is_listed_and_revoked(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made), apiTokens={"enabled": True})) as site:
        await create(site, "deployer")
        path = f"{SHOP}/deployer/token"
        status, issued = await ask(site, "POST", path, {"spec": {"name": "metrics"}})
        assert (status, issued["kind"], issued["status"]["token"][:4]) == (201, "APIToken", "osp_")
        token = issued["status"]["token"]
        assert await use(site, token) == 200
        _, listed = await ask(site, "GET", path)
        assert [item["metadata"]["name"] for item in listed["items"]] == ["metrics"]
        assert token not in json.dumps(listed)
        assert (await ask(site, "DELETE", f"{path}?token=other"))[0] == 404
        assert (await ask(site, "DELETE", path))[0] == 404
        assert (await ask(site, "DELETE", f"{path}?token=metrics"))[0] == 200
        async with connected(site.port) as client:
            assert (await client.ask(get("/x", f"Authorization: Bearer {token}"))).status == 401


async def test_named_tokens_of_accounts_are_off_with_all_api_tokens(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        await create(site, "deployer")
        assert (await ask(site, "POST", f"{SHOP}/deployer/token", {"spec": {"name": "metrics"}}))[0] == 403
