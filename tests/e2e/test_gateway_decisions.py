"""Who is it, may they: what the gateway answers by itself, before anything reaches the cluster.

A provider that the test scripts stands in the chain: it allows, hides, denies, raises, hangs and returns nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pytest
import trustme

from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.testing import FakeClock
from tests.support import slow_provider
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Gateway, InProcessGateway, Site, password, role
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
READER = {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["get", "list", "create"]}


class Scripted:
    """Does what the name of the object says. `gate` holds every answer back until it is opened."""

    def __init__(self) -> None:
        self.asked: list[Attributes] = []
        self.gate: asyncio.Event | None = None

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        if self.gate is not None:
            await self.gate.wait()
        match attributes.request.name:
            case "denied":
                return Decision(Verdict.DENY, "the operator's reason")
            case "hidden":
                return Decision(Verdict.DENY, "the operator's reason", hidden=True)
            case "raises":
                raise RuntimeError("the provider's own words")
            case "hangs":
                await asyncio.Event().wait()
            case "nothing":
                return cast("Decision", None)
        return Decision(Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob")
    site.policy(role("team", READER, User="alice"))
    return site


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@contextmanager
def deciding_by(scripted: Scripted, site: Site, cluster: Cluster, *, seconds: float) -> Iterator[InProcessGateway]:
    """A gateway whose only provider is the scripted one, which has so many *seconds* to answer."""

    def with_script(config: GatewayConfig) -> GatewayConfig:
        chain = (Authorization("script", "script", scripted),)
        authorization = AuthorizationSettings(chain, timeout=timedelta(seconds=seconds), hide_denied=True)
        return replace(config, authorization=authorization)

    with site.in_process(with_script, upstreams=[site.impersonating(cluster)]) as gateway:
        yield gateway


@pytest.fixture
def gateway(site: Site, cluster: Cluster, scripted: Scripted) -> Iterator[InProcessGateway]:
    with deciding_by(scripted, site, cluster, seconds=60) as gateway:
        yield gateway


@pytest.fixture
def by_policy(site: Site, cluster: Cluster) -> Iterator[InProcessGateway]:
    """Decides by RBAC and hides: alice is somebody in the namespace, bob is not."""
    chain = [{"name": "cluster", "type": "rbac", "paths": ["policy"]}]
    hiding = {"chain": chain, "hideDenied": True}
    with site.in_process(upstreams=[site.impersonating(cluster)], authorization=hiding) as gateway:
        yield gateway


def raw(gateway: Gateway, request: bytes) -> bytes:
    """What is answered to exactly these bytes, until the gateway closes."""
    with gateway.connect() as connection, connection.makefile("rb") as answer:
        connection.sendall(request)
        return answer.read()


def head(method: str, path: str, token: str, *lines: str) -> bytes:
    start = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    return "\r\n".join([*start, *lines, "", ""]).encode()


def without_ids(answer: bytes) -> bytes:
    """The parts that are different for any two answers, taken out."""
    return re.sub(rb"(?mi)^(audit-id|date): .*\r\n", b"", answer)


class TestWhoIsIt:
    def test_without_a_token_there_is_a_challenge_and_it_is_only_bearer(
        self, gateway: InProcessGateway, cluster: Cluster, scripted: Scripted
    ) -> None:
        """S9, S17, S38, S41."""
        answer = gateway.get(PODS)
        assert (answer.status_code, answer.headers.get_list("WWW-Authenticate")) == (401, ['Bearer realm="ostiary"'])
        assert answer.json()["message"] == "Unauthorized"
        # A password is for /auth, and opens nothing else.
        assert gateway.get(PODS, auth=("alice", "password-of-alice")).status_code == 401
        assert (cluster.requests, scripted.asked) == ([], [])

    def test_the_identity_provider_may_add_its_challenge_to_auth_only(self, gateway: InProcessGateway) -> None:
        """S41."""
        assert gateway.get("/auth").headers["WWW-Authenticate"].startswith("Basic ")
        assert "Basic" not in gateway.get(PODS).headers["WWW-Authenticate"]

    def test_unknown_expired_and_revoked_tokens_are_answered_alike(self, site: Site, cluster: Cluster) -> None:
        """S39, S24: and the expired one before any sweep."""
        clock = FakeClock()
        with site.in_process(clock=clock, upstreams=[site.impersonating(cluster)]) as gateway:
            expired, revoked = gateway.login("alice").token, gateway.login("alice").token
            assert gateway.get(f"{PODS}/web", revoked).status_code == 200
            with gateway.http(revoked) as http:
                assert http.post("/auth/logout").status_code == 204
            assert gateway.get(f"{PODS}/web", expired).status_code == 200
            answers = [raw(gateway, head("GET", f"{PODS}/web", revoked, "Connection: close"))]
            clock.advance(minutes=15)
            unknown = expired[:8] + ("a" if expired[8] != "a" else "b") + expired[9:]
            for token in (expired, unknown, "not-even-a-token"):
                answers.append(raw(gateway, head("GET", f"{PODS}/web", token, "Connection: close")))
        assert len({without_ids(answer) for answer in answers}) == 1
        assert answers[0].startswith(b"HTTP/1.1 401 ")
        assert b'WWW-Authenticate: Bearer realm="ostiary", error="invalid_token"\r\n' in answers[0]

    def test_user_and_groups_come_from_the_token_only(self, site: Site, cluster: Cluster) -> None:
        """S11, S40: what the providers would say by now does not matter until the next login or renewal."""
        site.groups({"dev": ["alice"]})
        site.policy(role("team", READER, Group="dev"))
        groups = [{"name": "teams", "type": "file", "path": "groups.yaml"}]
        with site.in_process(upstreams=[site.impersonating(cluster)], groups=groups) as gateway:
            token = gateway.login("alice").token
            site.groups({"dev": ["bob"]})
            site.users("bob")
            assert gateway.get(f"{PODS}/web", token).status_code == 200
            assert cluster.requests[-1].values("Impersonate-Group") == ["dev"]

    def test_many_calls_cost_a_slow_provider_one_of_each(self, site: Site, cluster: Cluster, tmp_path: Path) -> None:
        """S4, S5, S6: third-party code, in a package of its own, in a gateway that is a process of its own."""
        slow = {"type": "slow", "journal": "journal"}
        sections: dict[str, Any] = {
            "upstreams": [site.impersonating(cluster)],
            "identity": [{"name": "theirs", **slow}],
            "groups": [{"name": "theirs", **slow}],
            "authorization": {"chain": [{"name": "theirs", **slow}], "cacheTTL": "10m"},
        }
        with site.serving(environment=slow_provider.install(tmp_path / "site"), **sections) as gateway:
            token = gateway.get("/auth", headers={"X-Badge": "zoe"}).json()["token"]
            with gateway.http(token) as http, ThreadPoolExecutor(8) as pool:
                codes = list(pool.map(lambda _: http.get(f"{PODS}/web").status_code, range(40)))
        assert codes == [200] * 40
        assert {record.user.username for record in cluster.requests if record.user} == {"zoe"}
        journal = (site.folder / "journal").read_text().split()
        assert Counter(journal) == {"identity": 1, "groups": 1, "decision": 1}


class TestMayThey:
    def test_every_call_is_decided(self, gateway: InProcessGateway, scripted: Scripted) -> None:
        """S42, S43: whatever its path, and with everything that is known of it."""
        with gateway.http(gateway.login("alice").token) as http:
            for path in ("/version", "/api", PODS, f"{PODS}/web", f"{PODS}/web/log", "/no/such/path"):
                http.get(path)
            http.post("/api/v1/namespaces/team/configmaps", json={"metadata": {"name": "x"}})
        asked = [(each.user.username, each.request.verb, each.request.path) for each in scripted.asked]
        assert [path for _, _, path in asked] == [
            *("/version", "/api", PODS, f"{PODS}/web", f"{PODS}/web/log", "/no/such/path"),
            "/api/v1/namespaces/team/configmaps",
        ]
        assert {user for user, _, _ in asked} == {"alice"}
        assert [verb for _, verb, _ in asked] == ["get", "get", "list", "get", "get", "get", "create"]

    @pytest.mark.parametrize(
        ("name", "code", "reason"),
        [
            ("denied", 403, "Forbidden"),
            ("hidden", 404, "NotFound"),
            ("raises", 500, "InternalError"),
            ("nothing", 500, "InternalError"),
        ],
    )
    def test_what_is_not_allowed_stays_outside(
        self, gateway: InProcessGateway, cluster: Cluster, name: str, code: int, reason: str
    ) -> None:
        """S51, S52, S53: and no word of the provider reaches the client."""
        cluster.add_pod("team", name)
        answer = gateway.get(f"{PODS}/{name}", gateway.login("alice").token)
        assert (answer.status_code, answer.json()["reason"], answer.json()["code"]) == (code, reason, code)
        assert "reason" not in answer.json()["message"]
        assert "words" not in answer.text
        assert cluster.requests == []

    def test_a_provider_that_hangs_is_given_up(self, site: Site, cluster: Cluster, scripted: Scripted) -> None:
        """S53."""
        cluster.add_pod("team", "hangs")
        with deciding_by(scripted, site, cluster, seconds=0.2) as gateway:

            def sign_in() -> str:
                answer = gateway.get("/auth", auth=("alice", password("alice")))
                return str(answer.json()["token"]) if answer.status_code == 200 else ""

            # Signing in asks the provider as well, and so may take too long on a busy machine.
            answer = gateway.get(f"{PODS}/hangs", until(sign_in))
        assert (answer.status_code, answer.json()["reason"]) == (500, "InternalError")
        assert cluster.requests == []

    def test_what_is_allowed_proceeds(self, gateway: InProcessGateway, cluster: Cluster) -> None:
        """S50."""
        token = gateway.login("alice").token
        assert gateway.get(f"{PODS}/web", token).json()["metadata"]["name"] == "web"
        # (a) of S55: what does not exist is the cluster's to say.
        missing = gateway.get(f"{PODS}/nope", token)
        assert (missing.status_code, missing.json()["message"]) == (404, 'pods "nope" not found')
        assert len(cluster.requests) == 2

    def test_a_provider_that_failed_is_asked_again(self, gateway: InProcessGateway, scripted: Scripted) -> None:
        """S53: an error is never kept as an answer."""
        token = gateway.login("alice").token
        for _ in range(2):
            assert gateway.get(f"{PODS}/raises", token).status_code == 500
        assert [each.request.name for each in scripted.asked].count("raises") >= 2


class TestHiding:
    def test_hidden_and_missing_are_the_same_answer(self, by_policy: InProcessGateway, cluster: Cluster) -> None:
        """S55: (a) the object does not exist, (b) the user has no permission there."""
        cluster.add_pod("team", "here")
        alice, bob = by_policy.login("alice").token, by_policy.login("bob").token
        hidden = raw(by_policy, head("GET", f"{PODS}/here", bob, "Connection: close"))
        cluster.remove("pods", "team", "here")
        missing = raw(by_policy, head("GET", f"{PODS}/here", alice, "Connection: close"))
        assert [record.path for record in cluster.requests] == [f"{PODS}/here"]
        assert hidden.partition(b"\r\n\r\n")[2] == missing.partition(b"\r\n\r\n")[2]
        assert header_lines(hidden) == header_lines(missing)
        assert b"team" not in hidden

    def test_whether_it_exists_cannot_be_told_from_outside(self, by_policy: InProcessGateway) -> None:
        """S55: the same bytes for an object that is there, one that is not, and a namespace that is not."""
        bob = by_policy.login("bob").token
        paths = [f"{PODS}/web", "/api/v1/namespaces/nowhere/pods/web"]
        answers = {without_ids(raw(by_policy, head("GET", path, bob, "Connection: close"))) for path in paths}
        assert len(answers) == 1

    def test_some_permission_there_but_not_this_one_is_forbidden(self, by_policy: InProcessGateway) -> None:
        """S55: (c)."""
        with by_policy.http(by_policy.login("alice").token) as http:
            answer = http.delete(f"{PODS}/web")
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")


def header_lines(answer: bytes) -> list[bytes]:
    return without_ids(answer.partition(b"\r\n\r\n")[0] + b"\r\n").splitlines()


class TestOrder:
    """S56: authenticate, read the request line, decide; and only then the body."""

    @pytest.mark.parametrize(("user", "code"), [("alice", 403), ("bob", 403)])
    @pytest.mark.parametrize("body", [b"{not json", b"\xff\xfe", b""], ids=["half", "binary", "empty"])
    def test_a_malformed_body_without_permission_is_no_bad_request(
        self, by_policy: InProcessGateway, cluster: Cluster, user: str, code: int, body: bytes
    ) -> None:
        """S56."""
        with by_policy.http(by_policy.login(user).token) as http:
            answer = http.put(f"{PODS}/web", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == code
        assert cluster.requests == []

    def test_validation_comes_after_permission(self, by_policy: InProcessGateway, cluster: Cluster) -> None:
        """S56: who may do it hears from the cluster what is wrong."""
        with by_policy.http(by_policy.login("alice").token) as http:
            answer = http.post(PODS, content=b"{not json", headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert [record.body for record in cluster.requests] == [b"{not json"]

    @pytest.mark.parametrize(("name", "first"), [("denied", b"HTTP/1.1 403 "), ("web", b"HTTP/1.1 100 ")])
    def test_the_body_is_not_asked_for_before_the_decision(
        self, gateway: InProcessGateway, scripted: Scripted, name: str, first: bytes
    ) -> None:
        """S56: the client waits to be told to go on, and is told only if it may."""
        token = gateway.login("alice").token
        scripted.gate = asyncio.Event()
        lines = ["Content-Length: 2", "Expect: 100-continue"]
        with gateway.connect() as connection, connection.makefile("rb") as answer:
            connection.sendall(head("PUT", f"{PODS}/{name}", token, *lines))
            until(lambda: scripted.asked)
            connection.setblocking(False)
            with pytest.raises(ssl.SSLWantReadError):
                connection.recv(1)
            connection.settimeout(SECONDS)
            gateway.call(self._open(scripted))
            assert answer.readline().startswith(first)

    def _open(self, scripted: Scripted) -> Any:
        async def opened() -> None:
            assert scripted.gate is not None
            scripted.gate.set()

        return opened

    def test_a_refusal_does_not_wait_for_a_body_that_never_comes(self, gateway: InProcessGateway) -> None:
        """S56."""
        with gateway.connect() as connection, connection.makefile("rb") as answer:
            connection.sendall(head("PUT", f"{PODS}/denied", gateway.login("alice").token, "Content-Length: 1000000"))
            connection.sendall(b"{")
            assert answer.readline().startswith(b"HTTP/1.1 403 ")


def test_the_audit_record_tells_the_operator_what_the_client_is_not_told(gateway: InProcessGateway, site: Site) -> None:
    """S52."""
    answer = gateway.get(f"{PODS}/hidden", gateway.login("alice").token)
    gateway.call(gateway.worker.app.auditor.flush)
    (event,) = [event for event in site.events() if event["auditID"] == answer.headers["Audit-Id"]]
    assert event["responseStatus"]["code"] == 404
    assert event["annotations"] == {
        "authorization.k8s.io/decision": "forbid",
        "authorization.k8s.io/reason": "the operator's reason",
    }
    assert json.dumps(event).count("alice") == 1


class TestNames:
    """To kube-apiserver a semicolon and a backslash are ordinary characters of a name. Other servers differ."""

    NAMES = ("semi;colon", "back%5Cslash", "a;b=c;d", "..;", "%5C..%5Cup", ";")

    @pytest.mark.parametrize("name", NAMES)
    def test_an_object_with_such_a_name_can_be_read_and_deleted(
        self, gateway: InProcessGateway, cluster: Cluster, scripted: Scripted, name: str
    ) -> None:
        token = gateway.login("alice").token
        for method in ("GET", "DELETE"):
            target = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}"
            raw(gateway, head(method, target, token, "Connection: close"))
            assert scripted.asked[-1].request.name == unquote(name)
            assert cluster.requests[-1].target == target.encode()

    @pytest.mark.parametrize(
        "target",
        [
            "/api/v1/namespaces/team/pods/web/proxy/public/..;/private",
            "/api/v1/namespaces/team/pods/web/proxy/public%5C..%5Cprivate",
            "/api/v1/proxy/nodes/n1/a;b",
            "/healthz;x",
            "/logs/a%5Cb",
            "/apis/ostiary.dev/v1/sessions/a;b",
        ],
    )
    def test_elsewhere_they_are_refused(
        self, gateway: InProcessGateway, cluster: Cluster, scripted: Scripted, target: str
    ) -> None:
        """What another server reads, and what is no name of an object."""
        token = gateway.login("alice").token
        answer = raw(gateway, head("GET", target, token, "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert (cluster.requests, scripted.asked) == ([], [])

    def test_other_upstreams_get_no_such_path(self, site: Site, cluster: Cluster) -> None:
        upstream = {**site.impersonating(cluster), "attributes": "http", "identity": "none"}
        with site.in_process(upstreams=[upstream]) as gateway:
            token = gateway.login("alice").token
            answer = raw(gateway, head("GET", "/shop/a;b", token, "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert cluster.requests == []


class TestSeveralUpstreams:
    """A right at one of them is a right at another only where the configuration says so."""

    @pytest.fixture
    def gateway(self, site: Site, cluster: Cluster) -> Iterator[InProcessGateway]:
        site.policy(role("team", READER, User="alice"), folder="dev")
        site.policy(role("team", READER, User="bob"), folder="prod")
        chain = [{"name": name, "type": "rbac", "paths": [name], "upstreams": [name]} for name in ("dev", "prod")]
        hosts = {"dev": "localhost", "prod": "127.0.0.1"}
        upstreams = [{**site.impersonating(cluster, hosts=[host]), "name": name} for name, host in hosts.items()]
        with site.in_process(upstreams=upstreams, authorization={"chain": chain}) as gateway:
            yield gateway

    def test_each_has_its_policy(self, gateway: InProcessGateway) -> None:
        answers = {}
        for user in ("alice", "bob"):
            token = gateway.login(user).token
            for host in ("localhost", "127.0.0.1"):
                with gateway.http(token, host=host) as http:
                    answers[user, host] = [http.get(f"{PODS}/web").status_code for _ in range(2)]
        assert answers["alice", "localhost"] == answers["bob", "127.0.0.1"] == [200, 200]
        assert {*answers["alice", "127.0.0.1"], *answers["bob", "localhost"]} <= {403, 404}

    def test_questions_about_oneself_are_about_the_upstream_that_is_asked(self, gateway: InProcessGateway) -> None:
        token = gateway.login("alice").token
        answers = []
        for host in ("localhost", "127.0.0.1"):
            spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "team"}}
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
            rules = {**review, "kind": "SelfSubjectRulesReview", "spec": {"namespace": "team"}}
            with gateway.http(token, host=host) as http:
                access = http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=review).json()
                listed = http.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=rules).json()
            resources = [one["resources"] for one in listed["status"]["resourceRules"]]
            answers.append((access["status"]["allowed"], any("pods" in one for one in resources)))
        assert answers == [(True, True), (False, False)]


@pytest.mark.parametrize(
    ("host", "sent"), [("gateway.example.com", True), ("gateway.example.com:8443", True), ("localhost:8443", False)]
)
def test_browsers_are_told_to_come_back_over_tls_only(gateway: InProcessGateway, host: str, sent: bool) -> None:
    """Not on a loopback host, whose name other programs of the machine share."""
    answer = gateway.get("/auth", headers={"Host": host})
    assert answer.headers.get("Strict-Transport-Security") == ("max-age=31536000" if sent else None)
