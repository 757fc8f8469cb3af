"""Tokens: how they look, what is kept of them, how long they live.

    sign-in -> issue -> (access token, renewal token)      request -> find -> who it is
                          renewal token -> renew -> a new pair, after identity and groups were checked again

Called by the gateway's login (issue, renew), by authenticate (find) and by whoever withdraws something (revoke).
A `TokenStore` lies beneath; it sees digests and never a token. Nobody else adds to it.

An access token is short-lived and unscoped. What a browser keeps in a cookie opens the gateway's own pages, and nothing
else. A session lasts as long as a person need not sign in again, and no
token outlives it. A renewal token is good for one renewal. Whoever presents it a second time did not get the
answer of the first time, or stole it: nobody can tell, so the session ends.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from zlib import crc32

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.secrets.sealing import seal_text, unseal_text
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.token_store import (
    Found,
    Revocation,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
    TokenStore,
)
from ostiary.model import Secret, UserInfo

ACCESS_PREFIX = b"ost_"
RENEWAL_PREFIX = b"osr_"
BROWSER_PREFIX = b"osb_"
LIFETIME = timedelta(minutes=15)
SESSION_LIFETIME = timedelta(hours=24)
SESSIONS_PER_USER = 100
# How many sessions the beginning of one ends at most, where a lower limit was set.
MOST_ENDED = 20
# Two programs of one person may present the same renewal token at the same moment. The second is refused, and finds
# what the first one brought; only later than this does a second use look like theft.
REUSE_LEEWAY = timedelta(seconds=10)
# A clock that was set back by less than this is waited for: until then the time stands still.
CLOCK_TOLERANCE = timedelta(seconds=2)
MOST_UNSAVED = 10_000
# How far the clocks of an operator and of a gateway may be apart.
LARGEST_SKEW = timedelta(minutes=1)

_ALPHABET = string.digits + string.ascii_letters
_SECRET_BITS = 256
_SECRET_LENGTH = 43  # 62**43 is just above 2**256
_CHECKSUM_LENGTH = 8
LENGTH = len(ACCESS_PREFIX) + _SECRET_LENGTH + _CHECKSUM_LENGTH
_SESSION_BITS = 128
_SESSION_LENGTH = 22
_DIGEST = re.compile(r"[0-9a-f]{64}")


# --- the form: prefix, 256 random bits in base62, CRC-32 of all that in hex ---


def new_token(prefix: bytes = ACCESS_PREFIX) -> Secret:
    """One word to select with a double click, for scanners to recognise: ``ost_[0-9A-Za-z]{43}[0-9a-f]{8}``."""
    body = prefix + _random_text(_SECRET_BITS, _SECRET_LENGTH).encode()
    return Secret((body + _checksum(body)).decode())


def well_formed(token: bytes, prefix: bytes = ACCESS_PREFIX) -> bool:
    """Whether this can be a token of ours at all. Anybody can work this out, so answering sooner tells nothing."""
    return (
        len(token) == LENGTH
        and token.startswith(prefix)
        and token[len(prefix) :].isalnum()
        and token[-_CHECKSUM_LENGTH:] == _checksum(token[:-_CHECKSUM_LENGTH])
    )


def digest(token: str | bytes) -> bytes:
    """What a store keeps in place of *token*.

    Not keyed: nobody finds 256 random bits by trying, so a key would protect nothing, and every replica and every
    operator's command would have to share it. Looking up a digest also needs no comparison in constant time.
    """
    return sha256(as_bytes(token)).digest()


def as_bytes(token: str | bytes) -> bytes:
    return token if isinstance(token, bytes) else token.encode("utf-8", "surrogatepass")


def digest_hex(text: str) -> str:
    """The digest in hex of what an operator wrote: a token of any kind, or already its digest.

    Raises `ValueError`, which does not quote the text: it may be a token with a letter missing.
    """
    if _DIGEST.fullmatch(text.lower()):
        return text.lower()
    token = as_bytes(text)
    if any(well_formed(token, prefix) for prefix in (ACCESS_PREFIX, RENEWAL_PREFIX, BROWSER_PREFIX)):
        return digest(token).hex()
    raise ValueError("it is neither a token nor the 64 hex digits of a token's digest")


def _checksum(body: bytes) -> bytes:
    return b"%08x" % crc32(body)


def _random_text(bits: int, length: int) -> str:
    number, digits = secrets.randbits(bits), []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


# --- what a revocation means: one place, for stores and for caches ---


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
    return kind is RevocationKind.BEFORE or value in session.user.groups


def _began_after(session: Session, revocation: Revocation) -> bool:
    # One without a number has not been written down yet: it is later than everything.
    return bool(revocation.sequence) and session.sequence is not None and session.sequence >= revocation.sequence


def ends_token(revocation: Revocation, token_digest: bytes, session: Session) -> bool:
    """Whether *revocation* ends this token, by itself or with its session."""
    if revocation.kind is RevocationKind.TOKEN:
        return revocation.value == token_digest.hex()
    return ends(revocation, session)


def check_storable(session: Session) -> None:
    """Raise `ValueError` for text that a store could only keep as other text, or for a time without a zone."""
    for text in _texts(session):
        check_text(text)
    for time in (session.created_at, session.expires_at):
        if time.tzinfo is None:
            raise ValueError("a time has no time zone")


def check_revocation(revocation: Revocation, now: datetime) -> None:
    """Raise `ValueError` for a revocation that would match nothing, however it was meant, or that is not yet due."""
    check_text(revocation.value)
    check_text(revocation.by)
    if revocation.at is not None:
        if revocation.at.tzinfo is None:
            raise ValueError("a time has no time zone")
        if revocation.at - now > LARGEST_SKEW:
            raise ValueError("the time is in the future: a revocation can only end sessions that have begun")
    if revocation.kind is RevocationKind.TOKEN and not _DIGEST.fullmatch(revocation.value):
        raise ValueError("a token is revoked by the 64 hex digits of its digest")


def check_text(text: str) -> None:
    # Neither error quotes the text. A surrogate has no UTF-8, and a NUL ends text in half of the programs after us.
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("a name has a character that is not text: NUL, or half of a pair")


def _texts(session: Session) -> Iterator[str]:
    user = session.user
    yield from (session.id, session.provider, session.client, user.username, user.uid, *user.groups)
    for key, values in user.extra:
        yield from (key, *values)
    for group, source in session.sources:
        yield from (group, source)


# --- the life of tokens ---


@dataclass(frozen=True, slots=True)
class Issued:
    """A new pair of tokens. This is the only time that anybody sees them."""

    session: Session
    token: Secret
    expires_at: datetime
    renewal: Secret


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A session on the gateway's own pages, and the secret that its browser keeps."""

    session: Session
    secret: Secret


