"""What a revocation ends, for the token stores and for the caches above them.

`origins_of` and `ended_origins` are the digests by which an IdP's logout finds the sessions of a sign-in.
`UnsavedRevocations` holds revocations that a store could not write.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from hashlib import sha256

from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationKind, Session
from ostiary_gateway.sessions.records import check_text
from ostiary_gateway.wire.token_format import is_digest_hex

MOST_UNSAVED = 10_000
# Maximum difference between the clocks of an operator and of a gateway.
LARGEST_SKEW = timedelta(minutes=1)


def ends(revocation: Revocation, session: Session) -> bool:
    """Whether *revocation* ends *session*. Revoking one of its tokens does not."""
    kind, value = revocation.kind, revocation.value
    if kind is RevocationKind.SESSION:
        return session.id == value
    if kind is RevocationKind.TOKEN or _began_after(session, revocation):
        return False
    # At the same instant the revocation wins.
    if revocation.at is not None and session.created_at > revocation.at:
        return False
    if kind is RevocationKind.USER:
        return session.user.username == value
    if kind is RevocationKind.ORIGIN:
        return value in session.origins
    return kind is RevocationKind.BEFORE or value in session.user.groups


def _began_after(session: Session, revocation: Revocation) -> bool:
    # A revocation without a number has not been recorded yet: it is later than everything.
    return bool(revocation.sequence) and session.sequence is not None and session.sequence >= revocation.sequence


def ends_token(revocation: Revocation, token_digest: bytes, session: Session) -> bool:
    """Whether *revocation* ends this token, directly or with its session."""
    if revocation.kind is RevocationKind.TOKEN:
        return revocation.value == token_digest.hex()
    return ends(revocation, session)


# Origins of a session.


def origins_of(provider: str, *, session_id: str, subject: str) -> tuple[str, ...]:
    """Return the digests that identify a sign-in, for `Session.origins`; *session_id* and *subject* are the IdP's.

    A reader of the store cannot recover the session id, which is unguessable. Each digest includes the provider,
    because two issuers may use the same identifiers.
    """
    origins = []
    if session_id:
        origins.append(_origin("session", provider, session_id))
    if subject:
        origins.append(_origin("subject", provider, subject))
    if subject and not session_id:
        origins.append(_origin("subject without session", provider, subject))
    return tuple(origins)


def ended_origins(provider: str, *, session_id: str, subject: str) -> tuple[str, ...]:
    """Return the origins that a logout ends: one sign-in, or all of the user's if it has no session id.

    A sign-in without a session id may be the one that is meant, so it ends with any of the user's.
    """
    if not session_id:
        return (_origin("subject", provider, subject),) if subject else ()
    unnamed = (_origin("subject without session", provider, subject),) if subject else ()
    return (_origin("session", provider, session_id), *unnamed)


def _origin(kind: str, provider: str, value: str) -> str:
    # Length-prefixed, so that different parts never yield the same text.
    parts = (kind, provider, value)
    text = "".join(f"{len(part)}:{part}" for part in ("ostiary origin", *parts))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_revocation(revocation: Revocation, now: datetime) -> None:
    """Raise `ValueError` for a revocation that could never match anything, or whose time is in the future."""
    check_text(revocation.value)
    check_text(revocation.by)
    check_text(revocation.owner)
    if revocation.at is not None:
        if revocation.at.tzinfo is None:
            raise ValueError("a time has no time zone")
        if revocation.at - now > LARGEST_SKEW:
            raise ValueError("the time is in the future: a revocation can only end sessions that have begun")
    if revocation.kind is RevocationKind.TOKEN and not is_digest_hex(revocation.value):
        raise ValueError("a token is revoked by the 64 hex digits of its digest")
    if revocation.kind is RevocationKind.ORIGIN and not is_digest_hex(revocation.value):
        raise ValueError("sessions are revoked by the 64 hex digits of an origin's digest")


class UnsavedRevocations:
    """Revocations that the store could not write. They apply in this process until it can."""

    def __init__(self, *, limit: int = MOST_UNSAVED) -> None:
        self._kept: dict[tuple[RevocationKind, str], Revocation] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Revocation]:
        return iter(list(self._kept.values()))

    def add(self, revocation: Revocation) -> None:
        before = self._kept.get((revocation.kind, revocation.value))
        if before is not None and (before.at is None or (revocation.at is not None and revocation.at < before.at)):
            # The existing one ends everything that this one does, and more.
            return
        if len(self._kept) >= self._limit:
            del self._kept[next(iter(self._kept))]
        self._kept[revocation.kind, revocation.value] = revocation

    def remove(self, revocation: Revocation) -> None:
        if self._kept.get((revocation.kind, revocation.value)) is revocation:
            del self._kept[revocation.kind, revocation.value]

    def end(self, entry: Found) -> bool:
        """Whether one of them ends this token or its session."""
        session = entry.session
        keys = [
            (RevocationKind.TOKEN, entry.token.digest.hex()),
            (RevocationKind.SESSION, session.id),
            (RevocationKind.USER, session.user.username),
            (RevocationKind.BEFORE, ""),
            *((RevocationKind.ORIGIN, origin) for origin in session.origins),
            *((RevocationKind.GROUP, group) for group in session.user.groups),
        ]
        candidates = [self._kept[key] for key in keys if key in self._kept]
        return any(ends_token(revocation, entry.token.digest, session) for revocation in candidates)
