"""API tokens by API: everybody's own, never shown twice, and not with the token of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.model import UserInfo
from ostiary_gateway.config.accounts import ApiTokenSettings
from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.gateway import role
from tests.support.http1 import connected, get, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

PATH = "/apis/ostiary.dev/v1/apitokens"
OWN = {"apiGroups": ["ostiary.dev"], "resources": ["apitokens"], "verbs": ["create", "list", "delete"]}
ANY_PATH = {"nonResourceURLs": ["*"], "verbs": ["*"]}
ACT_AS_BOB = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}


def config(folder: Path, server: str, *, enabled: bool = True) -> Any:
    manifests = [*role("", OWN, ANY_PATH, ACT_AS_BOB, User="alice"), *role("", OWN, ANY_PATH, User="bob")]
    (folder / "policy.yaml").write_text(yaml.safe_dump_all(manifests))
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]
    return configured(folder, server, authorization={"chain": chain}, apiTokens={"enabled": enabled})


async def ask(
    site: Served, method: str, path: str, body: Any = None, *, token: str = "", lines: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any]]:
    data = b"" if body is None else json.dumps(body).encode()
    request = get(path, f"Authorization: Bearer {token or site.token}", *lines, method=method, body=data)
    async with connected(site.port) as client:
        answer = await client.ask(request, method)
    return answer.status, json.loads(answer.body) if answer.body.startswith(b"{") else {}


async def make(site: Served, name: str = "job", **more: Any) -> str:
    status, made = await ask(site, "POST", PATH, {"spec": {"name": name}}, **more)
    assert status == 201, made
    return str(made["status"]["token"])


async def test_a_token_is_made_used_listed_and_revoked(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        status, answer = await ask(site, "POST", PATH, {"spec": {"name": "job", "expirationSeconds": 86_400}})
        assert (status, answer["kind"], answer["status"]["name"]) == (201, "APIToken", "job")
        token = answer["status"]["token"]
        assert token.startswith("osp_")
        assert (await ask(site, "GET", "/x", token=token))[0] == 200
        _, listed = await ask(site, "GET", PATH)
        (item,) = listed["items"]
        assert (item["metadata"]["name"], item["status"]["user"]) == ("job", "alice")
        assert token not in json.dumps(listed)
        assert (await ask(site, "DELETE", f"{PATH}/job"))[0] == 200
        assert (await ask(site, "GET", "/x", token=token))[0] == 401
        assert (await ask(site, "GET", PATH))[1]["items"] == []
    assert token not in (tmp_path / "audit.log").read_text()


async def test_nobody_sees_or_ends_the_tokens_of_others(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        await make(site)
        bob = (await site.worker.app.shared.tokens.issue(UserInfo("bob"), provider="me")).token.reveal()
        assert (await ask(site, "GET", PATH, token=bob))[1]["items"] == []
        assert (await ask(site, "DELETE", f"{PATH}/job", token=bob))[0] == 404
        assert len((await ask(site, "GET", PATH))[1]["items"]) == 1


async def test_switched_off_there_are_none(tmp_path: Path) -> None:
    assert not ApiTokenSettings().enabled
    async with upstream() as made, served(config(tmp_path, at(made), enabled=False)) as site:
        status, answer = await ask(site, "POST", PATH, {"spec": {"name": "job"}})
        assert (status, answer["reason"]) == (403, "Forbidden")


async def test_an_api_token_makes_no_other(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        token = await make(site)
        assert (await ask(site, "POST", PATH, {"spec": {"name": "second"}}, token=token))[0] == 403


async def test_nobody_makes_one_in_another_name(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        status, answer = await ask(site, "POST", PATH, {"spec": {"name": "job"}}, lines=("Impersonate-User: bob",))
        assert (status, answer["kind"]) == (403, "Status")
        assert "in one's own name" in answer["message"]


async def test_a_revoked_owner_has_no_tokens_left(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        token = await make(site)
        await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        assert (await ask(site, "GET", "/x", token=token))[0] == 401


async def test_what_cannot_be_done_is_told(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 422),
        ({"name": "a\nb"}, 400),
        ({"name": "a/b"}, 422),
        ({"name": ["a"]}, 400),
        ({"name": "job"}, 409),
        ({"name": "a", "expirationSeconds": 10**9}, 422),
        ({"name": "a", "token": "mine"}, 400),
    ]
    for spec, expected in cases:
        with subtests.test(spec=spec, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            async with upstream() as made, served(config(tmp_path, at(made))) as site:
                await make(site)
                status, answer = await ask(site, "POST", PATH, {"spec": spec})
                assert (status, answer["kind"]) == (expected, "Status")
