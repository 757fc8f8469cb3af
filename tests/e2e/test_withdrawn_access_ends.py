"""What was withdrawn ends: every kind of open exchange against every kind of withdrawal, with one and two workers.

For each withdrawal a user opens all kinds of streams at each worker; then the right is withdrawn. The client and the
upstream both see the end of each stream, and another user's streams of the same kinds go on.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from _pytest.mark import ParameterSet

from tests.support.gateway import SECONDS, Login, ServedGateway, Site, role
from tests.support.holding_upstream import HoldingUpstream
from tests.support.http_server import Response
from tests.support.review_server import ReviewServer, status

ADMIN = "/apis/ostiary.dev/v1"
POD = "/api/v1/namespaces/team/pods"
UPGRADE = "Connection: Upgrade\r\nUpgrade: "
UPLOAD = "Content-Length: 100000\r\n"
CHUNKS = "Transfer-Encoding: chunked\r\n"
# Method and target, further lines, and what is sent after the head.
KINDS: dict[str, tuple[str, str, bytes]] = {
    "watch": (f"GET {POD}?watch=true", "", b""),
    "followed log": (f"GET {POD}/web/log?follow=true", "", b""),
    "exec over WebSocket": (f"GET {POD}/web/exec?command=sh&stdin=true", f"{UPGRADE}websocket\r\n", b""),
    "exec over SPDY": (f"POST {POD}/web/exec?command=sh&stdin=true", f"{UPGRADE}SPDY/3.1\r\n", b""),
    "upload to Kubernetes": (f"POST {POD}", CHUNKS, b"1\r\nx\r\n"),
    "WebSocket": ("GET /app/socket", f"{UPGRADE}websocket\r\n", b""),
    "GET with Upgrade": ("GET /app/anything", f"{UPGRADE}SPDY/3.1\r\n", b""),
    "server-sent events": ("GET /app/events", "", b""),
    "slow answer": ("GET /app/slow", "", b""),
    "answer not begun": ("GET /app/pending", "", b""),
    "upload": ("PUT /app/file", UPLOAD, b"first"),
    "upload in chunks": ("POST /app/file", CHUNKS, b"1\r\nx\r\n"),
}
BOB = "bob"


# --- what is opened ---


class Opened:
    """One exchange, as its client has it."""

    def __init__(self, gateway: ServedGateway, upstream: HoldingUpstream, kind: str, token: str, name: str) -> None:
        request, lines, body = KINDS[kind]
        self.name = name
        self._upstream = upstream
        self._socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=SECONDS)
        head = f"{request} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nX-Test-Id: {name}\r\n{lines}"
        self._socket.sendall(f"{head}\r\n".encode() + body)

    def wait_until_open(self) -> None:
        assert self._upstream.begun(self.name).wait(SECONDS), f"{self.name} was not opened: {self._received()!r}"

    def is_open(self) -> bool:
        self._socket.setblocking(False)
        try:
            while self._socket.recv(65536):
                pass
        except BlockingIOError:
            return not self._upstream.ended(self.name).is_set()
        except OSError:
            pass
        return False

    def wait_until_ended(self) -> None:
        """Both sides see its end."""
        self._socket.settimeout(SECONDS)
        try:
            while self._socket.recv(65536):
                pass
        except TimeoutError as error:
            raise AssertionError(f"{self.name} is still open for the client") from error
        except OSError:
            # A reset is an end as well, and the plainer one.
            pass
        assert self._upstream.ended(self.name).wait(SECONDS), f"{self.name} is still open for the upstream"

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        self._socket.settimeout(1.0)
        try:
            return self._socket.recv(500)
        except OSError:
            return b""


# --- the gateways ---


@dataclass
class Running:
    """A gateway, and who may do everything there."""

    site: Site
    gateway: ServedGateway
    upstream: HoldingUpstream
    reviews: ReviewServer
    sections: dict[str, Any]
    allowed: list[str]
    folders: int = 0
    names: int = 0

    def write_policy(self) -> None:
        """Whoever is allowed may do everything, by a group of their own."""
        own = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
        all_paths = {"nonResourceURLs": ["*"], "verbs": ["*"]}
        pods = "pods pods/exec pods/log"
        rights = [role("", pods, all_paths, Group=f"of-{user}") for user in self.allowed]
        self.site.policy(*rights, role("", own, User="root"), folder=self.folder)

    def write_groups(self) -> None:
        self.site.groups({f"of-{user}": [user] for user in self.allowed})

    @property
    def folder(self) -> str:
        return f"policy-{self.folders}"

    def revoke(self, **revocation: str) -> None:
        with self.gateway.http(self.gateway.login("root").token) as http:
            answer = http.post(f"{ADMIN}/revocations", json=revocation)
        assert answer.status_code == 201, answer.text

    def open(self, kind: str, token: str) -> Opened:
        self.names += 1
        return Opened(self.gateway, self.upstream, kind, token, f"{self.names}-{kind}")

    def reload(self, **sections: Any) -> None:
        said = sum("the configuration was reloaded" in line for line in self.gateway.lines)
        self.site.write_config(**{**self.sections, **sections})
        self.gateway.signal(signal.SIGHUP)
        self.gateway.line("the configuration was reloaded", after=said + self.workers - 1)

    @property
    def workers(self) -> int:
        return int(self.sections["listen"]["workers"])


def rbac(folder: str) -> dict[str, Any]:
    return {"chain": [{"name": "policy", "type": "rbac", "paths": [folder]}]}


@contextmanager
def serving(folder: Path, ca: trustme.CA, workers: int, *, by_review: bool) -> Iterator[Running]:
    site, reviews = Site(folder, ca), ReviewServer(ca)
    with HoldingUpstream() as upstream, reviews.running():
        review = {"type": "subject_access_review", "server": reviews.url, "ca": "ca.pem", "groups": []}
        # Time for a busy machine to confirm what goes on.
        authorization = {"chain": [{"name": "remote", **review}], "cacheTTL": "1s", "unconfirmed": "5s"}
        sections: dict[str, Any] = {
            "listen": {"workers": workers, "tls": None},
            "groups": [{"name": "teams", "type": "file", "path": "groups.yaml"}],
            "authorization": authorization if by_review else rbac("policy-0"),
            "upstreams": [
                {"name": "cluster", "server": upstream.url, "attributes": "kubernetes"},
                {"name": "app", "server": upstream.url, "prefix": "/app", "attributes": "http"},
            ],
        }
        users = [BOB, *(name_of(withdraw) for withdraw in WITHDRAWALS)]
        running = Running(site, site.serving(**sections), upstream, reviews, sections, users)
        site.users("root", *users)
        running.write_groups()
        running.write_policy()
        with running.gateway:
            yield running


class Gateways:
    """Each is started when it is first asked for: by its workers, and by whether it asks somebody else to decide."""

    def __init__(self, start: Callable[[int, bool], Running]) -> None:
        self._start = start
        self._running: dict[tuple[int, bool], Running] = {}

    def get(self, workers: int, *, by_review: bool) -> Running:
        key = (workers, by_review)
        if key not in self._running:
            self._running[key] = self._start(workers, by_review)
        return self._running[key]


@pytest.fixture(scope="module")
def gateways(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    with ExitStack() as stack:

        def start(workers: int, by_review: bool) -> Running:
            folder = tmp_path_factory.mktemp("gateway")
            return stack.enter_context(serving(folder, ca, workers, by_review=by_review))

        yield Gateways(start)


# --- what is withdrawn ---


def token(running: Running, login: Login) -> None:
    running.revoke(type="token", value=login.token)


def session(running: Running, login: Login) -> None:
    running.revoke(type="session", value=login.session)


def user(running: Running, login: Login) -> None:
    running.revoke(type="user", value=login.user)


def group(running: Running, login: Login) -> None:
    running.revoke(type="group", value=f"of-{login.user}")


def logout(running: Running, login: Login) -> None:
    with running.gateway.http(login.token) as http:
        assert http.post("/auth/logout").status_code < 300


def renewal_without_the_group(running: Running, login: Login) -> None:
    """The group was taken away at the identity system, and the session is renewed."""
    running.allowed.remove(login.user)
    running.write_groups()
    with running.gateway.http() as http:
        assert http.post("/auth/renew", data={"renewal_token": login.renewal_token}).status_code == 200


def policy_file(running: Running, login: Login) -> None:
    running.allowed.remove(login.user)
    running.write_policy()


def reload(running: Running, login: Login) -> None:
    """Another configuration, whose policy lacks the right."""
    running.folders += 1
    running.allowed.remove(login.user)
    running.write_policy()
    running.reload(authorization=rbac(running.folder))


def remote_policy(running: Running, login: Login) -> None:
    """A provider that cannot tell that its policy changed says no from now on."""

    def answer(review: dict[str, Any]) -> Response:
        return status(review, allowed=review["spec"]["user"] != login.user)

    running.reviews.answer = answer


def provider_gone(running: Running, login: Login) -> None:
    """The provider has no decision about this user any more, and none soon: it is not queried again meanwhile."""

    def answer(review: dict[str, Any]) -> Response:
        unavailable = Response(503, headers={"Retry-After": "3600"})
        return unavailable if review["spec"]["user"] == login.user else status(review, allowed=True)

    running.reviews.answer = answer


BY_FILES = (token, session, user, group, logout, renewal_without_the_group, policy_file, reload)
BY_REVIEW = (remote_policy, provider_gone)
WITHDRAWALS = (*BY_FILES, *BY_REVIEW)


def name_of(withdraw: Callable[[Running, Login], None]) -> str:
    """Who it is tried on."""
    return withdraw.__name__.replace("_", "-")


def cases() -> Iterator[ParameterSet]:
    """Two workers forward a withdrawal to each other; to a provider of its own each worker sends its own reviews."""
    for withdraw in WITHDRAWALS:
        for workers in (1, 2):
            quick = workers == (1 if withdraw in BY_REVIEW else 2)
            case = f"{name_of(withdraw)}, {workers} worker{'s' * (workers - 1)}"
            yield pytest.param(withdraw, workers, id=case, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("withdraw", "workers"), list(cases()))
def test_streams_end_when_access_is_withdrawn(
    gateways: Gateways, withdraw: Callable[[Running, Login], None], workers: int
) -> None:
    here = gateways.get(workers, by_review=withdraw in BY_REVIEW)
    login, bob = here.gateway.login(name_of(withdraw)), here.gateway.login(BOB)
    # A single worker is the process itself.
    processes = here.gateway.workers() or {here.gateway.pid}
    assert len(processes) == workers
    with ExitStack() as stack:

        def open_all(token: str) -> list[Opened]:
            opened = [stack.enter_context(closing(here.open(kind, token))) for kind in KINDS]
            for each in opened:
                each.wait_until_open()
            return opened

        theirs: list[Opened] = []
        for worker in processes:
            with only(worker, processes):
                theirs += open_all(login.token)
        others = open_all(bob.token)
        withdraw(here, login)
        for each in theirs:
            each.wait_until_ended()
        assert [each.name for each in others if not each.is_open()] == []


@contextmanager
def only(worker: int, workers: set[int]) -> Iterator[None]:
    """Whoever connects meanwhile is accepted by this worker: the others are stopped."""
    others = workers - {worker}
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)
