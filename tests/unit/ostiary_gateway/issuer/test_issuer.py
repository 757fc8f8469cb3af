"""Who gets a JWT, what it says, and what the store knows of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Found, RevocationKind
from ostiary_gateway.issuer.issuer import (
    FRESH_SECONDS,
    JWTS_PER_MINUTE,
    JWTS_PER_MINUTE_OF_USER,
    AudienceRefused,
    JwtIssuer,
)
from ostiary_gateway.issuer.keys import KeyRing, RingKey, SigningKey
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", "u1", ("dev",))
URL, AUDIENCE = "https://gateway.example", "https://prod.example"


class FixedKeys:
    """One key, or what goes wrong with it."""

    def __init__(self, key: SigningKey) -> None:
        self.ring = KeyRing()
        self.next = KeyRing((RingKey(key.id, key.jwk, key),))
        self.failure: OstiaryError | None = None
        self.slow = False
        self.reads = 0

    async def refresh(self) -> None:
        self.reads += 1
        if self.slow:
            await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        self.ring = self.next

    async def rotate(self) -> bool:
        return False


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def keys() -> FixedKeys:
    return FixedKeys(SigningKey.generate())


@pytest.fixture
def issuer(keys: FixedKeys, tokens: Tokens, clock: FakeClock) -> JwtIssuer:
    return JwtIssuer(URL, (AUDIENCE,), timedelta(minutes=10), keys, tokens, clock=clock)


async def signed_in(tokens: Tokens, user: UserInfo = ANN) -> Found:
    issued = await tokens.issue(user, provider="staff")
    stored = await tokens.find(issued.token.reveal())
    assert stored is not None
    return stored


async def claims(issuer: JwtIssuer, text: str) -> Mapping[str, Any]:
    keys: Any = await issuer.key_set()
    return jwt.decode(text, KeySet.import_key_set(keys), algorithms=["ES256"]).claims


async def test_a_jwt_says_who_it_is_and_for_whom(issuer: JwtIssuer, tokens: Tokens, clock: FakeClock) -> None:
    stored = await signed_in(tokens)
    signed = await issuer.sign(stored, AUDIENCE)
    now = int(clock.now().timestamp())
    said = dict(await claims(issuer, signed.token.reveal()))
    assert len(said.pop("sid")) == 64
    assert stored.session.id not in str(said)
    assert said == {
        "iss": URL,
        "sub": "ann",
        "aud": [AUDIENCE],
        "exp": now + 600,
        "nbf": now,
        "iat": now,
        "jti": signed.credential_id,
        "auth_time": now,
        "sequence": 0,
        "username": "ann",
        "uid": "u1",
        "groups": ["dev"],
    }


async def test_the_store_knows_a_jwt_by_its_id_until_it_is_revoked(issuer: JwtIssuer, tokens: Tokens) -> None:
    stored = await signed_in(tokens)
    first, second = [await issuer.sign(stored, AUDIENCE) for _ in range(2)]
    assert first.credential_id != second.credential_id
    assert await tokens.find_digest(bytes.fromhex(first.credential_id)) is not None
    await tokens.revoke(RevocationKind.TOKEN, first.credential_id)
    assert await tokens.find_digest(bytes.fromhex(first.credential_id)) is None
    assert await tokens.find_digest(bytes.fromhex(second.credential_id)) is not None
    await tokens.revoke(RevocationKind.USER, "ann")
    assert await tokens.find_digest(bytes.fromhex(second.credential_id)) is None


async def test_a_jwt_ends_with_its_session_and_can_be_asked_for_a_shorter_time(
    issuer: JwtIssuer, tokens: Tokens, clock: FakeClock
) -> None:
    stored = await signed_in(tokens)
    short = await issuer.sign(stored, AUDIENCE, timedelta(minutes=2))
    assert short.expires_at == clock.now() + timedelta(minutes=2)
    long = await issuer.sign(stored, AUDIENCE, timedelta(hours=5))
    assert long.expires_at == clock.now() + timedelta(minutes=10)
    clock.advance(hours=23, minutes=55)
    assert (await issuer.sign(stored, AUDIENCE)).expires_at == stored.session.expires_at


@pytest.mark.parametrize("audience", ["", "https://other.example", AUDIENCE + "/"])
async def test_an_audience_that_is_not_configured_gets_none(issuer: JwtIssuer, tokens: Tokens, audience: str) -> None:
    before = await tokens.store.count()
    stored = await signed_in(tokens)
    with pytest.raises(AudienceRefused):
        await issuer.sign(stored, audience)
    assert await tokens.store.count() == before + 2


async def test_a_narrowed_token_gets_none(issuer: JwtIssuer, tokens: Tokens) -> None:
    stored = await signed_in(tokens)
    narrowed = await tokens.mint(stored.session, lifetime=timedelta(minutes=5), delegation="less")
    presented = await tokens.find(narrowed.token.reveal())
    assert presented is not None
    with pytest.raises(LoginRefused) as caught:
        await issuer.sign(presented, AUDIENCE)
    assert caught.value.code == "issuer-narrowed-token"


@pytest.mark.parametrize(
    "user",
    [UserInfo("system:serviceaccount:shop:deployer"), UserInfo("ann", groups=("system:serviceaccounts",))],
    ids=str,
)
async def test_a_name_that_is_another_account_in_each_cluster_is_in_no_jwt(
    issuer: JwtIssuer, tokens: Tokens, user: UserInfo
) -> None:
    stored = await signed_in(tokens, user)
    before = await tokens.store.count()
    with pytest.raises(LoginRefused) as caught:
        await issuer.sign(stored, AUDIENCE)
    assert "service account" in caught.value.summary
    assert await tokens.store.count() == before


async def test_a_session_that_ended_meanwhile_gets_none(issuer: JwtIssuer, tokens: Tokens) -> None:
    stored = await signed_in(tokens)
    await tokens.revoke(RevocationKind.SESSION, stored.session.id)
    with pytest.raises(LoginRefused):
        await issuer.sign(stored, AUDIENCE)


async def test_a_group_that_a_renewal_took_away_is_in_no_later_jwt(issuer: JwtIssuer, tokens: Tokens) -> None:
    from ostiary_gateway.sessions import Attested

    issued = await tokens.issue(ANN, provider="staff")
    stored = await tokens.find(issued.token.reveal())
    assert stored is not None
    before = await issuer.sign(stored, AUDIENCE)

    async def recheck(session: object) -> Attested:
        return Attested(UserInfo("ann", "u1", ()))

    await tokens.renew(issued.renewal.reveal(), recheck)
    assert await tokens.find_digest(bytes.fromhex(before.credential_id)) is None
    after = await issuer.sign(stored, AUDIENCE)
    assert (await claims(issuer, after.token.reveal()))["groups"] == []


async def test_one_session_gets_so_many_and_another_one_still_some(issuer: JwtIssuer, tokens: Tokens) -> None:
    stored = await signed_in(tokens)
    for _ in range(int(JWTS_PER_MINUTE)):
        await issuer.sign(stored, AUDIENCE)
    with pytest.raises(LoginRefused) as caught:
        await issuer.sign(stored, AUDIENCE)
    assert caught.value.retry_after
    await issuer.sign(await signed_in(tokens), AUDIENCE)


async def test_one_user_gets_so_many_however_often_they_sign_in(
    issuer: JwtIssuer, tokens: Tokens, clock: FakeClock
) -> None:
    for _ in range(int(JWTS_PER_MINUTE_OF_USER / JWTS_PER_MINUTE)):
        stored = await signed_in(tokens)
        for _ in range(int(JWTS_PER_MINUTE)):
            await issuer.sign(stored, AUDIENCE)
    with pytest.raises(LoginRefused, match="too many JWTs for one user") as caught:
        await issuer.sign(await signed_in(tokens), AUDIENCE)
    assert caught.value.retry_after
    other = await tokens.issue(UserInfo("bob"), provider="staff")
    stored_of_other = await tokens.find(other.token.reveal())
    assert stored_of_other is not None
    await issuer.sign(stored_of_other, AUDIENCE)
    clock.advance(1)
    await issuer.sign(await signed_in(tokens), AUDIENCE)


async def test_without_a_key_whose_time_it_is_nothing_is_signed(
    issuer: JwtIssuer, tokens: Tokens, keys: FixedKeys, clock: FakeClock
) -> None:
    stored = await signed_in(tokens)
    key = keys.next.keys[0]
    end = clock.now() + timedelta(minutes=1)
    keys.next = KeyRing((RingKey(key.id, key.jwk, key.private, signs_until=end),))
    await issuer.sign(stored, AUDIENCE)
    clock.advance(minutes=1)
    keys.failure = ProviderError("the token store is away", code="token-store-unavailable")
    with pytest.raises(ProviderError):
        await issuer.sign(stored, AUDIENCE)
    # Whoever verifies what was signed before still gets the key.
    published: Any = await issuer.key_set()
    assert [each["kid"] for each in published["keys"]] == [key.id]


async def test_a_key_that_cannot_be_opened_signs_nothing(issuer: JwtIssuer, tokens: Tokens, keys: FixedKeys) -> None:
    key = keys.next.keys[0]
    keys.next = KeyRing((RingKey(key.id, key.jwk, None),))
    with pytest.raises(ProviderError) as caught:
        await issuer.sign(await signed_in(tokens), AUDIENCE)
    assert caught.value.code == "issuer-key-unusable"
    assert issuer.trouble


async def test_the_key_set_is_read_at_most_once_a_second_and_told_from_memory_while_it_cannot_be(
    issuer: JwtIssuer, keys: FixedKeys, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = await issuer.key_set()
    assert await issuer.key_set() == first
    assert (keys.reads, issuer.trouble) == (1, "")
    clock.advance(FRESH_SECONDS)
    keys.failure = ProviderError("the token store is away", cause="it does not answer")
    with caplog.at_level(logging.ERROR):
        assert await issuer.key_set() == first
        assert await issuer.key_set() == first
    assert issuer.trouble == "it does not answer"
    assert [record.message for record in caplog.records] == ["the signing keys of the issuer cannot be read or rotated"]


@pytest.mark.parametrize("failure", [None, ProviderError("the token store is away")])
async def test_many_who_ask_for_the_key_set_at_once_wait_for_one_reading(
    issuer: JwtIssuer, keys: FixedKeys, clock: FakeClock, failure: OstiaryError | None
) -> None:
    first = await issuer.key_set()
    clock.advance(FRESH_SECONDS)
    keys.failure, keys.slow = failure, True
    assert await asyncio.gather(*(issuer.key_set() for _ in range(50))) == [first] * 50
    # The first one's, and one that began after all the others had asked.
    assert keys.reads == 3, "the documents are public: requests must not become as many questions to the token store"
    keys.failure = None
    clock.advance(FRESH_SECONDS)
    assert await issuer.key_set() == first
    assert keys.reads == 4


async def test_a_key_set_that_was_never_read_is_not_an_empty_one(issuer: JwtIssuer, keys: FixedKeys) -> None:
    keys.failure = ProviderError("the token store is away")
    with pytest.raises(ProviderError):
        await issuer.key_set()


async def test_nothing_secret_is_shown(issuer: JwtIssuer, tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        signed = await issuer.sign(await signed_in(tokens), AUDIENCE)
    assert signed.token.reveal() not in f"{signed!r}{caplog.text}"


async def test_an_upstream_is_told_about_a_user_by_a_short_jwt_that_the_store_does_not_know(
    tokens: Tokens, clock: FakeClock
) -> None:
    key = SigningKey.generate()
    keys = FixedKeys(key)
    issuer = JwtIssuer(URL, [AUDIENCE], timedelta(minutes=10), keys, tokens, clock=clock)
    session = (await tokens.issue(ANN, provider="staff")).session
    with pytest.raises(ProviderError):
        issuer.sign_assertion(session, ANN, "wiki")
    await issuer.key_set()
    before = await tokens.store.count()
    text = issuer.sign_assertion(session, UserInfo("ann", groups=("dev", "ops")), "wiki")
    claims: dict[str, Any] = dict(jwt.decode(text, KeySet.import_key_set(await issuer.key_set()), ["ES256"]).claims)  # type: ignore[arg-type]
    assert (claims["iss"], claims["sub"], claims["aud"], claims["groups"]) == (URL, "ann", ["wiki"], ["dev", "ops"])
    assert claims["exp"] - claims["iat"] == 60
    assert session.id not in text
    assert await tokens.store.count() == before
