"""A probe says which credential a registry takes, and sends none where it must not go."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme

from ostiary.conformance.probe import LARGEST_BODY, Answered, ProbeResult, ProbeSettings, probe
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.credentials import ImageCredential, Provenance, SourceKind
from ostiary.registry.image_name import ImageName, parse_image_name
from tests.support.http_server import HttpServer, Request, Response

CANARY = "c4n4ry-c4n4ry-c4n4ry"
TOKEN = "t0ken-t0ken"
SOURCE = Provenance(SourceKind.PROVIDER, "acme")
GOOD = ImageCredential("robot", Secret(CANARY), "127.0.0.1", SOURCE)
BAD = ImageCredential("robot", Secret("wrong-wrong"), "127.0.0.1", SOURCE)


class Registry(HttpServer):
    """A registry on loopback: Basic or Bearer, with its own token service, and one image."""

    def __init__(self, ca: trustme.CA | None = None) -> None:
        super().__init__(self._respond, tls=ca, hostname="127.0.0.1")
        self.scheme = "basic"
        self.realm = f"{self.url}/token"
        self.status = 401
        self.token_body: bytes | None = None

    @property
    def image(self) -> ImageName:
        return parse_image_name(f"127.0.0.1:{self.port}/team/app:1.0")

    @property
    def authorizations(self) -> list[str]:
        return [authorization(request) for request in self.requests]

    def _respond(self, request: Request) -> Response:
        if request.path == "/token":
            return self._token(request)
        if not self._admits(authorization(request)):
            challenge = f'Bearer realm="{self.realm}",service="local"'
            header = 'Basic realm="local"' if self.scheme == "basic" else challenge
            errors = {"errors": [{"code": "UNAUTHORIZED", "message": CANARY}]}
            return Response(self.status, errors, {"WWW-Authenticate": header})
        is_missing = "/manifests/" in request.path and request.path != "/v2/team/app/manifests/1.0"
        return Response(404) if is_missing else Response(200, {})

    def _admits(self, authorization: str) -> bool:
        if self.scheme == "none":
            return True
        wanted = f"Basic {b64encode(f'robot:{CANARY}'.encode()).decode()}"
        return authorization == (wanted if self.scheme == "basic" else f"Bearer {TOKEN}")

    def _token(self, request: Request) -> Response:
        given = b64decode(authorization(request).removeprefix("Basic ")).decode()
        good = given == f"robot:{CANARY}" or request.form.get("refresh_token") == CANARY
        scope = request.query.get("scope") or request.form.get("scope")
        if not good or scope != "repository:team/app:pull":
            return Response(401, {})
        return Response(200, {"token": TOKEN} if self.token_body is None else self.token_body)


def authorization(request: Request) -> str:
    return str(request.headers.get("Authorization", ""))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().running() as running:
        yield running


@pytest.fixture
def tls_registry(ca: trustme.CA) -> Iterator[Registry]:
    with Registry(ca).running() as running:
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
    (query,) = {request.query for request in registry.requests if request.path == "/token"}
    assert parse_qs(str(query)) == {
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
    (request,) = [request for request in registry.requests if request.method == "POST"]
    assert request.target == "/token"
    assert request.body
    assert "Authorization" not in request.headers


def test_a_registry_token_is_used_as_it_is(registry: Registry) -> None:
    registry.scheme = "bearer"
    found = ImageCredential("", Secret(""), "k", SOURCE, registry_token=Secret(TOKEN))
    assert answers(probe(registry.image, [found], settings=plain())) == [Answered.ACCEPTED]
    assert not any(request.path == "/token" for request in registry.requests)


@pytest.mark.parametrize(("tag", "said"), [("1.0", "the image exists"), ("9", "the image does not exist")])
def test_the_manifest_is_asked_for_with_head_and_nothing_is_pulled(registry: Registry, tag: str, said: str) -> None:
    image = parse_image_name(f"127.0.0.1:{registry.port}/team/app:{tag}")
    told = probe(image, [GOOD], settings=plain(manifest=True))
    assert answers(told) == [Answered.ACCEPTED]
    assert said in told.attempts[0].message
    last = registry.requests[-1]
    assert (last.method, last.target) == ("HEAD", f"/v2/team/app/manifests/{tag}")


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
    assert (told.reached, tls_registry.requests) == (False, [])


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
