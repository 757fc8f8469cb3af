"""Whatever number a person is shown is in the log, in the audit record, and known to ``ostiary-gateway explain``.

Every way to be refused by a gateway, or to meet a failure of it, as a browser and as a program.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trustme

from ostiary_gateway.cli import main
from tests.support.gateway import ServedGateway, Site, password, role

PAGE = {"Accept": "text/html,application/xhtml+xml"}
NUMBER = re.compile(r"tell them this number: <code>([0-9a-f-]{36})</code>")
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["decisions"], "verbs": ["get", "list"]}
Captured = pytest.CaptureFixture[str]
_addresses = itertools.count(1)

# what: (method, path, what httpx is given beside it, status)
VISITS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "a page that is not there": ("GET", "/auth/nothing/here", {"headers": PAGE}, 404),
    "a path that is not there, for a program": ("GET", "/auth/nothing/here", {}, 404),
    "a form of another site": ("POST", "/auth/staff", {"headers": {**PAGE, "Origin": "https://evil.example"}}, 403),
    "a wrong password in a form": (
        "POST",
        "/auth/staff",
        {"headers": PAGE, "data": {"username": "alice", "password": "wrong"}},
        401,
    ),
    "a wrong password of a program": ("GET", "/auth/staff", {"auth": ("alice", "wrong")}, 401),
    "a challenge for a program": ("GET", "/auth/staff", {}, 401),
    "a return that nobody began": ("GET", "/auth/sso/provider?state=x&code=y", {"headers": PAGE}, 403),
    "an issuer that is down": ("GET", "/auth/sso", {"headers": PAGE}, 503),
    "an issuer that is down, for a program": ("GET", "/auth/sso", {}, 503),
    "a command line that asks wrongly": ("GET", "/auth/cli?port=1", {"headers": PAGE}, 400),
    "a code of nobody": ("POST", "/auth/cli/token", {"data": {"code": "x", "code_verifier": "y"}}, 400),
    "a device code of nobody": ("POST", "/auth/device/token", {"data": {"device_code": "x"}}, 400),
    "a start without a goal": ("GET", "/auth/staff/start", {"headers": PAGE}, 400),
    "a renewal without a token": ("POST", "/auth/renew", {}, 400),
    "a renewal with a token of nobody": ("POST", "/auth/renew", {"data": {"renewal_token": "osr_x"}}, 401),
    "a wrong method": ("GET", "/auth/renew", {"headers": PAGE}, 405),
    "a page for a program": ("GET", "/auth/sessions", {}, 406),
    "a page for a script": ("GET", "/auth/sessions", {"headers": {**PAGE, "Sec-Fetch-Mode": "cors"}}, 403),
    "a form of a session that has ended": ("POST", "/auth/sessions", {"headers": PAGE}, 401),
    "a logout without a token": ("POST", "/auth/logout", {}, 401),
    "whoami without a token": ("GET", "/auth/whoami", {}, 401),
    "whoami with a token of nobody": ("GET", "/auth/whoami", {"headers": {"Authorization": "Bearer ost_x"}}, 401),
    "a stranger at the administration": ("GET", "/auth/admin", {"headers": PAGE}, 303),
    "a form that is too large": ("POST", "/auth/staff", {"data": {"username": "x" * 70_000}}, 413),
    "a form that is no text": (
        "POST",
        "/auth/staff",
        {"content": b"\xff=1", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
        400,
    ),
    "no token": ("GET", "/api/v1/namespaces/team/pods", {}, 401),
    "a token of nobody": ("GET", "/api/v1/pods", {"headers": {"Authorization": "Bearer ost_x"}}, 401),
    "a request that can be read in two ways": ("GET", "/api/v1/../pods", {"headers": {"X-Remote-User": "root"}}, 401),
}


@pytest.fixture(scope="module")
def gateway(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    site = Site(tmp_path_factory.mktemp("ids"), ca)
    site.users("alice", "root")
    site.policy(role("team", READ, User="staff:alice"), role("", OPERATOR, User="staff:root"))
    (site.folder / "secret").write_text("s")
    sso = {
        "name": "sso",
        "type": "oidc",
        "issuer": "https://127.0.0.1:1",
        "clientID": "g",
        "clientSecretFile": "secret",
        "prefix": "sso:",
    }
    staff = {"name": "staff", "type": "htpasswd", "path": "users", "prefix": "staff:"}
    # Nobody listens there.
    upstreams = [{"name": "api", "server": "http://127.0.0.1:1", "attributes": {"type": "kubernetes"}}]
    # Each event is in the file before its answer is sent.
    audit = {"log": {"path": "audit.log"}, "blocking": True}
    with site.serving(identity=[staff, sso], upstreams=upstreams, audit=audit) as gateway:
        yield gateway


def visitor(gateway: ServedGateway) -> httpx.Client:
    """Somebody at an address of their own: the log has a limited number of lines a second for each."""
    address = f"127.0.1.{next(_addresses)}"
    return gateway.http(transport=httpx.HTTPTransport(verify=gateway.trust, local_address=address))


def shown_id(answer: httpx.Response) -> str:
    """The id that the sender is shown: in the header, and the same on a page."""
    audit_id = answer.headers["Audit-Id"]
    assert NUMBER.findall(answer.text) in ([], [audit_id])
    return str(audit_id)


def leads_somewhere(gateway: ServedGateway, audit_id: str, status: int, capsys: Captured, token: str) -> dict[str, Any]:
    """Checks log, audit record and both ways of ``explain``; returns what is told."""
    gateway.line(audit_id)
    folder = gateway.site.folder
    events = [json.loads(line) for line in gateway.site.audit_log.read_text().splitlines()]
    mine = [event for event in events if event["auditID"] == audit_id and event["stage"] == "ResponseComplete"]
    assert [event["responseStatus"]["code"] for event in mine] == [status]
    local = explained(capsys, audit_id, "--config", str(folder / "gateway.yaml"))
    (folder / "token").write_text(token)
    ca = str(folder / "ca.pem")
    options = ("--server", gateway.url(), "--token-file", str(folder / "token"), "--ca", ca)
    remote = explained(capsys, audit_id, *options)
    for told in (local, remote):
        assert told["id"] == audit_id
    return local


def explained(capsys: Captured, audit_id: str, *words: str) -> dict[str, Any]:
    assert main(["explain", audit_id, *words]) == 0
    assert audit_id in capsys.readouterr().out
    assert main(["explain", audit_id, *words, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("what", VISITS)
def test_the_id_of_a_refusal_is_in_log_and_audit_and_can_be_explained(
    gateway: ServedGateway, what: str, capsys: Captured
) -> None:
    method, path, parts, status = VISITS[what]
    with visitor(gateway) as http:
        answer = http.request(method, path, **parts)
    assert answer.status_code == status, answer.text
    root = gateway.login("root", path="/auth/staff").token
    told = leads_somewhere(gateway, shown_id(answer), status, capsys, root)
    assert (told["path"], told["status"]) == (path.partition("?")[0].replace("/api/v1/../", "/api/"), status)
    assert told["kind"] == ("SignIn" if path.startswith("/auth") else "Request")
    assert told["reason"]


def test_what_failed_at_sign_in_is_told_with_the_name_that_was_typed(gateway: ServedGateway, capsys: Captured) -> None:
    with visitor(gateway) as http:
        answer = http.post("/auth/staff", headers=PAGE, data={"username": "mallory", "password": "not-the-word-1"})
    audit_id = shown_id(answer)
    gateway.line(audit_id)
    told = explained(capsys, audit_id, "--config", str(gateway.site.folder / "gateway.yaml"))
    assert (told["user"], told["provider"], told["login"]) == ("mallory", "staff", "refused")
    (line,) = [line for line in gateway.stderr.splitlines() if audit_id in line]
    assert "user mallory (not verified)" in line
    assert "not-the-word-1" not in gateway.stderr + gateway.site.audit_log.read_text()


def test_who_may_not_enter_the_administration_leaves_an_event_with_their_name(
    gateway: ServedGateway, capsys: Captured
) -> None:
    with visitor(gateway) as http:
        form = {"username": "alice", "password": password("alice")}
        http.post("/auth/staff", headers=PAGE, data=form)
        answer = http.get("/auth/admin", headers=PAGE)
    assert answer.status_code == 403
    root = gateway.login("root", path="/auth/staff").token
    told = leads_somewhere(gateway, shown_id(answer), 403, capsys, root)
    assert (told["kind"], told["user"]) == ("SignIn", "staff:alice")


def test_a_denied_request_and_a_lost_upstream_are_explained_too(gateway: ServedGateway, capsys: Captured) -> None:
    alice = gateway.login("alice", path="/auth/staff").token
    root = gateway.login("root", path="/auth/staff").token
    with gateway.http(alice) as http:
        denied = http.delete("/api/v1/namespaces/team/pods/web")
        lost = http.get("/api/v1/namespaces/team/pods")
    told = leads_somewhere(gateway, shown_id(denied), 403, capsys, root)
    assert told["then"]["verdict"] != "allow"
    assert lost.status_code in (502, 503)
    gateway.line(shown_id(lost))
    told = explained(capsys, shown_id(lost), "--config", str(gateway.site.folder / "gateway.yaml"))
    assert (told["then"]["verdict"], told["status"]) == ("allow", lost.status_code)


def test_ids_of_one_process_differ_where_people_look(gateway: ServedGateway) -> None:
    with visitor(gateway) as http:
        ids = [http.get("/auth/whoami").headers["Audit-Id"] for _ in range(20)]
    assert len({audit_id[:8] for audit_id in ids}) == len({audit_id[-12:] for audit_id in ids}) == 20


def test_a_browser_at_the_root_is_led_to_sign_in_and_programs_get_their_401(gateway: ServedGateway) -> None:
    with gateway.http() as http:
        led = http.get("/", headers={**PAGE, "Sec-Fetch-Dest": "document"})
        assert (led.status_code, led.headers["Location"]) == (303, "/auth")
        others: list[tuple[str, dict[str, str]]] = [
            ("/", {}),
            ("/", {"Accept": "application/json"}),
            ("/", {**PAGE, "Authorization": "Bearer ost_x"}),
            ("/", {**PAGE, "Sec-Fetch-Dest": "iframe"}),
            ("/api/v1/pods", PAGE),
        ]
        for path, headers in others:
            assert http.get(path, headers=headers).status_code == 401
        assert http.post("/", headers=PAGE).status_code == 401


# what: (method, path, what httpx is given beside it, status); for somebody who is signed in and may do all of it
SIGNED_IN: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "an upstream that is down": ("GET", "/api/v1/namespaces/team/pods", {}, 503),
    "a session that is not there": ("DELETE", "/apis/ostiary.dev/v1/sessions/none", {}, 404),
    "a revocation without a body": ("POST", "/apis/ostiary.dev/v1/revocations", {}, 400),
    "a revocation that is too large": ("POST", "/apis/ostiary.dev/v1/revocations", {"content": b" " * 70_000}, 413),
    "a path of our API that is not there": ("GET", "/apis/ostiary.dev/v1/nothing", {}, 404),
    "a self review of no form": (
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"content": b"{", "headers": {"Content-Type": "application/json"}},
        400,
    ),
    "a webhook that nobody calls so": ("GET", "/webhooks/token-review", {}, 401),
}


@pytest.fixture(scope="module")
def busy(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """Two workers, an upstream that is down, and webhooks."""
    site = Site(tmp_path_factory.mktemp("busy"), ca)
    site.users("root")
    site.policy(role("", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, User="root"))
    (site.folder / "caller").write_text("a-token-of-the-cluster")
    hooks = {"tokenReview": True, "callers": {"tokenFile": "caller"}}
    upstreams = [{"name": "api", "server": "http://127.0.0.1:1", "attributes": {"type": "kubernetes"}}]
    with site.serving(listen={"workers": 2}, upstreams=upstreams, webhooks=hooks) as gateway:
        while len(gateway.workers()) < 2:
            pass
        yield gateway


def explained_by_everybody(gateway: ServedGateway, token: str, audit_id: str) -> list[dict[str, Any]]:
    """What the gateway's API tells, each time on a connection of its own, which any worker may get."""
    answers = [gateway.get(f"/apis/ostiary.dev/v1/decisions/{audit_id}", token) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json() for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("what", SIGNED_IN)
def test_every_worker_explains_how_a_request_ended_at_another(busy: ServedGateway, what: str) -> None:
    method, path, parts, status = SIGNED_IN[what]
    token = busy.login("root").token
    with busy.http(token) as http:
        answer = http.request(method, path, **parts)
    assert answer.status_code == status, answer.text
    told = explained_by_everybody(busy, token, shown_id(answer))
    assert {(each["status"], each["path"]) for each in told} == {(status, path)}
    assert all(each["reason"] for each in told)


def test_an_id_is_known_after_a_reload(busy: ServedGateway) -> None:
    token = busy.login("root").token
    unknown = busy.get("/api/v1/pods", "ost_x")
    before = busy.stderr.count("the configuration was reloaded")
    busy.signal(signal.SIGHUP)
    busy.line("the configuration was reloaded", after=before + 1)
    assert explained_by_everybody(busy, token, shown_id(unknown))[0]["status"] == 401


@pytest.mark.parametrize(
    ("sent", "status", "path"),
    [
        (b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "/x"),
        (b"nonsense\r\n\r\n", 400, ""),
        (b"GET /x HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431, "/x"),
    ],
    ids=["two lengths", "no HTTP", "too large a head"],
)
def test_a_request_that_cannot_be_read_has_an_id_too(busy: ServedGateway, sent: bytes, status: int, path: str) -> None:
    token = busy.login("root").token
    with busy.connect() as connection:
        connection.sendall(sent)
        head = b""
        while b"\r\n\r\n" not in head and (data := connection.recv(4096)):
            head += data
    assert head.startswith(b"HTTP/1.1 %d " % status)
    (audit_id,) = re.findall(rb"Audit-Id: (\S+)\r\n", head)
    told = explained_by_everybody(busy, token, audit_id.decode())
    assert {(each["status"], each["path"]) for each in told} == {(status, path)}
    busy.line(audit_id.decode())