@dataclass(frozen=True, slots=True)
class Attested:
    """What the providers say of a user: who it is, and for each group how it is known.

    `kept` is what the identity provider wants to have again when the session is renewed.
    """

    user: UserInfo
    sources: tuple[tuple[str, str], ...] = ()
    kept: Secret | None = None


Recheck = Callable[[Session], Awaitable[Attested]]
_KEPT = b"kept by an identity provider"


class UnsavedRevocations:
    """Revocations that the store could not write down. They hold in this process until it can."""

    def __init__(self, *, limit: int = MOST_UNSAVED) -> None:
        self._kept: dict[tuple[RevocationKind, str], Revocation] = {}
        self._limit = limit

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Revocation]:
        return iter(list(self._kept.values()))

    def add(self, revocation: Revocation) -> None:
        if len(self._kept) >= self._limit:
            del self._kept[next(iter(self._kept))]
        self._kept[revocation.kind, revocation.value] = revocation

    def remove(self, revocation: Revocation) -> None:
        if self._kept.get((revocation.kind, revocation.value)) is revocation:
            del self._kept[revocation.kind, revocation.value]

    def end(self, found: Found) -> bool:
        """Whether one of them ends this token or its session."""
        session = found.session
        keys = [
            (RevocationKind.TOKEN, found.token.digest.hex()),
            (RevocationKind.SESSION, session.id),
            (RevocationKind.USER, session.user.username),
            (RevocationKind.BEFORE, ""),
            *((RevocationKind.GROUP, group) for group in session.user.groups),
        ]
        kept = [self._kept[key] for key in keys if key in self._kept]
        return any(ends_token(revocation, found.token.digest, session) for revocation in kept)


