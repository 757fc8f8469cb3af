"""Which tokens a list of revoked credentials concerns: the same that `core.tokens.ends_token` ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session
from ostiary_gateway.issuer.claims import session_digest
from ostiary_gateway.issuer.deny_list import revoked_credentials
from ostiary_gateway.middleware.bearer import RevokedTokens
from ostiary_gateway.sessions import ends_token
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject
from ostiary_gateway.wire.token_introspection import TokenDescription

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES, IDS = st.sampled_from(["ann", "bob"]), st.sampled_from(["s1", "s2"])
GROUPS = st.sets(st.sampled_from(["dev", "ops"])).map(lambda groups: tuple(sorted(groups)))
ORIGINS = st.sampled_from(["0" * 64, "1" * 64])
DIGESTS = st.sampled_from([b"\x01" * 32, b"\x02" * 32])
# Whole seconds: a list has no others, and refuses what began within the same second.
TIMES = st.integers(-3, 0).map(lambda minutes: NOW + timedelta(minutes=minutes))
SEQUENCES = st.integers(1, 4)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    return Session(
        id=draw(IDS),
        user=UserInfo(draw(NAMES), groups=draw(GROUPS)),
        provider="staff",
        created_at=draw(TIMES),
        expires_at=NOW + timedelta(hours=1),
        sequence=draw(st.none() | SEQUENCES),
        origins=draw(st.sets(ORIGINS).map(tuple)),
    )


@st.composite
def revocations(draw: st.DrawFn, *, exact: bool = False) -> Revocation:
    """With *exact* none of a kind for which verifiers are told to refuse more than has ended."""
    kinds = [kind for kind in RevocationKind if not (exact and kind is RevocationKind.ORIGIN)]
    kind = draw(st.sampled_from(kinds))
    values = {
        RevocationKind.TOKEN: DIGESTS.map(bytes.hex),
        RevocationKind.SESSION: IDS,
        RevocationKind.USER: NAMES,
        RevocationKind.GROUP: st.sampled_from(["dev", "ops"]),
        RevocationKind.ORIGIN: ORIGINS,
        RevocationKind.BEFORE: st.just(""),
    }
    return Revocation(kind, draw(values[kind]), at=draw(st.none() | TIMES), sequence=draw(SEQUENCES), recorded_at=NOW)


@given(st.lists(revocations(exact=True), max_size=4), sessions(), DIGESTS)
def test_the_list_concerns_what_the_gateway_ends(logged: list[Revocation], session: Session, digest: bytes) -> None:
    """T3, at the other end of the wire."""
    listed = RevokedTokens(revoked_credentials(logged, issuer="", audiences=(), head=9, now=NOW))
    token = TokenDescription(
        session.user,
        session.expires_at,
        digest.hex(),
        session_digest(session.id),
        sequence=session.sequence or 0,
        began_at=int(session.created_at.timestamp()),
    )
    assert listed.concern(token) == any(ends_token(each, digest, session) for each in logged)


@given(st.lists(revocations(), max_size=6), sessions(), DIGESTS)
def test_what_was_summed_up_is_still_concerned(logged: list[Revocation], session: Session, digest: bytes) -> None:
    owned = [replace(each, owner=session.user.username) for each in logged]
    listed = RevokedTokens(revoked_credentials(owned, issuer="", audiences=(), head=9, now=NOW, most_of_user=1))
    opaque = TokenDescription(
        session.user,
        session.expires_at,
        digest.hex(),
        session_digest(session.id),
        sequence=session.sequence or 0,
        began_at=int(session.created_at.timestamp()),
    )
    # A JWT that they end was signed before.
    jwt = replace(opaque, issued_at=int(NOW.timestamp()))
    if any(ends_token(each, digest, session) for each in logged):
        assert listed.concern(opaque)
        assert listed.concern(jwt)


def test_the_rule_about_one_user_concerns_what_that_user_had_before() -> None:
    rule = RevokedSubject(username="ann", issued_until=100)
    revoked = RevokedTokens(RevokedCredentials("https://g", (), 9, subjects=(rule,)))
    opaque = TokenDescription(UserInfo("ann"), NOW, "id", "session")
    assert revoked.concern(opaque)
    assert not revoked.name(opaque)
    assert not revoked.concern(replace(opaque, user=UserInfo("bob")))
    assert revoked.name(replace(opaque, issued_at=100))
    assert not revoked.concern(replace(opaque, issued_at=101))


def test_a_list_that_was_too_long_concerns_everything_that_may_be_on_it() -> None:
    """A JWT by the time at which it was issued; an opaque token is asked about again."""
    revoked = RevokedTokens(RevokedCredentials("https://g", (), 9, issued_until=100))
    opaque = TokenDescription(UserInfo("ann"), NOW, "id", "session")
    assert revoked.concern(opaque)
    old, new = (TokenDescription(UserInfo("ann"), NOW, "id", "session", issued_at=at) for at in (100, 101))
    assert (revoked.concern(old), revoked.concern(new)) == (True, False)
