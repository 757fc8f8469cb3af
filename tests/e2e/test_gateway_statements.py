"""Statements of the design document that need the whole gateway to be seen: providers, names, groups, records.

What each number says stands in ``docs/reference/statements-gateway.md``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization, Groups, Identity
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from tests.support.cluster import Cluster
from tests.support.cluster.hostile import OK, Hostile, send
from tests.support.database_provider import ENTRY_POINTS, Database, DatabaseProvider, grants_api
from tests.support.gateway import Gateway, InProcessGateway, Site, role
from tests.support.waiting import until
from tests.unit.ostiary_gateway import acme

PODS = "/api/v1/namespaces/team/pods"
GRANTS = "/apis/acme.example/v1/grants"
READER = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    return Site(tmp_path / "gateway", ca)


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


# --- tokens ---


def test_what_auth_gives_opens_everything_that_the_user_may(site: Site, cluster: Cluster) -> None:
    """S8, S16, S17: each visit gives another token, none is bound to what was asked for first."""
    site.users("alice")
    site.policy(role("team", READER, User="alice"), role("other", READER, User="alice"))
    with site.in_process(upstreams=[site.impersonating(cluster)]) as gateway:
        first, second = gateway.login("alice"), gateway.login("alice")
        assert first.token != second.token
        for token in (first.token, second.token):
            assert gateway.get(PODS, token).status_code == 200
            assert gateway.get("/api/v1/namespaces/other/pods", token).status_code == 200
        # Nothing else that /auth tells is a token: neither the session, nor what renews it.
        for other in (first.renewal_token, first.session):
            assert gateway.get(PODS, other).status_code == 401


# --- providers ---


def test_one_object_serves_all_three_steps_and_owns_its_policy(
    site: Site, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6, S7, S13: identity, groups, decisions and a REST resource of its own, over one database that only it knows."""
    acme.install(tmp_path / "site", monkeypatch, ENTRY_POINTS, package="database")
    database = Database(site.folder / "people.db")
    database.create()
    database.add_user("badge-1", "Zoë", "crew")
    database.add_user("badge-2", "Max", "admins")
    database.grant("admins", "create", "grants")
    database.grant("crew", "list", "configmaps")
    built = DatabaseProvider.built
    with grants_api(database).running() as api:
        upstreams = [site.impersonating(cluster), {"name": "grants", "server": api.url, "prefix": "/apis/acme.example"}]
        with site.in_process(
            identity=[{"name": "acme", "type": "database", "path": "people.db"}],
            groups=[{"name": "acme-teams", "provider": "acme"}],
            authorization={"chain": [{"name": "acme-grants", "provider": "acme"}], "cacheTTL": "0s"},
            upstreams=upstreams,
        ) as gateway:
            assert DatabaseProvider.built == built + 1
            zoe, admin = badge(gateway, "badge-1"), badge(gateway, "badge-2")
            assert (zoe["user"], zoe["groups"]) == ("Zoë", ["crew"])
            assert gateway.get("/auth", headers={"X-Badge": "badge-3"}).status_code == 403

            assert gateway.get(PODS, zoe["token"]).status_code == 403
            grant = {"team": "crew", "verb": "list", "resource": "pods"}
            assert post(gateway, zoe["token"], GRANTS, grant) == 403
            assert post(gateway, admin["token"], GRANTS, grant) == 201
            assert gateway.get(PODS, zoe["token"]).status_code == 200


def badge(gateway: Gateway, number: str) -> dict[str, Any]:
    answer = gateway.get("/auth", headers={"X-Badge": number})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def post(gateway: Gateway, token: str, path: str, body: Any) -> int:
    with gateway.http(token) as http:
        return http.post(path, json=body).status_code


# --- groups ---


def test_a_group_is_in_tokens_as_soon_as_a_policy_mentions_it(site: Site, cluster: Cluster) -> None:
    """S35, S36: at the next login, and at the next renewal of a session that was there before."""
    site.users("alice")
    site.groups({"dev": ["alice"], "oncall": ["alice"]})
    site.policy(role("team", READER, Group="dev"))
    groups = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
    with site.in_process(upstreams=[site.impersonating(cluster)], groups=groups) as gateway:
        before = gateway.login("alice")
        assert before.groups == ("dev",)
        site.policy(role("team", READER, Group="dev"), role("team", "configmaps", Group="oncall"))
        until(lambda: set(gateway.login("alice").groups) == {"dev", "oncall"})
        renewed = renew(gateway, before.renewal_token)
        assert set(renewed["groups"]) == {"dev", "oncall"}
        assert gateway.get("/api/v1/namespaces/team/configmaps", renewed["token"]).status_code == 200


def renew(gateway: Gateway, renewal_token: str) -> dict[str, Any]:
    with gateway.http() as http:
        answer = http.post("/auth/renew", data={"renewal_token": renewal_token})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# --- decisions ---


