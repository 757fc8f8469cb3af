"""What revocations mean for JWTs that have not expired. Pure; called by the door that tells verifiers of them.

A revocation can concern a JWT only if that was signed before it, and a JWT lives 15 minutes at most. So a revocation
stays on the list for that long, and a little for clocks that differ. Each kind has its claim: a token its ``jti``, a
session its ``sid``, a user ``username``, a group ``groups``; ``sequence`` and ``auth_time`` say what began before. A
JWT does not say which sign-in at an identity system it came from: when such a sign-in ends, all older JWTs of its user
are refused. Whoever has another living session gets a new one.

The list is bounded for each user and in all, because anybody can sign in and out again and again. Of a user with more
revoked ids than the share, the newest stand there by id, and one rule (``username`` and ``iat``) stands for the others:
it also refuses older JWTs of the user's other sessions, and nobody else's. Where many users together have too many, the
share is smaller for all of them, so whoever has the most is summed up first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.issuer.claims import session_digest
from ostiary_gateway.issuer.keys import CLOCK_SKEW, LONGEST_LIFETIME
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, RevokedSubject

LISTED_FOR = LONGEST_LIFETIME + 2 * CLOCK_SKEW
# An API server compiles the list whenever it changes, and goes through it for every token that it has not seen lately.
MOST_LISTED = 5_000
# Enough for an account whose jobs sign out when they are done; ten of them do not fill the list.
MOST_LISTED_OF_USER = 500
# How far the clocks of replicas and of the token store may be apart. A longer time would refuse new JWTs for longer.
REPLICA_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _RevokedId:
    """A token or a session. `owner` is empty if nobody knows whose it was."""

    kind: RevocationKind
    value: str
    owner: str
    revoked_at: datetime


def revoked_credentials(
    revocations: Iterable[Revocation],
    *,
    issuer: str,
    audiences: tuple[str, ...],
    head: int,
    now: datetime,
    most: int = MOST_LISTED,
    most_of_user: int = MOST_LISTED_OF_USER,
) -> RevokedCredentials:
    """The list of what *revocations* end, with *most* entries, of which one user causes *most_of_user*.

    If it would be longer though each user has one rule: all JWTs that are older than the last revocation.
    """
    recent = [each for each in revocations if each.recorded_at is None or now - each.recorded_at <= LISTED_FOR]
    subjects = [*_subjects(recent), *_of_ended_origins(recent, now)]
    by_owner = _by_owner(_ids(recent, now))
    listed = list(by_owner.pop("", ()))
    share = _share(by_owner, room=most - len(subjects) - len(listed), most_of_user=most_of_user)
    if share is None:
        # Up to the last revocation, and not to this moment: the list stays the same until there is another one.
        until = max(each.recorded_at or now for each in recent)
        return RevokedCredentials(issuer, audiences, head, issued_until=_issued_until(until))
    for owner, ids in by_owner.items():
        # With the rule, the entries are as many as the share.
        summed_up = ids[: len(ids) - share + 1] if len(ids) > share else []
        if summed_up:
            until = max(each.revoked_at for each in summed_up)
            subjects.append(RevokedSubject(username=owner, issued_until=_issued_until(until)))
        listed += ids[len(summed_up) :]
    return RevokedCredentials(
        issuer,
        audiences,
        head,
        credential_ids=tuple(each.value for each in listed if each.kind is RevocationKind.TOKEN),
        sessions=tuple(session_digest(each.value) for each in listed if each.kind is RevocationKind.SESSION),
        subjects=tuple(subjects),
    )


def _issued_until(revoked_at: datetime) -> int:
    """Every JWT that this revocation ended says that it was issued at this time or before."""
    return int((revoked_at + REPLICA_SKEW).timestamp())


# --- one token, one session ---


def _ids(revocations: Iterable[Revocation], now: datetime) -> Iterable[_RevokedId]:
    """Each once, the oldest first."""
    ids: dict[tuple[RevocationKind, str], _RevokedId] = {}
    for each in revocations:
        if each.kind not in (RevocationKind.TOKEN, RevocationKind.SESSION):
            continue
        key, revoked_at = (each.kind, each.value), each.recorded_at or now
        before = ids.get(key)
        if before is None:
            ids[key] = _RevokedId(*key, each.owner, revoked_at)
        else:
            # Of two requests at once, one may not have known whose it was.
            ids[key] = _RevokedId(*key, before.owner or each.owner, max(before.revoked_at, revoked_at))
    return sorted(ids.values(), key=lambda each: each.revoked_at)


def _by_owner(ids: Iterable[_RevokedId]) -> dict[str, list[_RevokedId]]:
    by_owner: dict[str, list[_RevokedId]] = {}
    for each in ids:
        by_owner.setdefault(each.owner, []).append(each)
    return by_owner


def _share(by_owner: Mapping[str, list[_RevokedId]], *, room: int, most_of_user: int) -> int | None:
    """How many entries a user may have, at least one, so that those of all users fit; None if they do not."""

    def entries(share: int) -> int:
        return sum(min(len(ids), share) for ids in by_owner.values())

    largest = bisect_right(range(most_of_user + 1), room, key=entries) - 1
    return None if room < 0 or (by_owner and not largest) else largest


# --- users, groups, everything ---


def _subjects(revocations: Iterable[Revocation]) -> list[RevokedSubject]:
    """Without those that another one makes needless: who signs out everywhere ten times has one entry."""
    by_name: dict[tuple[str | None, str | None], list[RevokedSubject]] = {}
    for each in revocations:
        if each.kind in (RevocationKind.TOKEN, RevocationKind.SESSION, RevocationKind.ORIGIN):
            continue
        subject = _subject(each)
        kept = by_name.setdefault((subject.username, subject.group), [])
        if not any(_covers(other, subject) for other in kept):
            kept[:] = [*(other for other in kept if not _covers(subject, other)), subject]
    return [subject for kept in by_name.values() for subject in kept]


def _subject(revocation: Revocation) -> RevokedSubject:
    return RevokedSubject(
        username=revocation.value if revocation.kind is RevocationKind.USER else None,
        group=revocation.value if revocation.kind is RevocationKind.GROUP else None,
        # One without a number could not be stored yet: its time says what began before it.
        sequence=revocation.sequence or None,
        # Whole seconds: what began within the same second is refused, too.
        began_until=None if revocation.at is None else int(revocation.at.timestamp()),
    )


def _of_ended_origins(revocations: Iterable[Revocation], now: datetime) -> list[RevokedSubject]:
    """One for each user. Where no session came from an origin, it has no owner, and there is no JWT to refuse."""
    by_owner: dict[str, list[Revocation]] = {}
    for each in revocations:
        if each.kind is RevocationKind.ORIGIN and each.owner:
            by_owner.setdefault(each.owner, []).append(each)
    return [
        RevokedSubject(
            username=owner,
            # One that could not be stored yet is later than everything.
            sequence=max(each.sequence for each in ended) if all(each.sequence for each in ended) else None,
            issued_until=_issued_until(max(each.recorded_at or each.at or now for each in ended)),
        )
        for owner, ended in by_owner.items()
    ]


def _covers(one: RevokedSubject, other: RevokedSubject) -> bool:
    """Whether *one* refuses all that *other* refuses. Both name the same."""
    return _reaches(one.sequence, other.sequence) and _reaches(one.began_until, other.began_until)


def _reaches(limit: int | None, other: int | None) -> bool:
    return limit is None or (other is not None and limit >= other)
