"""Signs JWTs for live sessions, so that a verifier that trusts our keys identifies the user without calling us.

    access token  ->  not scoped? audience configured?  ->  a credential of its session  ->  a JWT

The id of the credential (the claim ``jti``) is the digest of an access token that is minted with the JWT and never
disclosed. So the store treats the JWT like any token: it ends with its session, can be revoked by its id, and
`Authenticator.find` reports whether it is still valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.interfaces.token_store import Found, Session
from ostiary_gateway.issuer.claims import action_of, assertion_of, claims_of
from ostiary_gateway.issuer.keys import KeyRing, RingKey, SigningKey
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.sessions import Tokens, digest
from ostiary_gateway.wire.action_token import TYPE as ACTION
from ostiary_gateway.wire.action_token import AllowedAction


class SigningKeySource(Protocol):
    """The signing keys of one issuer, in files or in the token store. `ring` is the last successful read."""

    ring: KeyRing

    async def refresh(self) -> None:
        """Read the keys again. Raises `ProviderError` or `ConfigurationError`, and keeps `ring`, if that fails."""

    async def rotate(self) -> bool:
        """Create the next key and drop expired ones, if due. Returns whether the ring changed."""


log = logging.getLogger("ostiary.gateway")

# Prefix of the names that Kubernetes itself assigns.
SYSTEM = "system:"
# Each JWT is stored until it expires, so their rate is limited per session, and per user, who can create further
# sessions by signing in again.
JWTS_PER_MINUTE = 60.0
JWTS_PER_MINUTE_OF_USER = 300.0
# Lifetime of the JWTs that identify the users of requests to upstreams.
ASSERTION_LIFETIME = timedelta(minutes=1)
# How often the keys are read again, and rotated if due.
ROTATION_SECONDS = 30.0
# Maximum age of the key set in a response, unless the keys cannot be read.
FRESH_SECONDS = 1.0
# A signer uses a key that another replica created, and drops one that it withdrew, within this time.
SIGNING_FRESH_SECONDS = 5.0


class AudienceRefused(LoginRefused):
    """No JWT is signed for this audience; RFC 8693 calls it ``invalid_target``."""

    default_code = "issuer-audience-refused"


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A new JWT, which is not stored. `credential_id` is its ``jti``."""

    token: Secret
    expires_at: datetime
    credential_id: str


