"""Asking another server: a real one, over TLS on loopback."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.catalog import Context
from ostiary_gateway.providers.subject_access_review import (
    ATTEMPTS,
    ReviewTls,
    SubjectAccessReviewAuthorization,
    review_url,
)
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.authorization import MAX_BYTES
from tests.support.http_server import Response
from tests.support.review_server import ReviewServer, status

CANARY = "ost_canary-token-0123456789"
ALICE = UserInfo("alice", "u1", ("dev",), (("scopes", ("a",)),))
POD = RequestInfo(
    "list",
    "GET",
    "/api/v1/namespaces/dev/pods",
    True,
    api_version="v1",
    namespace="dev",
    resource="pods",
    label_selector=(Requirement("tier", "In", ("web",)),),
)
QUESTION = Attributes(ALICE, POD)

Make = Callable[..., SubjectAccessReviewAuthorization]


@pytest.fixture(scope="module")
def one_server(ca: trustme.CA) -> Iterator[ReviewServer]:
    with ReviewServer(ca).running() as server:
        yield server


@pytest.fixture
def server(one_server: ReviewServer) -> ReviewServer:
    one_server.requests.clear()
    one_server.answer = lambda review: status(review, allowed=True)
    return one_server


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
async def make(server: ReviewServer, ca: trustme.CA, tmp_path: Path, pauses: list[float]) -> AsyncIterator[Make]:
    (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
    made: list[SubjectAccessReviewAuthorization] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def make(**options: Any) -> SubjectAccessReviewAuthorization:
        url = options.pop("server", server.url)
        options.setdefault("tls", ReviewTls(ca=tmp_path / "ca.pem"))
        made.append(SubjectAccessReviewAuthorization(url, pause=pause, **options))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


# --- what is asked, and what the answer means ---


@pytest.mark.parametrize(("version", "groups"), [("v1", "groups"), ("v1beta1", "group")])
async def test_it_asks_what_kubernetes_would_ask(server: ReviewServer, make: Make, version: str, groups: str) -> None:
    """2.4, S12: the path of an API server, the version's spelling, and everything that matters (T1)."""
    assert (await make(version=version).authorize(QUESTION)).allowed
    (request,) = server.requests
    assert request.path == f"/apis/authorization.k8s.io/{version}/subjectaccessreviews"
    assert request.json["apiVersion"] == f"authorization.k8s.io/{version}"
    assert request.json["spec"] == {
        "resourceAttributes": {
            "namespace": "dev",
            "verb": "list",
            "version": "v1",
            "resource": "pods",
            "labelSelector": {"requirements": [{"key": "tier", "operator": "In", "values": ["web"]}]},
        },
        "user": "alice",
        "uid": "u1",
        groups: ["dev", "system:authenticated"],
        "extra": {"scopes": ["a"]},
    }


@pytest.mark.parametrize(
    ("said", "decision"),
    [
        ({"allowed": True, "reason": "yes"}, Decision(Verdict.ALLOW, "yes")),
        ({"allowed": False, "denied": True, "reason": "no"}, Decision(Verdict.DENY, "no")),
        ({"allowed": False}, Decision(Verdict.NO_OPINION)),
    ],
)
async def test_the_answer_is_the_decision(
    server: ReviewServer, make: Make, said: dict[str, Any], decision: Decision
) -> None:
    """2.4, S50, S52."""
    server.answer = lambda review: status(review, code=200, **said)
    assert await make().authorize(QUESTION) == decision


async def test_refusals_without_an_opinion_are_hidden_if_told_so(server: ReviewServer, make: Make) -> None:
    """S51, S54: the review cannot say "not found", so a setting does."""
    server.answer = lambda review: status(review, allowed=False)
    assert (await make(hide=True).authorize(QUESTION)).hidden
    assert not (await make().authorize(QUESTION)).hidden
    assert not (await make(hide=True).authorize(Attributes(ALICE, RequestInfo("get", "GET", "/x")))).hidden
    server.answer = lambda review: status(review, allowed=True)
    assert not (await make(hide=True).authorize(QUESTION)).hidden


async def test_a_url_with_a_path_is_used_as_it_is(server: ReviewServer, make: Make) -> None:
    await make(server=f"{server.url}/webhooks/authorize?x=1").authorize(QUESTION)
    assert server.requests[0].target == "/webhooks/authorize?x=1"


async def test_the_settings_say_which_groups_are_relevant(make: Make) -> None:
    """S35: it cannot be known from here."""
    assert await make(groups=["dev", "ops"]).relevant_groups() == {"dev", "ops"}
    assert await make().relevant_groups() == frozenset()


