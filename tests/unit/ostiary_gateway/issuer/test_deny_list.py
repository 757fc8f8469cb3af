"""What revocations mean for JWTs: the list is compared with what a token store does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session
from ostiary_gateway.issuer.claims import claims_of, session_digest
from ostiary_gateway.issuer.deny_list import LISTED_FOR, MOST_LISTED_OF_USER, REPLICA_SKEW, revoked_credentials
from ostiary_gateway.sessions import ends_token
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANN = UserInfo("ann", "u1", ("dev", "ops"))
SHARE = 10


def listed(*revocations: Revocation, now: datetime = NOW, most: int = 100) -> RevokedCredentials:
    return revoked_credentials(
        revocations, issuer="iss", audiences=("aud",), head=99, now=now, most=most, most_of_user=SHARE
    )


def revocation(kind: RevocationKind, value: str = "", *, number: int = 10, at: datetime | None = None) -> Revocation:
    return Revocation(kind, value, at, "operator", number, NOW)


def is_denied(claims: dict[str, object], revoked: RevokedCredentials) -> bool:
    """What the CEL of `wire.apiserver_config` says, in Python."""
    sequence, began, groups = claims["sequence"], claims["auth_time"], claims["groups"]
    assert isinstance(sequence, int)
    assert isinstance(began, int)
    assert isinstance(groups, list)
    issued = claims["iat"]
    assert isinstance(issued, int)
    return (
        claims["jti"] in revoked.credential_ids
        or claims["sid"] in revoked.sessions
        or any(
            (each.username is None or each.username == claims["username"])
            and (each.group is None or each.group in groups)
            and (each.sequence is None or sequence < each.sequence)
            and (each.began_until is None or began <= each.began_until)
            and (each.issued_until is None or issued <= each.issued_until)
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


def test_a_jwt_is_denied_exactly_when_the_store_would_end_its_token(subtests: pytest.Subtests) -> None:
    ages = [timedelta(hours=1), timedelta(minutes=30), timedelta(minutes=5)]
    for each, age, sequence in itertools.product(REVOCATIONS, ages, [9, 10, 11]):
        with subtests.test(f"{each.kind.value}-{each.value[:6]}-{each.at}", age=age, sequence=sequence):
            session = Session("session-1", ANN, "staff", NOW - age, NOW + timedelta(hours=1), sequence=sequence)
            claims = claims_of(
                session,
                issuer="iss",
                audience="aud",
                credential_id=DIGEST.hex(),
                now=NOW,
                expires_at=NOW + timedelta(minutes=9),
            )
            assert is_denied(claims, listed(each)) == ends_token(each, DIGEST, session)


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
    nameless = [revocation(RevocationKind.SESSION, f"session-{number}") for number in range(101)]
    assert listed(*nameless[:100]).issued_until is None
    full = listed(*nameless)
    assert (len(full), full.issued_until) == (0, int((NOW + REPLICA_SKEW).timestamp()))
    # It does not move with the time: JWTs that are asked for afterwards are good.
    assert listed(*nameless, now=NOW + timedelta(minutes=5)).issued_until == full.issued_until


def test_session_ids_do_not_leave_the_gateway() -> None:
    assert "session-1" not in repr(listed(revocation(RevocationKind.SESSION, "session-1")))


# --- one user's flood ---


def many(owner: str, count: int, *, kind: RevocationKind = RevocationKind.SESSION) -> list[Revocation]:
    """Revocations of one user, one a second until now."""
    return [
        Revocation(
            kind,
            f"{owner}-{number}",
            by=f"logout of {owner}",
            sequence=number + 1,
            recorded_at=NOW - timedelta(seconds=count - 1 - number),
            owner=owner,
        )
        for number in range(count)
    ]


def jwt_of(name: str, *, session: str = "living", age: timedelta = timedelta(minutes=5)) -> dict[str, object]:
    began = NOW - timedelta(hours=1)
    return claims_of(
        Session(session, UserInfo(name), "staff", began, NOW + timedelta(hours=1), sequence=0),
        issuer="iss",
        audience="aud",
        credential_id=f"jwt of {session}",
        now=NOW - age,
        expires_at=NOW + timedelta(minutes=9),
    )


@pytest.mark.parametrize("kind", [RevocationKind.SESSION, RevocationKind.TOKEN])
def test_a_user_who_revokes_more_than_fits_harms_nobody_else(kind: RevocationKind) -> None:
    flood = listed(*many("mallory", 900, kind=kind))
    assert flood.issued_until is None
    assert not is_denied(jwt_of("ann"), flood)
    assert is_denied(jwt_of("mallory", age=timedelta(minutes=14)), flood)


def test_everything_that_the_greedy_user_revoked_is_refused_and_the_newest_by_id() -> None:
    flood = many("mallory", 900)
    short = listed(*flood)
    assert len(short) == SHARE
    for number, each in enumerate(flood):
        assert each.recorded_at is not None
        # Signed until the moment at which it was revoked.
        claims = jwt_of("mallory", session=each.value, age=NOW - each.recorded_at)
        assert is_denied(claims, short), number
    # What was signed a moment ago, in a session that lives, is good.
    assert not is_denied(jwt_of("mallory", age=timedelta(0)), short)


def test_one_user_has_only_a_share_of_the_list_even_if_there_is_room() -> None:
    short = revoked_credentials(
        many("mallory", MOST_LISTED_OF_USER + 1), issuer="iss", audiences=("aud",), head=1, now=NOW
    )
    assert len(short) == MOST_LISTED_OF_USER
    (rule,) = short.subjects
    assert (rule.username, rule.sequence, rule.began_until) == ("mallory", None, None)
    exact = many("mallory", MOST_LISTED_OF_USER)
    full = revoked_credentials(exact, issuer="iss", audiences=("aud",), head=1, now=NOW)
    assert (len(full.sessions), full.subjects) == (MOST_LISTED_OF_USER, ())


def test_the_greediest_users_are_summed_up_first() -> None:
    short = listed(*many("mallory", 300), *many("eve", 200), *many("ann", 3), *many("bob", 1), most=50)
    assert short.issued_until is None
    assert len(short) <= 50
    assert {each.username for each in short.subjects} == {"mallory", "eve"}
    assert {session_digest(f"ann-{number}") for number in range(3)} <= set(short.sessions)
    assert session_digest("bob-0") in short.sessions


def test_only_too_many_users_at_once_end_everything() -> None:
    users = [each for number in range(100) for each in many(f"user{number}", 5)]
    assert listed(*users, most=100).issued_until is None
    assert {each.username for each in listed(*users, most=100).subjects} == {f"user{number}" for number in range(100)}
    assert listed(*users, most=99).issued_until is not None


def test_who_logs_out_everywhere_again_and_again_has_one_entry() -> None:
    again = [revocation(RevocationKind.USER, "mallory", number=number) for number in range(1, 500)]
    short = listed(*again, revocation(RevocationKind.USER, "ann", number=3))
    assert [(each.username, each.sequence) for each in short.subjects] == [("mallory", 499), ("ann", 3)]


def test_a_revocation_that_ends_more_takes_the_place_of_others_and_no_other_one_does() -> None:
    half_past = NOW - timedelta(minutes=30)
    short = listed(
        revocation(RevocationKind.GROUP, "ops", number=1),
        revocation(RevocationKind.GROUP, "ops", number=5, at=half_past),
        revocation(RevocationKind.GROUP, "ops", number=4, at=half_past),
        revocation(RevocationKind.USER, "ops", number=0, at=NOW),
    )
    assert {(each.group, each.username, each.sequence, each.began_until) for each in short.subjects} == {
        ("ops", None, 1, None),
        ("ops", None, 5, int(half_past.timestamp())),
        (None, "ops", None, int(NOW.timestamp())),
    }


def test_a_second_revocation_whose_owner_is_not_known_counts_as_the_owners() -> None:
    """Two requests at once, or a worker that only had the id."""
    flood = many("mallory", 300)
    nameless = [replace(each, owner="") for each in flood]
    assert len(listed(*flood, *nameless)) == len(listed(*nameless, *flood)) == SHARE


def test_a_sign_in_that_ended_refuses_the_jwts_that_its_user_had_until_then() -> None:
    ended = replace(revocation(RevocationKind.ORIGIN, DIGEST.hex()), owner="ann")
    later = replace(ended, sequence=12, value=bytes(32).hex())
    (rule,) = listed(ended, later, replace(ended, owner="")).subjects
    assert (rule.username, rule.group, rule.sequence) == ("ann", None, 12)
    assert rule.issued_until == int((NOW + REPLICA_SKEW).timestamp())
    began, expires = NOW - timedelta(hours=1), NOW + timedelta(minutes=9)
    for user, sequence, issued, denied in (
        (ANN, 9, NOW, True),
        (ANN, 12, NOW, False),
        (ANN, 9, NOW + timedelta(seconds=6), False),
        (UserInfo("bob"), 9, NOW, False),
    ):
        session = Session("s1", user, "staff", began, NOW + timedelta(hours=1), sequence=sequence)
        claims = claims_of(session, issuer="iss", audience="aud", credential_id="x", now=issued, expires_at=expires)
        assert is_denied(claims, listed(ended, later)) is denied


def test_a_sign_in_of_which_nothing_was_there_is_not_on_the_list() -> None:
    assert len(listed(revocation(RevocationKind.ORIGIN, DIGEST.hex()))) == 0
