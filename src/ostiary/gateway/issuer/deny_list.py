"""What revocations mean for JWTs that have not expired. Pure; called by the door that tells verifiers of them.

A revocation can concern a JWT only if that was signed before it, and a JWT lives 15 minutes at most. So a revocation
stays on the list for that long, and a little for clocks that differ. Each kind has its claim: a token its ``jti``, a
session its ``sid``, a user ``username``, a group ``groups``; ``sequence`` and ``auth_time`` say what began before.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from ostiary.gateway.issuer.claims import session_digest
from ostiary.gateway.issuer.key_ring import CLOCK_SKEW
from ostiary.gateway.issuer.rotation import LONGEST_LIFETIME
from ostiary.interfaces.token_store import Revocation, RevocationKind
from ostiary.wire.revoked_credentials import RevokedCredentials, RevokedSubject

LISTED_FOR = LONGEST_LIFETIME + 2 * CLOCK_SKEW
# An API server compiles the list whenever it changes, and goes through it for every token that it has not seen lately.
MOST_LISTED = 5_000
# How far the clocks of replicas and of the token store may be apart. A longer time would refuse new JWTs for longer.
REPLICA_SKEW = timedelta(seconds=5)


def revoked_credentials(
    revocations: Iterable[Revocation],
    *,
    issuer: str,
    audiences: tuple[str, ...],
    head: int,
    now: datetime,
    most: int = MOST_LISTED,
) -> RevokedCredentials:
    """The list of what *revocations* end. If it would be longer than *most*, all JWTs that are older than now."""
    recent = [each for each in revocations if each.recorded_at is None or now - each.recorded_at <= LISTED_FOR]
    listed = RevokedCredentials(
        issuer,
        audiences,
        head,
        credential_ids=_values(recent, RevocationKind.TOKEN),
        sessions=tuple(map(session_digest, _values(recent, RevocationKind.SESSION))),
        subjects=tuple(dict.fromkeys(map(_subject, filter(_is_of_many, recent)))),
    )
    if len(listed) <= most:
        return listed
    # Up to the last revocation, and not to this moment: the list stays the same until there is another one.
    until = max(each.recorded_at or now for each in recent)
    return RevokedCredentials(issuer, audiences, head, issued_until=int((until + REPLICA_SKEW).timestamp()))


def _values(revocations: Iterable[Revocation], kind: RevocationKind) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.value for each in revocations if each.kind is kind))


def _is_of_many(revocation: Revocation) -> bool:
    return revocation.kind not in (RevocationKind.TOKEN, RevocationKind.SESSION)


def _subject(revocation: Revocation) -> RevokedSubject:
    return RevokedSubject(
        username=revocation.value if revocation.kind is RevocationKind.USER else None,
        group=revocation.value if revocation.kind is RevocationKind.GROUP else None,
        # One without a number could not be stored yet: its time says what began before it.
        sequence=revocation.sequence or None,
        # Whole seconds: what began within the same second is refused, too.
        began_until=None if revocation.at is None else int(revocation.at.timestamp()),
    )