class Tokens:
    """Issues, finds, renews and revokes tokens. One instance serves one event loop.

    `on_unsaved` is told of revocations that the store could not write down: nobody else will tell of them.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        lifetime: timedelta = LIFETIME,
        session_lifetime: timedelta = SESSION_LIFETIME,
        sessions_per_user: int = SESSIONS_PER_USER,
    ) -> None:
        self.store = store
        self.lifetime = lifetime
        self.unsaved = UnsavedRevocations()
        self.on_unsaved: Callable[[Revocation], None] = lambda revocation: None
        self._clock = clock
        self._session_lifetime = session_lifetime
        self._sessions_per_user = sessions_per_user

    async def issue(
        self,
        user: UserInfo,
        *,
        provider: str,
        sources: tuple[tuple[str, str], ...] = (),
        client: str = "",
        at: datetime | None = None,
        sequence: int | None = None,
        kept: Secret | None = None,
        session_lifetime: timedelta | None = None,
    ) -> Issued:
        """Begin a session. Raises `LoginRefused` if it is revoked while it begins.

        *at* is when the person signed in, if that was a while ago, and *sequence* what `sequence` said then: what was
        revoked since then stays so. *kept* is sealed with the renewal token; *session_lifetime* is for a session that
        shall end sooner than others.
        """
        now = self._clock.now()
        began = now if at is None else min(at, now)
        session = self._session(user, provider, sources, client, began, session_lifetime)
        if sequence is None and at is None:
            sequence = await self.sequence()
        session = replace(session, sequence=sequence)
        issued, records = self._pair(session, now, kept)
        await self.store.add(issued.session, records)
        await self._end_oldest(issued.session)
        return issued

    async def issue_browser(
        self,
        user: UserInfo,
        *,
        provider: str,
        sources: tuple[tuple[str, str], ...] = (),
        client: str = "",
        kept: Secret | None = None,
        session_lifetime: timedelta | None = None,
    ) -> BrowserSession:
        """Begin a session on the gateway's own pages. Raises `LoginRefused` if it is revoked while it begins."""
        now = self._clock.now()
        session = self._session(user, provider, sources, client, now, session_lifetime)
        session = replace(session, sequence=await self.sequence())
        secret = new_token(BROWSER_PREFIX)
        session = _with_kept(session, kept, secret)
        record = TokenRecord(digest(secret.reveal()), session.id, now, session.expires_at, TokenKind.BROWSER)
        await self.store.add(session, [record])
        await self._end_oldest(session)
        return BrowserSession(session, secret)

    async def _end_oldest(self, new: Session) -> None:
        """A user has only so many sessions: the oldest end when one more begins. Zero: any number."""
        most, username = self._sessions_per_user, new.user.username
        if not most:
            return
        sessions = await self.store.sessions(username=username, limit=most + MOST_ENDED)
        for session in sessions[most:]:
            # Of several that began in the same moment, the new one stays.
            if session.id != new.id:
                await self.revoke(RevocationKind.SESSION, session.id, by="ostiary: too many sessions of this user")

    def _session(
        self,
        user: UserInfo,
        provider: str,
        sources: tuple[tuple[str, str], ...],
        client: str,
        at: datetime,
        lifetime: timedelta | None,
    ) -> Session:
        session = Session(
            id=_random_text(_SESSION_BITS, _SESSION_LENGTH),
            user=user,
            provider=provider,
            created_at=at,
            expires_at=at + min(self._session_lifetime, lifetime or self._session_lifetime),
            sources=sources,
            client=client,
        )
        _check_answer(session)
        return session

    async def find(self, token: str | bytes) -> Found | None:
        """Who presents this access token. The unknown, the expired and the revoked cost the same one look-up."""
        data = as_bytes(token)
        return await self.find_digest(digest(data)) if well_formed(data) else None

    async def sequence(self) -> int:
        """The number of the last revocation: what begins now is ended by later ones only."""
        return (await self.store.revocations_after(None)).head

    async def lookup(self, token_digest: bytes) -> Found | None:
        """The token of whatever kind, if it and its session are alive."""
        found = await self.store.find(token_digest)
        return None if found is None or (self.unsaved and self.unsaved.end(found)) else found

    async def find_digest(self, token_digest: bytes) -> Found | None:
        """The same for a token of which only the digest was kept."""
        found = await self.lookup(token_digest)
        # The prefix says so already, and the store decides: a renewal token opens no door.
        return found if found is not None and found.token.kind is TokenKind.ACCESS else None

    async def find_browser(self, secret: str | bytes) -> Session | None:
        """Whose browser presents this secret."""
        data = as_bytes(secret)
        if not well_formed(data, BROWSER_PREFIX):
            return None
        found = await self.lookup(digest(data))
        return found.session if found is not None and found.token.kind is TokenKind.BROWSER else None

    async def renew(self, renewal: str | bytes, recheck: Recheck) -> Issued:
        """A new pair for a renewal token, which is spent by that.

        *recheck* asks the providers once more about the session's user. If it raises `LoginRefused`, the session
        ends; after any other exception the renewal token is still good. The session keeps its end. A token that was
        spent a moment ago is refused with `retry_after`: somebody else has what it brought.
        """
        spent = digest(renewal)
        since = await self.sequence()
        session = await self._renewable(renewal, spent)
        try:
            attested = await recheck(session)
            if attested.user.username != session.user.username:
                raise LoginRefused(
                    "this session has expired or was revoked: sign in again", cause="the user name has changed"
                )
        except LoginRefused as refusal:
            # "Wait a moment" is not a no: another program of this person is being served.
            if refusal.retry_after is None:
                await self.revoke(RevocationKind.SESSION, session.id, by="ostiary: refused at renewal")
            raise
        now = self._clock.now()
        renewed = replace(session, user=attested.user, sources=attested.sources)
        _check_answer(renewed)
        issued, records = self._pair(renewed, now, attested.kept)
        renewed = issued.session
        if not await self.store.renew(spent, at=now, session=renewed, tokens=records, since=since):
            # Somebody was quicker, or revoked it meanwhile; this says which, and raises.
            await self._renewable(renewal, spent)
            raise _ended("it was revoked while it was being refreshed")
        return issued

    async def revoke(self, kind: RevocationKind, value: str = "", *, by: str = "", at: datetime | None = None) -> int:
        """Withdraw, durably before this returns; says how many tokens or sessions ended.

        With *at*, only what began until then. If the store cannot write it down this raises, and nothing that it ends
        is good in this process any more; `save_unsaved` tries again.
        """
        revocation = Revocation(kind, value, at, by)
        try:
            return await self.store.revoke(revocation)
        except ProviderError:
            # Dated, so that it does not end what begins before it can be written down.
            revocation = replace(revocation, at=self._clock.now() if at is None else at)
            self.unsaved.add(revocation)
            self.on_unsaved(revocation)
            raise

    async def save_unsaved(self) -> None:
        """Write down what could not be written before. Raises if it still cannot."""
        for revocation in self.unsaved:
            await self.store.revoke(revocation)
            self.unsaved.remove(revocation)

    async def marks(self, kind: RevocationKind, value: str = "") -> list[Revocation]:
        """The marks about this: they refuse whoever began to sign in before them."""
        return [mark for mark in await self.store.marks() if mark.kind is kind and mark.value == value]

    async def undo(self, kind: RevocationKind, value: str = "") -> int:
        """Take all marks about this back; says how many. What has ended stays ended."""
        return sum([await self.store.undo(mark.sequence) for mark in await self.marks(kind, value)])

    async def sweep(self) -> int:
        """Delete what has expired. Needed for space only: what has expired is found by nobody."""
        return await self.store.sweep()

    async def keep(self, session: Session, secret: str, kept: Secret | None, *, expires_at: datetime) -> Session:
        """Replace what is kept for a session whose client has *secret*; without anything, it may end sooner."""
        changed = replace(session, expires_at=min(session.expires_at, expires_at))
        changed = _with_kept(changed, kept, Secret(secret))
        await self.store.add(changed, [])
        return changed

    def _pair(self, session: Session, now: datetime, kept: Secret | None) -> tuple[Issued, list[TokenRecord]]:
        token, renewal = new_token(ACCESS_PREFIX), new_token(RENEWAL_PREFIX)
        session = _with_kept(session, kept, renewal)
        expires_at = min(now + self.lifetime, session.expires_at)
        records = [
            TokenRecord(digest(token.reveal()), session.id, now, expires_at, TokenKind.ACCESS),
            TokenRecord(digest(renewal.reveal()), session.id, now, session.expires_at, TokenKind.RENEWAL),
        ]
        return Issued(session, token, expires_at, renewal), records

    async def _renewable(self, renewal: str | bytes, spent: bytes) -> Session:
        """The session that *renewal* belongs to. Raises `LoginRefused`, with the same summary whatever the reason."""
        if not well_formed(as_bytes(renewal), RENEWAL_PREFIX):
            raise _ended("this is not a refresh token")
        found = await self.lookup(spent)
        if found is None:
            raise _ended("the refresh token is unknown, expired or revoked")
        if found.token.kind is TokenKind.SPENT:
            raise await self._used_again(found)
        if found.token.kind is not TokenKind.RENEWAL:
            raise _ended("this is not a refresh token")
        return found.session

    async def _used_again(self, found: Found) -> LoginRefused:
        if self._clock.now() - found.token.issued_at <= REUSE_LEEWAY:
            summary = "this session was refreshed a moment ago: use the new tokens"
            return LoginRefused(summary, cause="the refresh token was used twice within moments", retry_after=1.0)
        by = "ostiary: a renewal token was used twice"
        await self.revoke(RevocationKind.SESSION, found.session.id, by=by)
        return _ended("the refresh token was used before")


def kept_in(session: Session, secret: str | bytes) -> Secret | None:
    """What the identity provider keeps for *session*, for the client that has *secret*."""
    text = secret if isinstance(secret, str) else secret.decode("ascii", "replace")
    kept = unseal_text(session.sealed, _KEPT, text) if session.sealed else None
    return None if kept is None else Secret(kept)


def _with_kept(session: Session, kept: Secret | None, secret: Secret) -> Session:
    sealed = "" if kept is None else seal_text(kept.reveal(), _KEPT, secret.reveal())
    return replace(session, sealed=sealed)


def _ended(cause: str) -> LoginRefused:
    return LoginRefused("this session has expired or was revoked: sign in again", cause=cause)


def _check_answer(session: Session) -> None:
    try:
        check_storable(session)
    except ValueError as error:
        summary = f'the identity provider "{session.provider}" returned values that a token cannot hold'
        raise ProviderError(summary, cause=str(error), code="provider-failed") from None
