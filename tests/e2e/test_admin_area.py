"""The administration area in a real browser, at a real gateway: its tables, and decisions as they are made."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trustme

from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import NoteStore
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.replicas.decision_feed import MOST_OF_ONE_USER
from ostiary_gateway.replicas.registry import TOPIC
from ostiary_gateway.replicas.replica import encode_replica
from tests.support.chromium import Chromium
from tests.support.cluster import Cluster
from tests.support.gateway import InProcessGateway, ServedGateway, Site, password, role
from tests.support.noting_store import NotingStore
from tests.support.pages_in_browser import PagesInBrowser
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]

PODS = "/api/v1/namespaces/team/pods"
SECRET = "/api/v1/namespaces/team/secrets/payroll"
ADMIN = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
# They may see what was refused, and not what everybody does.
LISTER = {"apiGroups": ["ostiary.dev"], "resources": ["decisions"], "verbs": ["get", "list"]}
HOSTILE = "<img src=x onerror=document.title=1>"
# With a style of its own, a script, and a few rows.
LARGEST = 60_000
SHOWN = frozenset(
    (
        *("admin-sessions-light", "admin-sessions-phone", "admin-refusals-dark", "admin-who-can-light"),
        *("admin-replicas-dark", "admin-decisions-light", "admin-decisions-dark", "admin-decisions-phone"),
    )
)


@pytest.fixture(scope="module")
def area(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesInBrowser]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice", "root", "lister", HOSTILE)
    site.groups({"developers": ["staff:alice"]})
    site.policy(
        role("team", "pods", Group="developers"),
        role("", ADMIN, User="staff:root"),
        role("", LISTER, User="staff:lister"),
    )
    port = 8443 if os.environ.get("OSTIARY_PICTURES") else free_port()
    url = f"https://localhost:{port}"
    with Cluster(ca) as cluster, Chromium.running() as chromium, pytest.MonkeyPatch.context() as patch:
        cluster.add_namespace("team")
        # A store that replicas share; the name of this machine is not for the pictures.
        store = NotingStore(str(site.folder / "shared.db"))
        patch.setattr(socket, "gethostname", lambda: "gateway-0")
        with site.in_process(
            lambda config: replace(config, store=replace(config.store, instance=store)),
            upstreams=[site.impersonating(cluster)],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=url,
            externalCA="ca.pem",
            identity=[
                {"name": "staff", "type": "htpasswd", "path": "users", "prefix": "staff:"},
                # Names as somebody else may choose them.
                {"name": "odd", "type": "htpasswd", "path": "users", "prefix": "odd:"},
            ],
            groups=[{"name": "teams", "type": "file", "path": "groups.yaml"}],
            apiTokens={"enabled": True},
            serviceAccounts={"declared": [{"namespace": "team", "name": "deployer", "description": "Rolls out"}]},
        ) as gateway:
            yield PagesInBrowser(gateway, chromium, url, SHOWN, largest=LARGEST)


def token_of(area: PagesInBrowser, user: str, provider: str = "staff") -> str:
    return str(area.gateway.get(f"/auth/{provider}", auth=(user, password(user))).json()["token"])


def http_as_browser(area: PagesInBrowser, **headers: str) -> httpx.Client:
    """A client with the cookies of the person at the browser."""
    cookies = {each["name"]: each["value"] for each in area.chromium("cookies")}
    client = area.gateway.http()
    client.cookies.update(cookies)
    client.headers.update({"Accept": "text/html,*/*", **headers})
    return client


async def note_other_replicas(gateway: InProcessGateway) -> None:
    """One replica that is as this one, and one that still has the old configuration and cannot reach its store."""
    shared = gateway.worker.app.shared
    own = await shared.replica()
    notes = ability(shared.tokens.store, NoteStore)
    assert own is not None
    assert notes is not None
    equal = replace(own, id="1", host="gateway-1", requests_per_second=38.2, in_flight=4, open_streams=17, tokens=23)
    other = replace(
        own,
        id="2",
        host="gateway-2",
        configuration="5e1f9a0c7d34",
        configured_seconds=86400.0 * 4,
        up_seconds=86400.0 * 4,
        confirmed_seconds=7.2,
        trouble="token store: unavailable",
    )
    await notes.put_notes(TOPIC, {each.id: encode_replica(each) for each in (equal, other)}, seconds=60)


def test_who_looks_after_the_gateway_has_pages_for_it(area: PagesInBrowser) -> None:
    """S42, S52."""
    chromium, gateway = area.chromium, area.gateway
    alice = token_of(area, "alice")
    refused = gateway.get(SECRET, alice)
    assert refused.status_code == 403
    area.sign_in("root")
    chromium.click("link", "Administration")
    assert "staff:alice" in chromium.text
    area.looked_at("admin-sessions")
    chromium.click("link", "Denied requests")
    assert "get secrets payroll in team" in chromium.text
    area.looked_at("admin-refusals")
    chromium.click("link", "Explain the decision: get secrets payroll in team, staff:alice")
    assert refused.headers["Audit-Id"] in chromium.text
    area.looked_at("admin-explained")
    chromium.click("link", "Service accounts")
    assert "team/deployer" in chromium.text
    area.looked_at("admin-accounts")
    chromium.click("link", "Who can?")
    chromium.fill("Verb", "get")
    chromium.fill("Resource", "pods")
    chromium.fill("Namespace", "team")
    chromium.click("button", "Ask")
    assert "developers" in chromium.text
    area.looked_at("admin-who-can")
    chromium.click("link", "Replicas")
    assert "All replicas are ready and have the same configuration." in chromium.text
    gateway.call(lambda: note_other_replicas(gateway))
    chromium.click("link", "Replicas")
    assert "Not ready: gateway-2." in chromium.text
    area.looked_at("admin-replicas")
    chromium.go(f"{area.url}/auth/admin?user=staff:alice")
    chromium.click("button", "End the session")
    assert gateway.get(PODS, alice).status_code == 401
    area.sign_in("alice")
    assert "Administration" not in chromium.text
    assert chromium.go(f"{area.url}/auth/admin") == 403


@pytest.mark.needs("kubectl")
def test_decisions_appear_while_kubectl_works(area: PagesInBrowser) -> None:
    """Allowed ones too; filtered; paused; and each can be explained."""
    chromium, gateway = area.chromium, area.gateway
    kubectl = gateway.kubectl(token_of(area, "alice"))
    kubectl("get", "pods")
    area.sign_in("root")
    chromium.go(f"{area.url}/auth/admin/decisions")
    chromium.see("Live: new decisions appear by themselves.")
    kubectl("get", "pods")
    chromium.see("list pods in team")
    assert kubectl("get", "secret", "payroll").returncode == 1
    chromium.see("get secrets payroll in team")
    assert chromium("run", script="return document.querySelectorAll('#decisions .tag.good').length > 0") is True
    area.looked_at("admin-decisions")
    chromium.click("button", "Pause")
    gateway.get(f"{PODS}/while-paused", token_of(area, "alice"))
    chromium.see("Paused: 1 new decisions wait.")
    assert "while-paused" not in chromium("text", of="#decisions")
    chromium.click("button", "Pause")
    chromium.see("get pods while-paused in team")
    chromium.click("link", "Explain the decision: list pods in team")
    assert "Allowed: why" in chromium.text
    area.looked_at("admin-explained-allowed")
    chromium.go(f"{area.url}/auth/admin/decisions?outcome=denied&user=ALICE")
    chromium.see("Live: new decisions appear by themselves.")
    assert "list pods in team" not in chromium("text", of="#decisions")
    gateway.get(PODS, token_of(area, "alice"))
    gateway.get(f"{SECRET}-2", token_of(area, "alice"))
    chromium.see("get secrets payroll-2 in team")
    assert "list pods" not in chromium("text", of="#decisions")


def test_names_and_paths_are_never_markup(area: PagesInBrowser) -> None:
    chromium, gateway = area.chromium, area.gateway
    hostile = token_of(area, HOSTILE, "odd")
    area.sign_in("root")
    chromium.go(f"{area.url}/auth/admin/decisions")
    chromium.see("Live: new decisions appear by themselves.")
    gateway.get("/x%3Cscript%3Edocument.title=2%3C/script%3E%3Cimg%20src=x%20onerror=document.title=3%3E", hostile)
    chromium.see(HOSTILE)
    chromium.go(f"{area.url}/auth/admin/decisions")
    assert HOSTILE in chromium.text
    for path in ("/auth/admin", "/auth/admin/refusals", "/auth/admin?user=" + HOSTILE, "/auth/admin?since=" + HOSTILE):
        chromium.go(f"{area.url}{path}")
        assert chromium("title").endswith("ostiary")
        assert chromium("run", script="return document.querySelectorAll('main img, main script').length") == 0


def test_without_scripts_the_page_shows_the_latest_decisions(area: PagesInBrowser) -> None:
    chromium, gateway = area.chromium, area.gateway
    alice = token_of(area, "alice")
    area.sign_in("root", javaScriptEnabled=False)
    chromium.go(f"{area.url}/auth/admin/decisions")
    gateway.get(f"{PODS}/without-scripts", alice)
    assert "Load this page again for newer decisions." in chromium.text
    assert "Pause" not in chromium.text
    chromium.click("link", "Load again")
    assert "get pods without-scripts in team" in chromium.text
    chromium.click("link", "Explain the decision: get pods without-scripts in team")
    assert "Allowed: why" in chromium.text


def test_the_stream_ends_with_the_session(area: PagesInBrowser) -> None:
    chromium, gateway = area.chromium, area.gateway
    tokens = gateway.worker.app.shared.tokens
    area.sign_in("root")
    chromium.go(f"{area.url}/auth/admin/decisions")
    chromium.see("Live: new decisions appear by themselves.")
    gateway.call(lambda: tokens.revoke(RevocationKind.USER, "staff:root", by="test"))
    chromium.see("Ended: you may be signed out")
    gateway.get(f"{PODS}/after-the-end", token_of(area, "alice"))
    assert chromium.go(f"{area.url}/auth/admin/decisions") == 200
    assert "Sign in" in chromium.text


def test_the_stream_ends_when_the_permission_is_withdrawn(area: PagesInBrowser) -> None:
    chromium, gateway = area.chromium, area.gateway
    policy = gateway.site.folder / "policy"
    before = {path: path.read_text() for path in policy.iterdir()}
    area.sign_in("root")
    chromium.go(f"{area.url}/auth/admin/decisions")
    chromium.see("Live: new decisions appear by themselves.")
    try:
        for path, text in before.items():
            path.write_text(text.replace("staff:root", "staff:nobody"))
        chromium.see("Ended: you may be signed out")
        assert chromium.go(f"{area.url}/auth/admin/decisions") == 403
    finally:
        for path, text in before.items():
            path.write_text(text)


def stream_address(page: str) -> str:
    (address,) = [part.split('"')[0] for part in page.split('data-stream="')[1:]]
    return address.replace("&amp;", "&")


def test_nobody_else_gets_the_stream(area: PagesInBrowser) -> None:
    """Not a stranger, not somebody without the permission, not a script of another page with the cookie."""
    gateway = area.gateway
    assert gateway.get("/auth/admin/decisions/stream?key=x").status_code == 401
    area.sign_in("root")
    events = {"Accept": "text/event-stream"}
    with http_as_browser(area) as http:
        address = stream_address(http.get("/auth/admin/decisions").text)
        assert http.get("/auth/admin/decisions/stream", headers=events).status_code == 403
        wrong = address[:-4] + "xxxx"
        assert http.get(wrong, headers=events).status_code == 403
        foreign = {**events, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert http.get(address, headers=foreign).status_code == 403
        assert http.post(address, headers=events).status_code in (403, 405)
    area.sign_in("lister")
    with http_as_browser(area) as http:
        assert http.get("/auth/admin/refusals").status_code == 200
        assert http.get("/auth/admin/decisions").status_code == 403
        assert http.get(address, headers=events).status_code == 403, "the key is another session's"


def test_a_hundred_watchers_are_bounded(area: PagesInBrowser) -> None:
    area.sign_in("root")
    with http_as_browser(area) as http, ExitStack() as streams:
        address = stream_address(http.get("/auth/admin/decisions").text)
        statuses, pieces = [], []
        for _ in range(100):
            client = streams.enter_context(http_as_browser(area))
            answer = streams.enter_context(client.stream("GET", address, headers={"Accept": "text/event-stream"}))
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                # It has begun, and so counts.
                pieces.append(answer.iter_raw())
                assert next(pieces[-1])
        assert statuses.count(200) == MOST_OF_ONE_USER
        assert set(statuses) == {200, 429}
        assert area.gateway.get(PODS, token_of(area, "alice")).status_code == 200


@pytest.fixture
def served(ca: trustme.CA, tmp_path: Path) -> Iterator[tuple[ServedGateway, httpx.Client]]:
    """A gateway with three workers, and root at it."""
    site = Site(tmp_path, ca)
    site.users("alice", "root")
    site.policy(role("team", "pods", User="alice"), role("", ADMIN, User="root"))
    port = free_port()
    url = f"https://localhost:{port}"
    listen = {"address": f"127.0.0.1:{port}", "workers": 3}
    with (
        Cluster(ca) as cluster,
        site.serving(upstreams=[site.impersonating(cluster)], listen=listen, externalURL=url) as gateway,
        gateway.http(follow_redirects=True) as http,
    ):
        while gateway.probe("/readyz").status_code != 200:
            """Every worker answers its supervisor then, and so learns that somebody watches."""
        http.headers.update({"Accept": "text/html", "Origin": url, "Sec-Fetch-Site": "same-origin"})
        http.get("/auth")
        http.post("/auth", data={"username": "root", "password": password("root")})
        yield gateway, http


@contextmanager
def watching(http: httpx.Client) -> Iterator[Iterator[str]]:
    address = stream_address(http.get("/auth/admin/decisions").text)
    with http.stream("GET", address, headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        yield lines


@pytest.mark.timeout(60)
def test_whoever_watches_at_one_worker_sees_the_decisions_of_all(served: tuple[ServedGateway, httpx.Client]) -> None:
    gateway, http = served
    alice = gateway.login("alice").token
    with watching(http) as lines:
        # Each on a connection of its own, which any worker may take.
        made = {gateway.get(PODS, alice).headers["Audit-Id"] for _ in range(20)}
        seen: set[str] = set()
        while not made <= seen:
            line = next(lines)
            if line.startswith("data: "):
                seen.add(json.loads(line.removeprefix("data: "))["id"])
        explained = [http.get(f"/auth/admin/refusals?id={each}").status_code for each in sorted(made)[:5]]
        assert explained == [200] * 5, "wherever it was decided"


@pytest.mark.timeout(60)
def test_a_stream_ends_when_the_gateway_reloads_or_stops(served: tuple[ServedGateway, httpx.Client]) -> None:
    gateway, http = served
    for number in (signal.SIGHUP, signal.SIGTERM):
        with watching(http) as lines:
            gateway.signal(number)
            assert not [line for line in lines if line.startswith("data:")], "to its end, which is an orderly one"
    gateway.wait()