# --- who we are to the other side ---


async def test_the_token_is_read_anew_for_every_question(server: ReviewServer, make: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    provider = make(token_file=token)
    for text in ("first", "second\n"):
        token.write_text(text)
        await provider.authorize(QUESTION)
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("content", [None, b"", b"a b", b"a\nb", b"\xff"])
async def test_without_a_usable_token_nothing_is_asked(
    server: ReviewServer, make: Make, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(ProviderError) as caught:
        await make(token_file=tmp_path / "token").authorize(QUESTION)
    assert caught.value.code == "token-file-unreadable"
    assert server.requests == []


async def test_a_rotated_client_certificate_is_presented(
    ca: trustme.CA, make: Make, tmp_path: Path, client_certificate: Callable[[str], tuple[str, str]], clock: FakeClock
) -> None:
    files = ReviewTls(tmp_path / "ca.pem", tmp_path / "tls.crt", tmp_path / "tls.key")

    def write(name: str) -> None:
        for file, pem in zip(("tls.crt", "tls.key"), client_certificate(name), strict=True):
            (tmp_path / f"{file}.new").write_text(pem)
            os.replace(tmp_path / f"{file}.new", tmp_path / file)

    with ReviewServer(ca, client_certificates=ssl.CERT_REQUIRED).running() as strict:
        write("first")
        provider = make(server=strict.url, tls=files, clock=clock)
        await provider.authorize(QUESTION)
        write("second")
        clock.advance(1)
        await provider.authorize(QUESTION)
        (tmp_path / "tls.key").write_text("half a file")
        clock.advance(1)
        await provider.authorize(QUESTION)
    assert [request.certificate for request in strict.requests] == ["first", "second", "second"]


# --- when there is no answer ---


async def test_a_server_that_is_not_trusted_is_not_asked(server: ReviewServer, make: Make, tmp_path: Path) -> None:
    """S53, T6: and asking again would not help."""
    (tmp_path / "other.pem").write_bytes(trustme.CA().cert_pem.bytes())
    with pytest.raises(ProviderError, match="is unavailable") as caught:
        await make(tls=ReviewTls(ca=tmp_path / "other.pem")).authorize(QUESTION)
    assert "not trusted" in str(caught.value)
    assert server.requests == []


async def test_the_name_in_the_certificate_counts(server: ReviewServer, make: Make, tmp_path: Path) -> None:
    with pytest.raises(ProviderError):
        await make(server=server.url.replace("localhost", "127.0.0.1")).authorize(QUESTION)
    tls = ReviewTls(ca=tmp_path / "ca.pem", server_name="localhost")
    assert (await make(server=server.url.replace("localhost", "127.0.0.1"), tls=tls).authorize(QUESTION)).allowed


@pytest.mark.parametrize(
    "reply", [Response(500), Response(503), Response(504), Response(429), Response(404, headers={"Retry-After": "2"})]
)
async def test_what_may_pass_is_tried_again_and_pauses_grow(
    server: ReviewServer, make: Make, pauses: list[float], reply: Response
) -> None:
    """2.3, 2.4: five attempts from 500 ms, each pause half as long again."""
    replies = [reply, reply, reply, reply]
    server.answer = lambda review: replies.pop() if replies else status(review, allowed=True)
    assert (await make().authorize(QUESTION)).allowed
    least = 2.0 if reply.headers else 0.0
    assert pauses == [max(least, wait) for wait in (0.5, 0.75, 1.125, 1.6875)]


async def test_a_dropped_connection_is_tried_again(server: ReviewServer, make: Make, pauses: list[float]) -> None:
    """A review changes nothing on the other side, so asking twice is safe."""
    drops = [None, None]
    server.answer = lambda review: drops.pop() if drops else status(review, allowed=True)
    assert (await make().authorize(QUESTION)).allowed
    assert len(pauses) == 2


async def test_it_gives_up_in_the_end(server: ReviewServer, make: Make, pauses: list[float]) -> None:
    """S53, T5."""
    server.answer = lambda review: Response(503, CANARY.encode())
    with pytest.raises(ProviderError) as caught:
        await make().authorize(QUESTION)
    assert "status 503" in str(caught.value)
    assert CANARY not in str(caught.value)
    assert (len(server.requests), len(pauses)) == (ATTEMPTS, ATTEMPTS - 1)


async def test_a_server_that_wants_a_long_pause_is_not_waited_for(
    server: ReviewServer, make: Make, pauses: list[float]
) -> None:
    server.answer = lambda review: Response(429, headers={"Retry-After": "3600"})
    with pytest.raises(ProviderError, match="is unavailable"):
        await make().authorize(QUESTION)
    assert pauses == []


@pytest.mark.parametrize("code", [301, 307, 400, 401, 403, 404])
async def test_a_refused_review_is_no_refusal_of_the_user(server: ReviewServer, make: Make, code: int) -> None:
    """S53: 401 and 403 are about the gateway. Redirects are not followed."""
    server.answer = lambda review: Response(code, headers={"Location": f"{server.url}/elsewhere"})
    with pytest.raises(ProviderError) as caught:
        await make().authorize(QUESTION)
    assert f"status {code}" in str(caught.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda review: status(review, allowed=True, denied=True),
        status,
        lambda review: Response(200, b"{}"),
        lambda review: Response(200, f"<html>{CANARY}".encode()),
        lambda review: Response(200, b" " * (MAX_BYTES + 1)),
        lambda review: status({**review, "apiVersion": "authorization.k8s.io/v1beta1"}, allowed=True),
        lambda review: status({**review, "kind": "Status"}, allowed=True),
    ],
)
async def test_an_unclear_answer_is_no_decision(
    server: ReviewServer, make: Make, answer: Callable[[dict[str, Any]], Response]
) -> None:
    """2.4, T5: both allowed and denied is an error, and so is anything that is no answer."""
    server.answer = answer
    with pytest.raises(ProviderError) as caught:
        await make().authorize(QUESTION)
    assert CANARY not in str(caught.value)


async def test_a_server_that_is_away_is_an_error(make: Make) -> None:
    with pytest.raises(ProviderError, match="is unavailable"):
        await make(server="https://localhost:1").authorize(QUESTION)


async def test_the_time_is_bounded(server: ReviewServer, ca: trustme.CA, tmp_path: Path, make: Make) -> None:
    server.answer = lambda review: Response(503)
    (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
    provider = SubjectAccessReviewAuthorization(server.url, tls=ReviewTls(ca=tmp_path / "ca.pem"), timeout=0.3)
    with pytest.raises(ProviderError, match="is unavailable") as caught:
        await provider.authorize(QUESTION)
    assert "within 0.3 seconds" in str(caught.value)
    await provider.close()


async def test_the_token_is_in_no_error(server: ReviewServer, make: Make, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(CANARY)
    server.answer = lambda review: Response(403, CANARY.encode())
    provider = make(token_file=tmp_path / "token")
    with pytest.raises(ProviderError) as caught:
        await provider.authorize(QUESTION)
    assert CANARY not in f"{caught.value}{caught.value!r}{provider!r}{caught.value.__cause__!r}"


async def test_in_a_chain_many_questions_are_one(server: ReviewServer, make: Make) -> None:
    """S4, S44."""
    authorizer = Authorizer([Link("cluster", make())])
    for _ in range(20):
        assert (await authorizer.authorize(QUESTION)).allowed
    assert len(server.requests) == 1


# --- settings ---


def test_only_a_plain_https_url_will_do(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "http://h",
        "h:443",
        "https://",
        "https://u:secret@h",
        "https://h:99999",
        "ftp://h",
        "https://h/#x",
        "https://[x",
    ]
    for url in cases:
        with subtests.test(url=url):
            with pytest.raises(ConfigurationError) as caught:
                review_url(url, "v1")
            assert "secret" not in str(caught.value)


def from_yaml(text: str, directory: Path) -> list[str]:
    reading = ConfigReader(parse(text))
    SubjectAccessReviewAuthorization.from_config(reading.root, Context(directory=directory))
    return [f"{problem.place.path}: {problem.message}" for problem in reading.problems]


def test_settings_are_read(tmp_path: Path, ca: trustme.CA) -> None:
    (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
    good = "{server: https://h, ca: ca.pem, tokenFile: t, timeout: 3s, version: v1beta1, groups: [a], hide: true}"
    assert from_yaml(good, tmp_path) == []


def test_wrong_settings_are_told_where_they_stand(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases = [
        ("{}", "server: "),
        ("{server: http://h}", "server: "),
        ("{server: https://h, version: v2}", "version: "),
        ("{server: https://h, timeout: soon}", "timeout: "),
        ("{server: https://h, timeout: 0s}", "timeout: "),
        ("{server: https://h, ca: absent}", "ca: "),
        ("{server: https://h, ca: bad}", "ca: "),
        ("{server: https://h, certificate: bad}", "certificate: "),
        ("{server: https://h, certificate: bad, key: bad}", "certificate: "),
    ]
    for text, where in cases:
        with subtests.test(text=text, where=where):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "bad").write_text("not pem")
            (problem,) = from_yaml(text, tmp_path)
            assert problem.startswith(where)
