"""Whether two stores mean the same by a session, a token or a log. Pure; called by `moving`.

A store that judges expiry by the clock of its server translates times as it reads and writes them, and knows the offset
only about as well as the network is fast. So times may differ by a little; everything else must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ostiary.core.tokens.storable import CLOCK_TOLERANCE
from ostiary.interfaces.store_abilities.moving import StoredLog
from ostiary.interfaces.token_store import Revocation, Session, TokenRecord

_SOME_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def same_session(ours: Session, theirs: Session) -> bool:
    return (
        _without_times(ours) == _without_times(theirs)
        # Comparing two sessions does not compare these.
        and ours.sequence == theirs.sequence
        and _same_time(ours.last_used_at, theirs.last_used_at)
        and _same_time(ours.created_at, theirs.created_at)
        and _same_time(ours.expires_at, theirs.expires_at)
    )


def _without_times(session: Session) -> Session:
    return replace(session, created_at=_SOME_TIME, expires_at=_SOME_TIME)


def same_token(ours: TokenRecord, theirs: TokenRecord) -> bool:
    return (
        (ours.digest, ours.session_id, ours.kind, ours.delegation)
        == (theirs.digest, theirs.session_id, theirs.kind, theirs.delegation)
        and _same_time(ours.issued_at, theirs.issued_at)
        and _same_time(ours.expires_at, theirs.expires_at)
    )


def same_log(ours: StoredLog, theirs: StoredLog) -> bool:
    return (
        (ours.head, ours.forgotten, ours.undone) == (theirs.head, theirs.forgotten, theirs.undone)
        and len(ours.revocations) == len(theirs.revocations)
        and all(map(_same_revocation, ours.revocations, theirs.revocations))
    )


def _same_revocation(ours: Revocation, theirs: Revocation) -> bool:
    return (
        replace(ours, at=None, recorded_at=None) == replace(theirs, at=None, recorded_at=None)
        and _same_time(ours.at, theirs.at)
        and _same_time(ours.recorded_at, theirs.recorded_at)
    )


def _same_time(ours: datetime | None, theirs: datetime | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= CLOCK_TOLERANCE
