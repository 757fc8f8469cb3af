"""What revocations mean for JWTs: the list is compared with what a token store does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ostiary.core.tokens import ends_token
from ostiary.gateway.issuer.claims import claims_of, session_digest
from ostiary.gateway.issuer.deny_list import LISTED_FOR, REPLICA_SKEW, revoked_credentials
from ostiary.interfaces.token_store import Revocation, RevocationKind, Session
from ostiary.model import UserInfo
from ostiary.wire.revoked_credentials import RevokedCredentials

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANN = UserInfo("ann", "u1", ("dev", "ops"))


def listed(*revocations: Revocation, now: datetime = NOW, most: int = 100) -> RevokedCredentials:
    return revoked_credentials(revocations, issuer="iss", audiences=("aud",), head=99, now=now, most=most)


def revocation(kind: RevocationKind, value: str = "", *, number: int = 10, at: datetime | None = None) -> Revocation:
    return Revocation(kind, value, at, "operator", number, NOW)


def is_denied(claims: dict[str, object], revoked: RevokedCredentials) -> bool:
    """What the CEL of `wire.apiserver_config` says, in Python."""
    sequence, began, groups = claims["sequence"], claims["auth_time"], claims["groups"]
    assert isinstance(sequence, int)
    assert isinstance(began, int)
    assert isinstance(groups, list)
    return (
        claims["jti"] in revoked.credential_ids
        or claims["sid"] in revoked.sessions
        or any(
            (each.username is None or each.username == claims["username"])
            and (each.group is None or each.group in groups)
            and (each.sequence is None or sequence < each.sequence)
            and (each.began_until is None or began <= each.began_until)
            for each in revoked.subjects
        )
    )


DIGEST = bytes(range(32))
REVOCATIONS = [
    revocation(RevocationKind.TOKEN, DIGEST.hex()),
    revocation(RevocationKind.TOKEN, bytes(32).hex()),
    revocation(RevocationKind.SESSION, "session-1"),
    revocation(RevocationKind.SESSION, "session-2"),
    revocation(RevocationKind.USER, "ann"),
    revocation(RevocationKind.USER, "bob"),
    revocation(RevocationKind.USER, "ann", at=NOW - timedelta(minutes=30)),
    revocation(RevocationKind.USER, "ann", number=0, at=NOW),
    revocation(RevocationKind.GROUP, "ops"),
    revocation(RevocationKind.GROUP, "other"),
    revocation(RevocationKind.BEFORE),
    revocation(RevocationKind.BEFORE, at=NOW - timedelta(minutes=30)),
]


@pytest.mark.parametrize("sequence", [9, 10, 11])
@pytest.mark.parametrize("began", [NOW - timedelta(hours=1), NOW - timedelta(minutes=30), NOW - timedelta(minutes=5)])
@pytest.mark.parametrize("revocation", REVOCATIONS, ids=lambda each: f"{each.kind.value}-{each.value[:6]}-{each.at}")
def test_a_jwt_is_denied_exactly_when_the_store_would_end_its_token(
    revocation: Revocation, began: datetime, sequence: int
) -> None:
    session = Session("session-1", ANN, "staff", began, NOW + timedelta(hours=1), sequence=sequence)
    claims = claims_of(
        session,
        issuer="iss",
        audience="aud",
        credential_id=DIGEST.hex(),
        now=NOW,
        expires_at=NOW + timedelta(minutes=9),
    )
    assert is_denied(claims, listed(revocation)) == ends_token(revocation, DIGEST, session)


def test_a_revocation_leaves_the_list_when_no_jwt_of_before_can_be_alive() -> None:
    one = revocation(RevocationKind.SESSION, "session-1")
    assert listed(one, now=NOW + LISTED_FOR).sessions == (session_digest("session-1"),)
    assert len(listed(one, now=NOW + LISTED_FOR + timedelta(seconds=1))) == 0


def test_what_the_store_could_not_write_down_stays_on_the_list() -> None:
    unsaved = Revocation(RevocationKind.SESSION, "session-1", NOW)
    assert listed(unsaved, now=NOW + timedelta(days=1)).sessions == (session_digest("session-1"),)


def test_the_same_revocation_stands_there_once() -> None:
    again = [
        revocation(RevocationKind.SESSION, "session-1"),
        revocation(RevocationKind.SESSION, "session-1", number=11),
    ]
    assert len(listed(*again)) == 1


def test_a_list_that_would_be_too_long_refuses_all_jwts_up_to_the_last_revocation() -> None:
    many = [revocation(RevocationKind.SESSION, f"session-{number}") for number in range(101)]
    assert listed(*many[:100]).issued_until is None
    full = listed(*many)
    assert (len(full), full.issued_until) == (0, int((NOW + REPLICA_SKEW).timestamp()))
    # It does not move with the time: JWTs that are asked for afterwards are good.
    assert listed(*many, now=NOW + timedelta(minutes=5)).issued_until == full.issued_until


def test_session_ids_do_not_leave_the_gateway() -> None:
    assert "session-1" not in repr(listed(revocation(RevocationKind.SESSION, "session-1")))
