"""A probe says which credential a registry takes, and sends none where it must not go."""

from __future__ import annotations

import json
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.check.probe import LARGEST_BODY, Answered, ProbeResult, ProbeSettings, probe
from ostiary.registry.credentials import ImageCredential, Provenance, SourceKind
from ostiary.registry.matching.image_name import ImageName, parse_image_name

CANARY = "c4n4ry-c4n4ry-c4n4ry"
TOKEN = "t0ken-t0ken"
SOURCE = Provenance(SourceKind.PROVIDER, "acme")
GOOD = ImageCredential("robot", Secret(CANARY), "127.0.0.1", SOURCE)
BAD = ImageCredential("robot", Secret("wrong-wrong"), "127.0.0.1", SOURCE)


class Registry:
    """A registry on loopback: Basic or Bearer, with its own token service, and one image."""

    def __init__(self) -> None:
        self.scheme = "basic"
        self.realm = ""
        self.status = 401
        self.token_body: bytes | None = None
        self.seen: list[tuple[str, str, str]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self, "")

            def do_POST(self) -> None:
                registry.answer(self, self.rfile.read(int(self.headers["Content-Length"])).decode())

            def do_HEAD(self) -> None:
                registry.answer(self, "")

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.plain = True

    @property
    def url(self) -> str:
        return f"{'http' if self.plain else 'https'}://127.0.0.1:{self.port}"

    @property
    def image(self) -> ImageName:
        return parse_image_name(f"127.0.0.1:{self.port}/team/app:1.0")

    @property
    def authorizations(self) -> list[str]:
        return [authorization for _, _, authorization in self.seen]

    @contextmanager
    def running(self) -> Iterator[Registry]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, form: str) -> None:
        authorization = request.headers.get("Authorization", "")
        url = urlsplit(request.path)
        self.seen.append((request.command, request.path + (f" {form}" if form else ""), authorization))
        if url.path == "/token":
            self._token(request, parse_qs(url.query), parse_qs(form), authorization)
        elif not self._is_good(authorization):
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": CANARY}]}
            challenge = f'Bearer realm="{self.realm or self.url + "/token"}",service="local"'
            header = 'Basic realm="local"' if self.scheme == "basic" else challenge
            self._send(request, self.status, json.dumps(errors).encode(), header)
        elif "/manifests/" in url.path and url.path != "/v2/team/app/manifests/1.0":
            self._send(request, 404)
        else:
            self._send(request, 200, b"{}")

    def _is_good(self, authorization: str) -> bool:
        if self.scheme == "none":
            return True
        wanted = f"Basic {b64encode(f'robot:{CANARY}'.encode()).decode()}"
        return authorization == (wanted if self.scheme == "basic" else f"Bearer {TOKEN}")

    def _token(
        self, request: BaseHTTPRequestHandler, query: dict[str, Any], form: dict[str, Any], authorization: str
    ) -> None:
        given = b64decode(authorization.removeprefix("Basic ")).decode() if authorization else ""
        good = given == f"robot:{CANARY}" or form.get("refresh_token") == [CANARY]
        scope = (query.get("scope") or form.get("scope") or [""])[0]
        if not good or scope != "repository:team/app:pull":
            self._send(request, 401, b"{}")
            return
        body = self.token_body if self.token_body is not None else json.dumps({"token": TOKEN}).encode()
        self._send(request, 200, body)

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes = b"", challenge: str = "") -> None:
        request.send_response(status)
        if challenge:
            request.send_header("WWW-Authenticate", challenge)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().running() as running:
        yield running


@pytest.fixture
def tls_registry(ca: trustme.CA) -> Iterator[Registry]:
    made = Registry()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    made.server.socket = context.wrap_socket(made.server.socket, server_side=True)
    made.plain = False
    with made.running() as running:
        yield running


def answers(told: ProbeResult) -> list[Answered]:
    return [attempt.answered for attempt in told.attempts]


def plain(**options: Any) -> ProbeSettings:
    return ProbeSettings(plain_http=True, **options)


def test_a_basic_registry_takes_the_good_one_and_refuses_the_other(registry: Registry) -> None:
    told = probe(registry.image, [BAD, GOOD], settings=plain())
    assert (told.reached, told.challenge, answers(told)) == (True, "basic", [Answered.REJECTED, Answered.ACCEPTED])
    assert told.ok
    assert "UNAUTHORIZED" in told.attempts[0].message
    assert CANARY not in repr(told)


def test_on_this_machine_plain_http_is_found_out_without_an_option(registry: Registry) -> None:
    told = probe(registry.image, [GOOD])
    assert (told.registry, answers(told)) == (registry.url, [Answered.ACCEPTED])


def test_a_token_is_asked_for_with_the_scope_of_the_image(registry: Registry) -> None:
    registry.scheme = "bearer"
    told = probe(registry.image, [BAD, GOOD], settings=plain())
    assert answers(told) == [Answered.REJECTED, Answered.ACCEPTED]
    (path,) = {path for _, path, _ in registry.seen if path.startswith("/token")}
    assert parse_qs(urlsplit(path).query) == {
        "account": ["robot"],
        "service": ["local"],
        "scope": ["repository:team/app:pull"],
    }
    assert registry.authorizations[-1] == f"Bearer {TOKEN}"
    assert TOKEN not in repr(told)