class JwtIssuer:
    """Signs JWTs and keeps the signing keys fresh. One instance serves one event loop. *url* is the claim ``iss``."""

    def __init__(
        self,
        url: str,
        audiences: Sequence[str],
        lifetime: timedelta,
        keys: SigningKeySource,
        tokens: Tokens,
        *,
        clock: Clock,
        metrics: Metrics | None = None,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self.url = url
        self.audiences = tuple(audiences)
        self.trouble = "the signing keys have not been read yet"
        self._lifetime = lifetime
        self._keys = keys
        self._tokens = tokens
        self._clock = clock
        self._metrics = metrics or Metrics()
        self._of_session = Buckets(JWTS_PER_MINUTE / 60, JWTS_PER_MINUTE, clock=clock, counts=counts, name="JWTs")
        rate = JWTS_PER_MINUTE_OF_USER
        self._of_user = Buckets(rate / 60, rate, clock=clock, counts=counts, name="JWTs of users")
        self._refreshing = asyncio.Lock()
        self._read_at = float("-inf")
        # Reads of the keys are numbered: the last one that began, the last that ended, and whether that one failed.
        self._begun, self._ended, self._failed = 0, 0, False

    async def sign(self, found: Found, audience: str, lifetime: timedelta | None = None) -> SignedToken:
        """Sign a JWT for the user of the token *found*, for *lifetime*, capped by the configured one.

        Raises `LoginRefused` if it is denied, `AudienceRefused` for an audience that is not configured, and
        `ProviderError` if there is no key to sign with or the store is unavailable.
        """
        session = found.session
        if found.token.delegation:
            # A JWT cannot express the scope, so its verifier would grant the owner's full rights.
            raise LoginRefused(
                "a narrowed token cannot be exchanged for a JWT",
                cause="the JWT would have all rights of its owner",
                code="issuer-narrowed-token",
            )
        user = session.user
        if any(name.startswith(SYSTEM) for name in (user.username, *user.groups)):
            # The gateway knows the name from one cluster, and the JWT may be for another, where it is another account.
            raise LoginRefused(
                "a service account of a cluster gets no JWT",
                cause=f"its name begins with {SYSTEM}: to another cluster it would be an account of its own",
            )
        if audience not in self.audiences:
            cause = "it is not one of issuer.audiences"
            raise AudienceRefused("no JWT is issued for this audience", cause=cause)
        if wait := self._of_session.take(session.id):
            raise LoginRefused("too many JWTs for one session", cause="more than one a second", retry_after=wait)
        if wait := self._of_user.take(user.username):
            raise LoginRefused("too many JWTs for one user", cause="more than five a second", retry_after=wait)
        key = await self._signing_key()
        assert key.private is not None
        life = self._lifetime if lifetime is None else max(min(lifetime, self._lifetime), timedelta(seconds=1))
        issued = await self._tokens.mint(session, lifetime=life, delegation="")
        token_digest = digest(issued.token.reveal())
        # Read again: a refresh may have removed groups since *found* was read.
        stored = await self._tokens.find_digest(token_digest)
        if stored is None:
            raise LoginRefused("the session has ended", cause="it was revoked or changed while the JWT was signed")
        credential_id = token_digest.hex()
        claims = claims_of(
            stored.session,
            issuer=self.url,
            audience=audience,
            credential_id=credential_id,
            now=self._clock.now(),
            expires_at=issued.expires_at,
        )
        self._metrics.jwts.inc(audience)
        if key.private.is_elsewhere:
            # A device blocks while it signs.
            text = await asyncio.to_thread(key.private.sign, claims)
        else:
            text = key.private.sign(claims)
        return SignedToken(Secret(text), issued.expires_at, credential_id)

    def sign_assertion(self, session: Session, user: UserInfo, audience: str) -> str:
        """Sign a JWT that identifies *user* to an upstream for a minute. Raises `ProviderError` if there is no key.

        *audience* is the upstream. The configuration ensures that it is not an audience of a cluster.
        """
        now = self._clock.now()
        key = self._current_key(now)
        expires_at = now + min(ASSERTION_LIFETIME, self._lifetime)
        claims = assertion_of(session, user, issuer=self.url, audience=audience, now=now, expires_at=expires_at)
        self._metrics.jwts.inc(audience)
        return key.sign(claims)

    def sign_action(
        self, session: Session, action: AllowedAction, *, audience: str, lifetime: timedelta, ends_at: datetime
    ) -> str:
        """Sign proof for *audience* that *action* was allowed. Expires at *ends_at* at the latest.

        Raises `ProviderError` if there is no key.
        """
        now = self._clock.now()
        key = self._current_key(now)
        expires_at = min(now + lifetime, ends_at)
        claims = action_of(session, action, issuer=self.url, audience=audience, now=now, expires_at=expires_at)
        self._metrics.jwts.inc(audience)
        return key.sign(claims, kind=ACTION)

    def _current_key(self, now: datetime) -> SigningKey:
        key = self._keys.ring.signing(now)
        if key is None or key.private is None:
            raise ProviderError("no JWT can be signed", cause=self.trouble or "no key", code="issuer-key-unusable")
        return key.private

    async def _signing_key(self) -> RingKey:
        if self._clock.monotonic() - self._read_at >= SIGNING_FRESH_SECONDS:
            with suppress(OstiaryError):
                await self._update(rotate=False)
        key = self._keys.ring.signing(self._clock.now())
        if key is None:
            await self._update(rotate=True)
            key = self._keys.ring.signing(self._clock.now())
        if key is None or key.private is None:
            cause = (
                "the key whose time it is cannot be opened" if key is not None else "there is no key whose time it is"
            )
            raise ProviderError("no JWT can be signed", cause=cause, code="issuer-key-unusable")
        return key

    # --- the keys ---

    async def key_set(self) -> dict[str, object]:
        """Return the published keys, or the last known ones if they cannot be read. Raises if none was ever read."""
        if self._clock.monotonic() - self._read_at >= FRESH_SECONDS:
            try:
                await self._update(rotate=False)
            except OstiaryError:
                if not self._keys.ring.keys:
                    raise
        return self._keys.ring.jwks(self._clock.now())

    def adopt(self, old: JwtIssuer) -> None:
        """Use the keys of *old*, the issuer before the reload, until they are read."""
        if type(old._keys) is type(self._keys):
            self._keys.ring = old._keys.ring

    async def run(self) -> None:
        """Read and rotate the keys until cancelled."""
        while True:
            # `trouble` reports the error, and the next iteration tries again.
            with suppress(OstiaryError):
                await self._update(rotate=True)
            await asyncio.sleep(ROTATION_SECONDS)

    async def _update(self, *, rotate: bool) -> None:
        begun_before = self._begun
        async with self._refreshing:
            if not rotate and self._ended > begun_before:
                # Share one read among concurrent callers: the key set is public, so any client can request it.
                if self._failed:
                    raise ProviderError("the signing keys cannot be read", cause=self.trouble)
                return
            self._begun += 1
            try:
                await self._keys.refresh()
                if rotate and await self._keys.rotate():
                    log.info("the signing keys were rotated", extra={"keys": len(self._keys.ring.keys)})
            except OstiaryError as error:
                self._ended, self._failed = self._begun, True
                self._note(error.cause or error.summary)
                raise
            self._ended, self._failed = self._begun, False
            self._read_at = self._clock.monotonic()
            self._note("")

    def _note(self, cause: str) -> None:
        now = self._clock.now()
        key = self._keys.ring.signing(now)
        if not cause and (key is None or key.private is None):
            cause = "no key can sign"
        if cause and cause != self.trouble:
            log.error("the signing keys of the issuer cannot be read or rotated", extra={"cause": cause})
        self.trouble = cause
        self._metrics.issuer_failing.set(1 if cause else 0)
        self._metrics.issuer_keys.set(len(self._keys.ring.published_keys(now)))
