"""The gateway's own API: it tells what was decided on and no more, and hostile JSON is a 400."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from ostiary.model import UserInfo
from tests.support.gateway import role
from tests.support.http1 import get, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

ADMIN = "/apis/ostiary.dev/v1"


def config(folder: Path, server: str, *names: str, **more: Any) -> Any:
    """Alice may list sessions, and if there are *names* only those."""
    rule = {"apiGroups": ["ostiary.dev"], "resources": ["sessions"], "verbs": ["list", "watch", "get"]}
    if names:
        rule["resourceNames"] = list(names)
    others = {"apiGroups": ["ostiary.dev"], "resources": ["revocations", "subjectsearches"], "verbs": ["create"]}
    (folder / "policy.yaml").write_text(yaml.safe_dump_all(role("", rule, others, User="alice")))
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]
    return configured(folder, server, authorization={"chain": chain}, **more)


async def listed(site: Served, **query: str) -> tuple[int, list[str]]:
    text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    answer = await site.client.ask(site.request(f"{ADMIN}/sessions?{text}"))
    said = json.loads(answer.body)
    return answer.status, sorted(item["user"] for item in said.get("items", ()))


async def test_a_right_to_one_session_shows_that_one_only(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        tokens = site.worker.app.shared.tokens
        bob = (await tokens.issue(UserInfo("bob"), provider="me")).session.id
        carol = (await tokens.issue(UserInfo("carol"), provider="me")).session.id
        await site.worker.reload(config(tmp_path, at(made), bob))
        assert (await listed(site))[0] == 403
        assert await listed(site, fieldSelector=f"metadata.name={bob}") == (200, ["bob"])
        assert await listed(site, fieldSelector=f"metadata.name={bob}", user="carol") == (200, [])
        assert (await listed(site, fieldSelector=f"metadata.name={carol}"))[0] == 403
        assert (await listed(site, fieldSelector=f"metadata.name!={carol}"))[0] == 403
        assert (await listed(site, fieldSelector=f"metadata.name={bob},metadata.name={carol}"))[1] in ([], ["bob"])


async def test_a_list_is_filtered_by_its_field_selector(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        tokens = site.worker.app.shared.tokens
        bob = (await tokens.issue(UserInfo("bob", groups=("dev",)), provider="me")).session.id
        await tokens.issue(UserInfo("carol"), provider="me")
        assert await listed(site) == (200, ["alice", "bob", "carol"])
        assert await listed(site, fieldSelector=f"metadata.name={bob}") == (200, ["bob"])
        assert await listed(site, fieldSelector=f"metadata.name={bob}", user="carol") == (200, [])
        assert await listed(site, fieldSelector=f"metadata.name={bob}", group="dev") == (200, ["bob"])
        assert await listed(site, fieldSelector=f"metadata.name={bob}", group="ops") == (200, [])
        assert await listed(site, fieldSelector=f"metadata.name!={bob}") == (200, ["alice", "carol"])
        assert await listed(site, fieldSelector="metadata.name=") == (200, [])


@pytest.mark.parametrize(
    "query", [{"fieldSelector": "user=bob"}, {"fieldSelector": "a==b=c,,"}, {"labelSelector": "a=b"}, {"watch": "true"}]
)
async def test_a_selector_that_is_not_understood_is_not_ignored(tmp_path: Path, query: dict[str, str]) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        assert (await listed(site, **query))[0] == 400


async def test_nobody_is_sent_to_the_host_that_they_wrote(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for path in ["/sessions/", "/revocations/", "//sessions", ""]:
        for host in ["evil.example", "evil.example:443"]:
            with subtests.test(path=path, host=host):
                tmp_path = tmp_path_factory.mktemp("case")
                async with upstream() as made, served(config(tmp_path, at(made))) as site:
                    request = site.request(f"{ADMIN}{path}").replace(b"Host: gateway.test", b"Host: " + host.encode())
                    answer = await site.client.ask(request)
                    assert answer.status not in range(300, 400)
                    assert answer.one("Location") is None


HOSTILE = [
    b"",
    b"[" * 30_000,
    b'{"a":' * 10_000,
    b'{"type": "user", "value": "\\ud800"}',
    b'{"type": "user", "value": "\\ud800\\ud800"}',
    b'{"type": "user", "value": "a\\u0000b"}',
    b'{"type": "user", "value": "a\\u001bb"}',
    b'{"type": "session", "value": "\\udfff"}',
    b'{"type": "group", "value": "\\u0000"}',
    b'{"type": "token", "value": "\\udead"}',
    b'{"type": "\\ud800"}',
    b'{"verb": "get", "resource": "\\ud800"}',
    b'{"verb": "get", "path": "/\\u0000"}',
    b'{"verb": NaN}',
    b'{"verb": ' + b"1" * 5000 + b"}",
    b"\xff\xfe\x00",
    b'\xef\xbb\xbf{"type": "user"}',
    b"null",
    b'"x"',
    b'{"type": {"a": 1}}',
    b'{"type": "before", "before": "\\ud800"}',
    b'{"type": "before", "before": "9999-12-31T23:59:59-23:59"}',
]


async def test_hostile_json_is_a_400(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for body in HOSTILE:
        for resource in ["revocations", "subjectsearches"]:
            with subtests.test(body=body, resource=resource):
                tmp_path = tmp_path_factory.mktemp("case")
                async with upstream() as made, served(config(tmp_path, at(made))) as site:
                    answer = await site.client.ask(site.request(f"{ADMIN}/{resource}", method="POST", body=body))
                    assert (answer.status, json.loads(answer.body)["reason"]) == (400, "BadRequest")


HOOKS = {"tokenReview": True, "subjectAccessReview": True, "callers": {"tokenFile": "callers"}}
REVIEW = b'{"kind":"%s","apiVersion":"%s/v1","spec":{"user":"%s","token":"%s","resourceAttributes":{"verb":"%s"}}}'


async def test_hostile_json_to_a_webhook_is_answered_or_a_400(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for text in [rb"\ud800", rb"\u0000", rb"\udfff\ud800", b"\xff", b"\x00"]:
        for hook in ["token-review", "subject-access-review"]:
            with subtests.test(text=text, hook=hook):
                tmp_path = tmp_path_factory.mktemp("case")
                (tmp_path / "callers").write_text("secret")
                async with upstream() as made, served(config(tmp_path, at(made), webhooks=HOOKS)) as site:
                    kind, group = (
                        (b"TokenReview", b"authentication.k8s.io")
                        if hook == "token-review"
                        else (b"SubjectAccessReview", b"authorization.k8s.io")
                    )
                    for body in (REVIEW % (kind, group, text, text, text), b'{"spec":' * 20_000, *HOSTILE):
                        request = get(f"/webhooks/{hook}", "Authorization: Bearer secret", method="POST", body=body)
                        assert (await site.client.ask(request)).status in (200, 400)


# --- replicas ---


async def test_replicas_are_a_resource_like_any_other(tmp_path: Path) -> None:
    async with upstream() as made, served(config(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request(f"{ADMIN}/replicas"))).status == 403
        rule = {"apiGroups": ["ostiary.dev"], "resources": ["replicas"], "verbs": ["list"]}
        (tmp_path / "policy.yaml").write_text(yaml.safe_dump_all(role("", rule, User="alice")))
        await site.worker.reload(configured_by_policy(tmp_path, at(made)))
        answer = await site.client.ask(site.request(f"{ADMIN}/replicas"))
        assert answer.status == 200
        (item,) = json.loads(answer.body)["items"]
        assert (item["ready"], item["workers"], item["configuration"]["compared"]) == (True, 1, "same")
        for query in ("watch=true", "labelSelector=a%3Db", "fieldSelector=metadata.name%3Da"):
            assert (await site.client.ask(site.request(f"{ADMIN}/replicas?{query}"))).status in (400, 403)


def configured_by_policy(folder: Path, server: str) -> Any:
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"]}]
    return configured(folder, server, authorization={"chain": chain})