def test_an_identity_token_is_exchanged_in_the_body_of_a_post(registry: Registry) -> None:
    registry.scheme = "bearer"
    found = ImageCredential("<token>", Secret(""), "k", SOURCE, identity_token=Secret(CANARY))
    assert answers(probe(registry.image, [found], settings=plain())) == [Answered.ACCEPTED]
    ((path, authorization),) = [(path, word) for method, path, word in registry.seen if method == "POST"]
    assert path.startswith("/token ")
    assert authorization == ""


def test_a_registry_token_is_used_as_it_is(registry: Registry) -> None:
    registry.scheme = "bearer"
    found = ImageCredential("", Secret(""), "k", SOURCE, registry_token=Secret(TOKEN))
    assert answers(probe(registry.image, [found], settings=plain())) == [Answered.ACCEPTED]
    assert not any(path.startswith("/token") for _, path, _ in registry.seen)


@pytest.mark.parametrize(("tag", "said"), [("1.0", "the image exists"), ("9", "the image does not exist")])
def test_the_manifest_is_asked_for_with_head_and_nothing_is_pulled(registry: Registry, tag: str, said: str) -> None:
    image = parse_image_name(f"127.0.0.1:{registry.port}/team/app:{tag}")
    told = probe(image, [GOOD], settings=plain(manifest=True))
    assert answers(told) == [Answered.ACCEPTED]
    assert said in told.attempts[0].message
    assert registry.seen[-1][:2] == ("HEAD", f"/v2/team/app/manifests/{tag}")


def test_without_a_credential_the_registry_is_asked_without_one(registry: Registry) -> None:
    assert answers(probe(registry.image, [], settings=plain())) == [Answered.REJECTED]
    registry.scheme = "none"
    assert answers(probe(registry.image, [], settings=plain())) == [Answered.ACCEPTED]
    assert set(registry.authorizations) == {""}


def test_what_is_no_registry_gets_no_credential(registry: Registry) -> None:
    registry.status = 404
    told = probe(registry.image, [GOOD], settings=plain())
    assert (told.reached, told.attempts, registry.authorizations) == (False, (), [""])
    assert "404" in told.message


def test_a_redirection_is_not_followed(registry: Registry) -> None:
    registry.status = 302
    assert not probe(registry.image, [GOOD], settings=plain()).reached


@pytest.mark.parametrize(
    ("body", "said"), [(b"{}", "usable token"), (b'{"token":"a\\r\\nX: y"}', "usable token"), (b"[", "usable token")]
)
def test_a_token_service_without_a_token_has_failed(registry: Registry, body: bytes, said: str) -> None:
    registry.scheme, registry.token_body = "bearer", body
    told = probe(registry.image, [GOOD], settings=plain())
    assert answers(told) == [Answered.FAILED]
    assert said in told.attempts[0].message


def test_an_answer_without_end_is_cut_off(registry: Registry) -> None:
    registry.scheme, registry.token_body = "bearer", b" " * (LARGEST_BODY + 100_000)
    told = probe(registry.image, [GOOD], settings=plain())
    assert answers(told) == [Answered.FAILED]
    assert "more than" in told.attempts[0].message


# --- where no credential goes ---


def test_https_is_used_with_the_given_authority(tls_registry: Registry, ca: trustme.CA) -> None:
    settings = ProbeSettings(authorities_pem=ca.cert_pem.bytes().decode())
    told = probe(tls_registry.image, [GOOD], settings=settings)
    assert (told.registry, answers(told)) == (tls_registry.url, [Answered.ACCEPTED])


def test_a_certificate_that_is_not_trusted_ends_it_before_a_credential_is_sent(tls_registry: Registry) -> None:
    told = probe(tls_registry.image, [GOOD])
    assert (told.reached, tls_registry.seen) == (False, [])


@pytest.mark.parametrize("realm", ["http://127.0.0.1:1/token", "http://token.example.com/token"])
def test_a_registry_on_https_may_not_send_the_credential_to_plain_http(
    tls_registry: Registry, ca: trustme.CA, realm: str
) -> None:
    tls_registry.scheme, tls_registry.realm = "bearer", realm
    settings = ProbeSettings(authorities_pem=ca.cert_pem.bytes().decode(), plain_http=False)
    told = probe(tls_registry.image, [GOOD], settings=settings)
    assert answers(told) == [Answered.NOT_TRIED]
    assert "plain http" in told.attempts[0].message
    assert set(tls_registry.authorizations) == {""}


@pytest.mark.parametrize(
    "realm",
    ["http://token.example.com/token", "ftp://127.0.0.1/", "https://u:p@127.0.0.1/token", "token", "http://[/"],
)
def test_a_realm_that_is_elsewhere_or_odd_gets_no_credential(registry: Registry, realm: str) -> None:
    registry.scheme, registry.realm = "bearer", realm
    told = probe(registry.image, [GOOD])
    assert answers(told) == [Answered.NOT_TRIED]
    assert set(registry.authorizations) == {""}


def test_a_registry_that_cannot_be_reached_is_told(registry: Registry) -> None:
    told = probe(parse_image_name("127.0.0.1:1/team/app"), [GOOD])
    assert not told.reached
    assert "refused" in told.message
    assert not probe(parse_image_name("127.0.0.1:99999/team/app"), [GOOD]).reached


def test_a_name_without_a_registry_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        probe(ImageName("", "my_host.io/app"), [])
