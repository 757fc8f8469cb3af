"""A person gives an agent a token that can read one namespace for ten minutes: what it can do, and all it cannot.

Real processes throughout: ``ostiary-gateway serve`` with two workers before a cluster, ``ostiary login`` at a terminal,
``ostiary token``, and kubectl as the agent. The gateway stands before the cluster twice: under the name localhost it
impersonates, and under 127.0.0.1 it says who asks by ``X-Remote-*`` over mTLS.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl
from tests.support.gateway import SECONDS, ServedGateway, Site, password, role
from tests.support.terminal import AtTerminal
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("kubectl"), pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
SCOPE = "get,list,watch pods -n shop"
OWN = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
PODS, SECRETS = "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/secrets"
HOSTS = ("localhost", "127.0.0.1")
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
}


@dataclass
class Person:
    """Alice at her machine, who is signed in, and may do everything."""

    gateway: ServedGateway
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb"}

    @property
    def server(self) -> tuple[str, ...]:
        return ("--server", self.gateway.url(), "--ca", str(self.gateway.site.folder / "ca.pem"))

    def sign_in(self) -> None:
        terminal = AtTerminal([str(BIN / "ostiary"), "login", *self.server], {**os.environ, **self.environment})
        terminal.read_until("username at")
        terminal.type("alice\n")
        terminal.read_until("password: ")
        terminal.type(f"{password('alice')}\n")
        code, _ = terminal.end()
        assert code == 0, terminal.shown

    def ostiary(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "ostiary"), *words, *self.server]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=SECONDS)

    def token(self, *words: str) -> str:
        done = self.ostiary("token", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        assert done.stdout.strip() not in done.stderr
        return done.stdout.strip()


@dataclass
class Agent:
    """Who was given the token, and nothing else."""

    person: Person
    token: str
    host: str

    @property
    def gateway(self) -> ServedGateway:
        return self.person.gateway

    def kubectl(self, *words: str, namespace: str = "shop") -> subprocess.CompletedProcess[str]:
        return self.gateway.kubectl(self.token, host=self.host, namespace=namespace)(*words)

    def http(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self.gateway.http(self.token, host=self.host) as http:
            return http.request(method, path, **options)


@pytest.fixture(scope="module")
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        for namespace in ("shop", "web"):
            cluster.add_namespace(namespace)
            cluster.add_pod(namespace, "web-1", log=b"one\n")
        yield cluster


@pytest.fixture(scope="module")
def person(ca: trustme.CA, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice", "root")
    paths = {"nonResourceURLs": ["*"], "verbs": ["*"]}
    site.policy(role("", OWN, paths, User="alice"), role("", OWN, paths, User="root"))
    upstreams = [
        site.impersonating(cluster, hosts=["localhost"]),
        {**site.by_request_header(cluster, hosts=["127.0.0.1"]), "name": "by-header"},
    ]
    with site.serving(upstreams=upstreams, listen={"workers": 2}) as gateway:
        home = tmp_path_factory.mktemp("home")
        person = Person(gateway, home)
        person.sign_in()
        yield person


@pytest.fixture(params=HOSTS, ids=["impersonation", "requestHeader"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def token(person: Person) -> str:
    return person.token("--can", SCOPE, "--for", "10m", "--actor", "release-agent")


@pytest.fixture
def agent(person: Person, token: str, host: str) -> Agent:
    return Agent(person, token, host)


def test_the_agent_reads_its_namespace(agent: Agent) -> None:
    listed = agent.kubectl("get", "pods")
    assert (listed.returncode, "web-1" in listed.stdout) == (0, True), listed.stderr
    assert agent.kubectl("get", "pod", "web-1", "-o", "name").stdout == "pod/web-1\n"
    assert agent.kubectl("auth", "can-i", "list", "pods").stdout == "yes\n"


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pods", "-n", "web"),
        ("get", "pods", "-A"),
        ("get", "namespaces"),
        ("get", "secrets"),
        ("create", "configmap", "x", "--from-literal=a=b"),
        ("delete", "pod", "web-1", "--wait=false"),
        ("label", "pod", "web-1", "a=b"),
        ("logs", "web-1"),
        ("exec", "web-1", "--", "sh"),
        ("port-forward", "web-1", "0:80"),
        ("create", "token", "default"),
        ("get", "pods", "--as", "root"),
        ("get", "--raw", "/metrics"),
        ("get", "--raw", "/apis/ostiary.dev/v1/sessions"),
    ],
    ids=" ".join,
)
def test_every_attempt_beyond_is_refused_and_says_why(agent: Agent, cluster: Cluster, words: tuple[str, ...]) -> None:
    before = [record.method for record in cluster.requests if record.method != "GET"]
    done = agent.kubectl(*words)
    assert done.returncode != 0
    assert "beyond this token's scope" in done.stderr, done.stderr
    assert [record.method for record in cluster.requests if record.method != "GET"] == before


def test_both_workers_refuse_whatever_the_owner_has_asked_before(person: Person, agent: Agent) -> None:
    """What a worker remembers for alice is not used for her agent, nor the other way round."""
    owner = person.gateway.login("alice").token
    for _ in range(8):
        # Each time on a connection of its own, which either worker may get.
        for path, expected in ((PODS, [200, 200]), ("/api", [200, 200]), (SECRETS, [200, 403])):
            assert [person.gateway.get(path, who).status_code for who in (owner, agent.token)] == expected


def test_it_says_of_itself_what_it_is_for(agent: Agent, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(agent.token)
    shown = agent.person.ostiary("whoami", "--access-token-file", str(file))
    assert shown.returncode == 0, shown.stderr
    rows = dict(line.split(None, 1) for line in shown.stdout.splitlines() if len(line.split(None, 1)) == 2)
    assert (rows["user"], rows["scope"], rows["actor"]) == ("alice", f"discovery; {SCOPE}", "release-agent")
    assert "expires" in rows
    assert "ostiary.dev/scope" in agent.kubectl("auth", "whoami").stdout
    refused = agent.kubectl("auth", "can-i", "delete", "pods")
    assert refused.stdout.startswith("no - beyond this token's scope")
    rules = agent.kubectl("auth", "can-i", "--list")
    assert "secrets" not in rules.stdout
    assert "[get list watch]" in rules.stdout


# --- what else a token could be used for ---


@pytest.mark.parametrize("rule", ["get,delete pods -n shop", "get pods -A", "get secrets -n shop", "* * -A"])
def test_no_wider_token_is_made_with_it(person: Person, token: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    done = person.ostiary("token", "--token-file", str(file), "--can", rule)
    assert (done.returncode, done.stdout) == (1, "")
    assert "wider than this token's own" in done.stderr
    assert "scope-invalid" in done.stderr


def test_a_narrower_one_is_and_ends_no_later(person: Person, token: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token)
    rule = "get pods --name web-1 -n shop"
    words = ("--token-file", str(file), "--can", rule, "--for", "5h", "--actor", "sub", "-o", "json")
    done = person.ostiary("token", *words)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["scope"] == f"discovery; {rule}"
    assert "it ends with the token that it is made with" in done.stderr
    answers = [person.gateway.get(path, made["token"]) for path in (f"{PODS}/web-1", PODS, f"{PODS}/other")]
    assert [answer.status_code for answer in answers] == [200, 403, 403]
    # They are written a moment after the answer.
    events = until(lambda: _events_of(person, "release-agent > sub"))
    assert {event["user"]["username"] for event in events} == {"alice"}


def _events_of(person: Person, actor: str) -> list[dict[str, Any]]:
    events = person.gateway.site.events()
    return [event for event in events if event.get("annotations", {}).get("ostiary.dev/actor") == actor]


def test_a_token_for_exactly_one_action(person: Person, host: str, cluster: Cluster) -> None:
    """S69: as a redirect would carry it. Not even discovery is in it."""
    cluster.add_pod("shop", "doomed")
    token = person.token("--can", "delete pods --name doomed -n shop", "--exact", "--for", "1m")
    agent = Agent(person, token, host)
    for method, path in (("GET", "/api"), ("GET", f"{PODS}/doomed"), ("DELETE", f"{PODS}/web-1"), ("DELETE", PODS)):
        assert agent.http(method, path).status_code == 403
    assert agent.http("DELETE", f"{PODS}/doomed").status_code == 200
    assert agent.http("DELETE", f"{PODS}/doomed").status_code == 404, "the cluster says that it is gone"


def test_it_neither_renews_nor_opens_a_page_nor_passes_for_its_owner(agent: Agent) -> None:
    assert agent.http("POST", "/auth/renew", data={"renewal_token": agent.token}).status_code == 401
    page = {"Accept": "text/html", "Cookie": f"__Host-ostiary-session={agent.token}"}
    for path in ("/auth/token", "/auth/token/narrow", "/auth/sessions", "/auth/admin"):
        answer = agent.http("GET", path, headers=page, follow_redirects=False)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/auth")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": agent.token}}
    answer = agent.http("POST", "/apis/authentication.k8s.io/v1/tokenreviews", json=review)
    assert answer.json()["status"]["authenticated"] is False
    # Without a scope it would be as much as its owner.
    exchange = agent.http("POST", "/auth/token", data={**EXCHANGE, "subject_token": agent.token})
    assert (exchange.status_code, exchange.json()["error"]) == (400, "invalid_scope")


def test_a_refusal_is_explained_by_its_id(agent: Agent, tmp_path: Path) -> None:
    refused = agent.http("GET", "/api/v1/namespaces/web/pods")
    audit_id = refused.headers["Audit-Id"]
    root = tmp_path / "root"
    root.write_text(agent.gateway.login("root").token)
    command = [str(BIN / "ostiary-gateway"), "explain", audit_id]
    config = ("--config", str(agent.gateway.site.folder / "gateway.yaml"))
    for where in (config, (*agent.person.server, "--token-file", str(root))):
        done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        for text in ("beyond this token's scope", "token scope", SCOPE, "namespace", "list pods -n web"):
            assert text in done.stdout


# --- handing it out, and taking it back ---


def test_a_kubeconfig_holds_it_for_its_owner_alone(person: Person, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    done = person.ostiary("token", "--can", SCOPE, "--actor", "release-agent", "--kubeconfig", str(path))
    assert (done.returncode, done.stdout) == (0, "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (user,) = yaml.safe_load(path.read_text())["users"]
    assert user["user"]["token"] not in done.stderr
    assert "web-1" in Kubectl(path).output("get", "pods"), "the namespace is that of the scope"
    again = person.ostiary("token", "--can", SCOPE, "--kubeconfig", str(path))
    assert again.returncode == 1
    assert "File exists" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--can", "get pods"), "the rule names no namespace"),
        (("--can", SCOPE, "--for", "soon"), "--for is not a duration"),
        (("--can", SCOPE, "--for", "0s"), "one second at least"),
        (("--can", SCOPE, "--actor", "a > b"), "name of the actor"),
        (("--can", SCOPE, "--prefix", "x"), "--prefix must be a path"),
        ((), "--can"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_and_makes_nothing(
    person: Person, words: tuple[str, ...], said: str
) -> None:
    done = person.ostiary("token", *words)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert said in done.stderr


def test_it_ends_by_itself_by_revocation_and_when_its_owner_signs_out(
    person: Person, host: str, tmp_path: Path
) -> None:
    second = Person(person.gateway, tmp_path / "home")
    second.home.mkdir()
    second.sign_in()
    first, other, last = (Agent(second, second.token("--can", SCOPE), host) for _ in range(3))
    assert first.http("POST", "/auth/logout").status_code == 204
    root = tmp_path / "root"
    root.write_text(person.gateway.login("root").token)
    file = tmp_path / "token"
    file.write_text(other.token)
    revoke = ("sessions", "revoke", "token", str(file), "--token-file", str(root))
    revoked = subprocess.run(
        [str(BIN / "ostiary-gateway"), *revoke, *person.server], capture_output=True, text=True, timeout=SECONDS
    )
    assert revoked.returncode == 0, revoked.stderr
    for ended in (first, other):
        while ended.http("GET", PODS).status_code != 401:
            pass
    assert last.http("GET", PODS).status_code == 200
    assert second.ostiary("logout").returncode == 0
    while last.http("GET", PODS).status_code != 401:
        pass


def test_no_token_is_in_any_log_nor_in_what_was_said_about_mistakes(person: Person, token: str, tmp_path: Path) -> None:
    """Made, used, refused, asked for more, presented where it does not belong: and written down nowhere."""
    file = tmp_path / "token"
    file.write_text(token)
    said = ""
    for words in (("--can", "* * -A"), ("--can", "nonsense"), ("--can", SCOPE, "--for", "soon")):
        done = person.ostiary("token", "--token-file", str(file), *words)
        said += done.stdout + done.stderr
    for form in (
        {**EXCHANGE, "subject_token": token, "scope": token},
        {**EXCHANGE, "subject_token": token, "scope": SCOPE, "actor": token},
        {**EXCHANGE, "subject_token": token[:-1], "scope": SCOPE},
        {"subject_token": token},
    ):
        with person.gateway.http() as http:
            answer = http.post("/auth/token", data=form)
        assert answer.status_code == 400
        said += answer.text
    person.gateway.get("/api/v1/nodes", token)
    until(lambda: "beyond this token's scope" in person.gateway.site.audit_log.read_text())
    texts = {"said": said, "log": person.gateway.stderr, "audit": person.gateway.site.audit_log.read_text()}
    for place, text in texts.items():
        assert token not in text, place
        assert token[4:24] not in text, place
