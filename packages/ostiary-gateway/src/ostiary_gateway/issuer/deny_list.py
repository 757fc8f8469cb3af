"""The list of revoked credentials for clusters and backends that verify JWTs themselves. Pure.

A revocation affects only JWTs that were signed before it, and a JWT lives for at most 15 minutes. A revocation stays on
the list for that time plus an allowance for clock skew. `revoked_credentials` describes the entries and their limits.
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
# An API server compiles the list whenever it changes, and scans it for every token that it has not cached.
MOST_LISTED = 5_000
# Enough for an account whose jobs sign out when they end; ten such accounts do not fill the list.
MOST_LISTED_OF_USER = 500
# Maximum clock skew between replicas and the token store. A larger value would reject new JWTs for longer.
REPLICA_SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _RevokedId:
    """A revoked token or session. `owner` is empty if it is unknown."""

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
    """Return the list for *revocations*, with at most *most* entries, of which one user causes at most *most_of_user*.

    Each kind of revocation matches a claim: a token ``jti``, a session ``sid``, a user ``username``, a group
    ``groups``; ``sequence`` and ``auth_time`` say what began before it. A JWT has no claim for its sign-in at the IdP:
    when such a sign-in ends, all older JWTs of its user are rejected. A user with another live session gets a new JWT.

    The list is bounded because any user can sign in and out repeatedly. If a user has more revoked ids than the share,
    the newest are listed by id, and one rule (``username`` and ``iat``) covers the others. The rule also rejects older
    JWTs of the user's other sessions, but of no other user. If the list would still be too long, the share shrinks for
    all users, which affects those with the most entries first. If one rule per user is still too many, the list rejects
    all JWTs that are older than the last revocation.
    """
    recent = [each for each in revocations if each.recorded_at is None or now - each.recorded_at <= LISTED_FOR]
    subjects = [*_subjects(recent), *_of_ended_origins(recent, now)]
    by_owner = _by_owner(_ids(recent, now))
    listed = list(by_owner.pop("", ()))
    share = _share(by_owner, room=most - len(subjects) - len(listed), most_of_user=most_of_user)
    if share is None:
        # The time of the last revocation, not the current time: the list must change only with a revocation.
        until = max(each.recorded_at or now for each in recent)
        return RevokedCredentials(issuer, audiences, head, issued_until=_issued_until(until))
    for owner, ids in by_owner.items():
        # The rule and the remaining ids are exactly *share* entries.
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
    """Return an upper bound of the ``iat`` of all JWTs that this revocation ended."""
    return int((revoked_at + REPLICA_SKEW).timestamp())


# --- one token, one session ---


def _ids(revocations: Iterable[Revocation], now: datetime) -> Iterable[_RevokedId]:
    """Return each revoked id once, oldest first."""
    ids: dict[tuple[RevocationKind, str], _RevokedId] = {}
    for each in revocations:
        if each.kind not in (RevocationKind.TOKEN, RevocationKind.SESSION):
            continue
        key, revoked_at = (each.kind, each.value), each.recorded_at or now
        before = ids.get(key)
        if before is None:
            ids[key] = _RevokedId(*key, each.owner, revoked_at)
        else:
            # One of two concurrent revocations may not have known the owner.
            ids[key] = _RevokedId(*key, before.owner or each.owner, max(before.revoked_at, revoked_at))
    return sorted(ids.values(), key=lambda each: each.revoked_at)


def _by_owner(ids: Iterable[_RevokedId]) -> dict[str, list[_RevokedId]]:
    by_owner: dict[str, list[_RevokedId]] = {}
    for each in ids:
        by_owner.setdefault(each.owner, []).append(each)
    return by_owner


def _share(by_owner: Mapping[str, list[_RevokedId]], *, room: int, most_of_user: int) -> int | None:
    """Return the largest number of entries per user, at least one, with which all users fit; None if none does."""

    def entries(share: int) -> int:
        return sum(min(len(ids), share) for ids in by_owner.values())

    largest = bisect_right(range(most_of_user + 1), room, key=entries) - 1
    return None if room < 0 or (by_owner and not largest) else largest


# --- users, groups, everything ---


def _subjects(revocations: Iterable[Revocation]) -> list[RevokedSubject]:
    """Return the entries of users, groups and everything, without those that another entry covers.

    A user who signs out everywhere ten times has one entry.
    """
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
        # A revocation without a number is not stored yet: its time says what began before it.
        sequence=revocation.sequence or None,
        # Whole seconds: a session that began within the same second is rejected, too.
        began_until=None if revocation.at is None else int(revocation.at.timestamp()),
    )


def _of_ended_origins(revocations: Iterable[Revocation], now: datetime) -> list[RevokedSubject]:
    """Return one entry per user. An origin without sessions has no owner, and there is no JWT to reject."""
    by_owner: dict[str, list[Revocation]] = {}
    for each in revocations:
        if each.kind is RevocationKind.ORIGIN and each.owner:
            by_owner.setdefault(each.owner, []).append(each)
    return [
        RevokedSubject(
            username=owner,
            # A revocation that is not stored yet is later than all others.
            sequence=max(each.sequence for each in ended) if all(each.sequence for each in ended) else None,
            issued_until=_issued_until(max(each.recorded_at or each.at or now for each in ended)),
        )
        for owner, ended in by_owner.items()
    ]


def _covers(one: RevokedSubject, other: RevokedSubject) -> bool:
    """Whether *one* rejects all that *other* rejects. Both have the same user or group."""
    return _reaches(one.sequence, other.sequence) and _reaches(one.began_until, other.began_until)


def _reaches(limit: int | None, other: int | None) -> bool:
    return limit is None or (other is not None and limit >= other)