def test_a_changed_policy_beats_decisions_that_would_be_kept_for_long(site: Site, cluster: Cluster) -> None:
    """C2, S44, S57: ten minutes by the gateway's own time, but the provider knows that its policy changed."""
    site.users("alice")
    site.policy(role("team", READER, User="alice"))
    chain = [{"name": "cluster", "type": "rbac", "paths": ["policy"]}]
    with site.in_process(
        upstreams=[site.impersonating(cluster)], authorization={"chain": chain, "cacheTTL": "10m"}
    ) as gateway:
        token = gateway.login("alice").token
        assert gateway.get(PODS, token).status_code == 200
        site.policy(role("elsewhere", READER, User="alice"))
        until(lambda: gateway.get(PODS, token).status_code == 403)


# --- records ---


def test_a_record_tells_who_what_from_where_and_when(site: Site, cluster: Cluster) -> None:
    """S70: what a provider of audit logs would be given joins what was decided on."""
    site.users("alice")
    site.policy(role("team", READER, User="alice"))
    began = datetime.now(UTC)
    with site.in_process(upstreams=[site.impersonating(cluster)]) as gateway:
        token = gateway.login("alice").token
        answer = gateway.get(f"{PODS}/web?a=b", token, headers={"User-Agent": "a-program/1.0"})
    (event,) = [e for e in site.events() if e["requestURI"].startswith(PODS) and e["stage"] == "ResponseComplete"]
    assert event["auditID"] == answer.headers["Audit-Id"]
    assert (event["user"]["username"], event["verb"], event["requestURI"]) == ("alice", "get", f"{PODS}/web?a=b")
    assert event["objectRef"] == {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"}
    assert (event["sourceIPs"], event["userAgent"]) == (["127.0.0.1"], "a-program/1.0")
    assert event["responseStatus"]["code"] == 200
    assert event["annotations"]["authorization.k8s.io/decision"] == "allow"
    received, ended = (datetime.fromisoformat(event[name]) for name in ("requestReceivedTimestamp", "stageTimestamp"))
    assert began <= received <= ended <= datetime.now(UTC)
    assert token not in site.audit_log.read_text()


# --- names ---


class AnyName:
    """All three steps, believing whatever name and groups the visit claims: base64 of JSON, to carry any text."""

    def __init__(self) -> None:
        self.relevant: frozenset[str] = frozenset()

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        return UserInfo(claimed(request)[0])

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("nobody was sent elsewhere")

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        return tuple(Membership(group) for group in claimed(request)[1])

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("nobody was sent elsewhere")

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    def decide(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return self.relevant


def claimed(request: LoginRequest) -> tuple[str, list[str]]:
    user, groups = json.loads(base64.b64decode(request.header("x-claim") or ""))
    return user, groups


class NamesSite:
    """A gateway whose users may have any name, before an upstream that keeps the bytes it was told."""

    def __init__(self, gateway: InProcessGateway, upstream: Hostile, provider: AnyName) -> None:
        self.gateway, self.upstream, self.provider = gateway, upstream, provider

    def visit(self, user: str, groups: list[str]) -> httpx.Response:
        self.provider.relevant = frozenset(groups)
        claim = base64.b64encode(json.dumps([user, groups]).encode()).decode()
        return self.gateway.get("/auth", headers={"X-Claim": claim})

    def login(self, user: str, groups: list[str]) -> dict[str, Any]:
        answer = self.visit(user, groups)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def review(self, token: str) -> dict[str, Any]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        with self.gateway.http("the-caller") as http:
            return dict(http.post("/webhooks/token-review", json=body).json()["status"]["user"])

    def told(self, token: str) -> list[bytes]:
        """The lines about the user that the upstream got."""
        assert self.gateway.get("/anything", token).status_code == 200
        lines = self.upstream.requests[-1].head.split(b"\r\n")
        return [line for line in lines if line.lower().startswith(b"impersonate-")]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesSite]:
    ca = trustme.CA()
    site, provider = Site(tmp_path_factory.mktemp("names"), ca), AnyName()
    (site.folder / "caller").write_text("the-caller")
    (site.folder / "token").write_text("the-gateway")

    def with_names(config: GatewayConfig) -> GatewayConfig:
        chain = (Authorization("any", "any", provider),)
        identity, groups = (Identity("any", "any", provider),), (Groups("any", "any", provider),)
        return replace(config, identity=identity, groups=groups, authorization=AuthorizationSettings(chain))

    with Hostile(ca) as upstream:
        upstreams = [
            {
                "name": "echo",
                "server": upstream.url,
                "identity": "impersonation",
                "tokenFile": "token",
                "tls": {"ca": "ca.pem"},
                "attributes": {"type": "http"},
            }
        ]
        webhooks = {"tokenReview": True, "callers": {"tokenFile": "caller"}}
        with site.in_process(with_names, upstreams=upstreams, webhooks=webhooks) as gateway:
            yield NamesSite(gateway, upstream, provider)


# What somebody may have been called, with a liking for what programs split, fold, trim or unescape.
LETTERS = st.one_of(
    st.sampled_from(",|:;=%*/\\\"' .@+-_#?&<>[]{}()AaZzÄäßİı名前\u202e\u200d🙂"),
    st.characters(exclude_categories=["Cc", "Cs"]),
)
NAMES = st.text(LETTERS, min_size=1, max_size=20).filter(lambda name: not name.startswith("system:"))
SPEAKABLE = NAMES.filter(lambda name: name == name.strip(" "))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(user=SPEAKABLE, groups=st.lists(SPEAKABLE, max_size=4, unique=True))
def test_names_come_through_the_whole_gateway_as_they_are(names: NamesSite, user: str, groups: list[str]) -> None:
    """S14, H6: through store, token, review and headers; nothing folded, trimmed, split, joined or put in order."""
    login = names.login(user, groups)
    assert (login["user"], login["groups"]) == (user, groups)
    lines = [b"Impersonate-User: " + user.encode(), *(b"Impersonate-Group: " + group.encode() for group in groups)]
    assert names.told(login["token"]) == lines
    reviewed = names.review(login["token"])
    assert (reviewed["username"], [g for g in reviewed.get("groups", []) if g in groups]) == (user, groups)


@pytest.mark.parametrize("name", [" alice", "alice ", "a\r\nImpersonate-Group: system:masters", "a\x00b", "a\x7fb"])
def test_a_name_that_no_header_can_carry_reaches_no_upstream(names: NamesSite, name: str) -> None:
    """S14, H6: refused at the door or at the request, and never cut to fit; the gateway serves on."""
    for user, groups in ((name, []), ("somebody", [name])):
        before = len(names.upstream.requests)
        visit = names.visit(user, groups)
        if visit.status_code == 200:
            assert names.gateway.get("/anything", visit.json()["token"]).status_code in (400, 500)
        assert len(names.upstream.requests) == before
    assert names.told(names.login("somebody", [])["token"]) == [b"Impersonate-User: somebody"]


# --- headers and connections ---


def raw(gateway: Gateway, token: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
    start = [f"{method} /anything HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    with gateway.connect() as connection, connection.makefile("rb") as answer:
        connection.sendall("\r\n".join([*start, *lines, "", ""]).encode() + body)
        return answer.read()


@pytest.mark.parametrize("name", ["Impersonate-User", "impersonate_group", "X-Remote-User", "Authorization", "Host"])
def test_connection_cannot_take_away_what_we_set(names: NamesSite, name: str) -> None:
    """H2."""
    token = names.login("somebody", ["dev"])["token"]
    before = len(names.upstream.requests)
    assert raw(names.gateway, token, f"Connection: close, {name}").startswith(b"HTTP/1.1 400 ")
    assert len(names.upstream.requests) == before


def test_what_connection_lists_stays_here_and_ours_arrives(names: NamesSite) -> None:
    """H2: removed first, then ours is set."""
    token = names.login("somebody", ["dev"])["token"]
    assert raw(names.gateway, token, "Connection: close, X-Hop", "X-Hop: 1", "X-Kept: 1").startswith(b"HTTP/1.1 200 ")
    head = names.upstream.requests[-1].head
    assert b"X-Hop" not in head
    assert b"\r\nX-Kept: 1\r\n" in head
    assert b"\r\nImpersonate-User: somebody\r\nImpersonate-Group: dev\r\n" in head


def test_without_a_101_there_is_no_tunnel(names: NamesSite) -> None:
    """P5: what the client sends after the head is no request to the upstream, nor is a redirect followed."""
    token = names.login("somebody", [])["token"]
    names.upstream.script("/anything", send(OK + b"Content-Length: 2\r\n\r\nno"))
    upgrade = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x"]
    before = len(names.upstream.requests)
    try:
        answer = raw(names.gateway, token, *upgrade, body=b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
    finally:
        names.upstream.script("/anything", send(OK + b"Content-Length: 7\r\n\r\nhonest\n"))
    assert not answer.startswith(b"HTTP/1.1 101 ")
    assert [heard.target for heard in names.upstream.requests[before:]] == [b"/anything"]
    assert names.gateway.get("/redirect", token).status_code == 302


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Transfer-Encoding: chunked, cow"],
        ["Host: other"],
        ["X-Folded: a\r\n b"],
        ["X-Space : a"],
    ],
    ids=lambda lines: lines[-1].splitlines()[0],
)
def test_a_request_with_two_readings_is_refused_and_its_connection_ends(names: NamesSite, lines: list[str]) -> None:
    """P6: `raw` reads to the end, so the connection was closed; what followed was nobody's request."""
    token = names.login("somebody", [])["token"]
    before = len(names.upstream.requests)
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw(names.gateway, token, *lines, method="POST", body=smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(names.upstream.requests) == before
