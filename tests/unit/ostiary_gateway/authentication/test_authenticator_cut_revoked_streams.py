"""A revocation reaches the streams that were opened with what it ends, and no others."""

from __future__ import annotations

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationKind
from ostiary_gateway.sessions import Issued, Tokens, digest, origins_of
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN, BOB = UserInfo("ann", groups=("dev",)), UserInfo("bob")


class Store(MemoryTokenStore):
    """Can be made to fail."""

    failing = False

    async def find(self, token_digest: bytes) -> Found | None:
        if self.failing:
            raise ProviderError("the token store cannot be used")
        return await super().find(token_digest)


class Stream:
    was_cut = False

    def cut(self) -> None:
        self.was_cut = True


class Site:
    """A token store and the tokens of it that are in use here."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Store(clock=self.clock)
        self.tokens = Tokens(self.store, clock=self.clock)
        self.told: list[tuple[RevocationKind, int]] = []
        self.authenticator = TokenAuthenticator(
            self.tokens, self.clock, on_revoked=lambda revocation, cut: self.told.append((revocation.kind, cut))
        )

    async def stream(self, user: UserInfo) -> tuple[Issued, CachedToken, Stream]:
        origins = origins_of("staff", session_id=f"session of {user.username}", subject="")
        issued, stream = await self.tokens.issue(user, provider="staff", origins=origins), Stream()
        token = await self.authenticator.find(digest(issued.token.reveal()))
        assert token is not None
        self.authenticator.in_use.add_stream(token, stream)
        return issued, token, stream

    async def revoke(self, kind: RevocationKind, value: str) -> None:
        await self.tokens.revoke(kind, value)
        await self.authenticator.feed.confirm()


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize(
    "kind",
    [
        RevocationKind.TOKEN,
        RevocationKind.SESSION,
        RevocationKind.USER,
        RevocationKind.GROUP,
        RevocationKind.ORIGIN,
    ],
)
async def test_a_revocation_cuts_the_streams_of_what_it_ends_and_no_others(site: Site, kind: RevocationKind) -> None:
    issued, token, stream = await site.stream(ANN)
    _, others_token, others_stream = await site.stream(BOB)
    value = {
        RevocationKind.TOKEN: token.digest.hex(),
        RevocationKind.SESSION: issued.session.id,
        RevocationKind.USER: "ann",
        RevocationKind.GROUP: "dev",
        RevocationKind.ORIGIN: issued.session.origins[0],
    }[kind]
    await site.revoke(kind, value)
    assert (stream.was_cut, others_stream.was_cut) == (True, False)
    assert site.authenticator.recall(token.digest) is None
    assert site.authenticator.recall(others_token.digest) is others_token
    assert site.told == [(kind, 1)]


async def test_what_began_after_the_revocation_goes_on(site: Site) -> None:
    await site.authenticator.feed.confirm()
    await site.tokens.revoke(RevocationKind.USER, "ann")
    site.clock.advance(1)
    _, token, stream = await site.stream(ANN)
    await site.authenticator.feed.confirm()
    assert (token.revoked, stream.was_cut) == (False, False)


async def test_the_stream_of_an_expired_token_is_cut_with_its_session(site: Site) -> None:
    issued, _, stream = await site.stream(ANN)
    site.clock.advance(site.tokens.lifetime.total_seconds())
    site.authenticator.tick()
    await site.revoke(RevocationKind.USER, "bob")
    assert not stream.was_cut
    await site.revoke(RevocationKind.SESSION, issued.session.id)
    assert stream.was_cut


async def test_while_the_store_cannot_be_asked_nothing_is_trusted_and_nothing_is_lost(site: Site) -> None:
    _, token, stream = await site.stream(ANN)
    await site.tokens.revoke(RevocationKind.USER, "ann")
    site.store.failing = True
    with pytest.raises(ProviderError):
        await site.authenticator.feed.confirm()
    assert site.authenticator.recall(token.digest) is None
    site.store.failing = False
    await site.authenticator.feed.confirm()
    assert stream.was_cut


async def test_a_look_up_that_a_revocation_overtakes_is_made_again(site: Site) -> None:
    issued = await site.tokens.issue(ANN, provider="staff")
    await site.authenticator.feed.confirm()
    looked_up = 0
    find = site.store.find

    async def overtaken(token_digest: bytes) -> Found | None:
        nonlocal looked_up
        looked_up += 1
        found = await find(token_digest)
        if looked_up == 1:
            site.store.find = find  # type: ignore[method-assign]
            await site.revoke(RevocationKind.USER, "ann")
        return found

    site.store.find = overtaken  # type: ignore[method-assign]
    assert await site.authenticator.find(digest(issued.token.reveal())) is None


async def test_what_the_store_could_not_write_down_ends_at_once(site: Site) -> None:
    _, token, stream = await site.stream(ANN)
    _, _, others_stream = await site.stream(BOB)
    site.store.failing = True
    site.authenticator.end_at_once(Revocation(RevocationKind.USER, "ann", None, ""))
    assert (token.revoked, stream.was_cut, others_stream.was_cut) == (True, True, False)
    assert site.authenticator.recall(token.digest) is None
