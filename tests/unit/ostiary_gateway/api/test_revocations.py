"""What clusters that verify JWTs themselves are told of revocations."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary.wire.status import Answer
from ostiary_gateway.api.revocations import RevokedCredentialList, RevokedCredentialReviews
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.interfaces.token_store import Found, RevocationKind
from ostiary_gateway.issuer.claims import session_digest
from ostiary_gateway.issuer.deny_list import MOST_LISTED_OF_USER
from ostiary_gateway.issuer.issuer import JwtIssuer
from ostiary_gateway.issuer.keys import KeyRing, RingKey, SigningKey
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, decode_revoked_credentials

ANN = UserInfo("ann", "u1", ("dev",))
URL, AUDIENCE = "https://gateway.example", "https://prod.example"
CREDENTIAL, ISSUER = "authentication.kubernetes.io/credential-id", "ostiary.dev/issuer"


class OneKey:
    def __init__(self) -> None:
        key = SigningKey.generate()
        self.ring = KeyRing((RingKey(key.id, key.jwk, key),))

    async def refresh(self) -> None:
        pass

    async def rotate(self) -> bool:
        return False


class BreakableStore(SqliteTokenStore):
    broken = False

    async def find(self, digest: bytes) -> Found | None:
        if self.broken:
            raise ProviderError("the token store does not answer", cause="canary-cause")
        return await super().find(digest)


class World:
    def __init__(self, folder: Path) -> None:
        self.clock, self.metrics = FakeClock(), Metrics()
        self.store = BreakableStore(folder / "tokens.db", clock=self.clock)
        self.tokens = Tokens(self.store, clock=self.clock)
        self.authenticator = TokenAuthenticator(self.tokens, self.clock)
        self.issuer = JwtIssuer(
            URL, (AUDIENCE,), timedelta(minutes=10), OneKey(), self.tokens, clock=self.clock, metrics=self.metrics
        )
        self.reviews = RevokedCredentialReviews(self.authenticator, URL, self.metrics)
        self.listed = RevokedCredentialList(
            self.issuer, self.authenticator, self.tokens, clock=self.clock, metrics=self.metrics
        )

    async def credential(self) -> tuple[str, Found]:
        issued = await self.tokens.issue(ANN, provider="staff")
        stored = await self.tokens.find(issued.token.reveal())
        assert stored is not None
        return (await self.issuer.sign(stored, AUDIENCE)).credential_id, stored

    async def review(self, **extra: list[str]) -> dict[str, Any]:
        code, body = await answered(self.reviews.answer(review(extra)))
        assert code == 200
        status: dict[str, Any] = body["status"]
        return status

    async def list(self, query: str = "") -> RevokedCredentials:
        answer = await self.listed.answer(query)
        assert answer.code == 200
        return decode_revoked_credentials(json.loads(answer.body))


def review(extra: dict[str, list[str]], kind: str = "SubjectAccessReview") -> bytes:
    spec = {"user": "ann", "extra": extra, "resourceAttributes": {"verb": "get", "resource": "pods"}}
    return json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}).encode()


async def answered(answer: Answer | Awaitable[Answer]) -> tuple[int, dict[str, Any]]:
    result = await answer if inspect.isawaitable(answer) else answer
    return result.code, json.loads(result.body)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.store.close()


# --- the review ---


async def test_a_living_credential_gets_no_opinion_and_is_never_allowed(world: World) -> None:
    credential, _ = await world.credential()
    assert await world.review(**{CREDENTIAL: [f"JTI={credential}"]}) == {"allowed": False}


async def test_the_second_time_it_is_answered_from_memory(world: World) -> None:
    credential, _ = await world.credential()
    await world.review(**{CREDENTIAL: [f"JTI={credential}"]})
    world.store.broken = True
    assert isinstance(world.reviews.answer(review({CREDENTIAL: [f"JTI={credential}"]})), Answer)


@pytest.mark.parametrize("kind", [RevocationKind.TOKEN, RevocationKind.SESSION, RevocationKind.USER])
async def test_a_revoked_credential_is_denied(world: World, kind: RevocationKind) -> None:
    credential, stored = await world.credential()
    value = {RevocationKind.TOKEN: credential, RevocationKind.SESSION: stored.session.id, RevocationKind.USER: "ann"}
    await world.review(**{CREDENTIAL: [f"JTI={credential}"]})
    await world.tokens.revoke(kind, value[kind])
    await world.authenticator.feed.confirm()
    status = await world.review(**{CREDENTIAL: [f"JTI={credential}"]})
    assert (status["allowed"], status["denied"]) == (False, True)
    assert world.metrics.credential_reviews.values == {("no_opinion",): 1, ("denied",): 1}


async def test_an_expired_credential_is_denied(world: World) -> None:
    credential, _ = await world.credential()
    world.clock.advance(minutes=10)
    assert (await world.review(**{CREDENTIAL: [f"JTI={credential}"]}))["denied"] is True


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {CREDENTIAL: ["JTI=8e1f6c0a-5c7c-4f7e-9e3b-1d2c3b4a5f60"]},
        {CREDENTIAL: ["X509SHA256=" + "a" * 64]},
        {CREDENTIAL: ["JTI=" + "A" * 64]},
        {ISSUER: ["https://other.example"]},
    ],
    ids=["nothing", "service account", "certificate", "capitals", "another issuer"],
)
async def test_users_of_others_get_no_opinion(world: World, extra: dict[str, list[str]]) -> None:
    assert await world.review(**extra) == {"allowed": False}


@pytest.mark.parametrize("ids", [[], ["JTI=x"], ["JTI=" + "a" * 64, "JTI=" + "b" * 64]], ids=str)
async def test_a_user_of_our_issuer_without_one_usable_id_is_denied(world: World, ids: list[str]) -> None:
    assert (await world.review(**{ISSUER: [URL], CREDENTIAL: ids}))["denied"] is True


async def test_could_not_ask_is_no_answer(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.store.broken = True
    code, body = await answered(world.reviews.answer(review({CREDENTIAL: ["JTI=" + "a" * 64]})))
    assert code == 500
    assert "canary" not in json.dumps(body)


@pytest.mark.parametrize("body", [b"", b"{}", review({}, kind="SelfSubjectAccessReview")])
async def test_what_is_no_review_is_a_bad_request(world: World, body: bytes) -> None:
    code, _ = await answered(world.reviews.answer(body))
    assert code == 400


# --- the list ---


async def test_the_list_has_what_was_revoked_also_if_sign_ins_are_allowed_again(world: World) -> None:
    credential, stored = await world.credential()
    await world.tokens.revoke(RevocationKind.TOKEN, credential)
    await world.tokens.revoke(RevocationKind.SESSION, stored.session.id)
    await world.tokens.revoke(RevocationKind.USER, "ann")
    await world.tokens.undo(RevocationKind.USER, "ann")
    listed = await world.list()
    assert (listed.issuer, listed.audiences, listed.head) == (URL, (AUDIENCE,), 3)
    assert listed.credential_ids == (credential,)
    assert listed.sessions == (session_digest(stored.session.id),)
    assert [(each.username, each.sequence) for each in listed.subjects] == [("ann", 3)]
    assert world.metrics.revoked_credentials.values == {(): 3}


async def test_a_user_who_signs_in_and_out_all_the_time_ends_nobody_elses_jwts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the store: it knows whose sessions they were."""
    for _ in range(MOST_LISTED_OF_USER + 5):
        session = (await world.tokens.issue(UserInfo("mallory"), provider="staff")).session
        await world.tokens.end_session(session, by="logout of mallory")
    listed = await world.list()
    assert (len(listed), listed.issued_until) == (MOST_LISTED_OF_USER, None)
    assert [each.username for each in listed.subjects] == ["mallory"]
    await world.list()
    told = [record for record in caplog.records if "older JWTs" in record.message]
    assert [record.__dict__["users"] for record in told] == [["mallory"]]


async def test_what_the_store_could_not_write_down_is_on_the_list(world: World) -> None:
    from ostiary_gateway.interfaces.token_store import Revocation

    world.tokens.unsaved.add(Revocation(RevocationKind.USER, "ann", world.clock.now()))
    assert [(each.username, each.sequence) for each in (await world.list()).subjects] == [("ann", None)]


async def test_whoever_waits_is_answered_as_soon_as_something_is_revoked(world: World) -> None:
    await world.authenticator.feed.confirm()
    waiting = asyncio.create_task(world.list("after=0"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await world.tokens.revoke(RevocationKind.USER, "ann")
    await world.authenticator.feed.confirm()
    async with asyncio.timeout(30):
        assert (await waiting).head == 1
        # Nothing is waited for if there is something new already, nor for what is no number.
        assert (await world.list("after=0")).head == (await world.list("after=x")).head == 1


async def test_a_list_that_cannot_be_read_is_no_empty_list(world: World) -> None:
    await world.store.close()
    assert (await world.listed.answer("")).code == 503
