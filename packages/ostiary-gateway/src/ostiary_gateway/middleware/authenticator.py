"""Authenticate bearer tokens: from the cache, by introspection at the gateway, or by verifying a JWT.

    recall (synchronous)  ->  opaque: query the gateway  |  JWT: verify here, then check revocations  ->  cache
    a request that the gateway has redirected: verify its action token, then check revocations

A cached token is valid until it expires or is revoked, as long as the gateway's revocations are followed
(`revocation_follower`). Unknown tokens are cached for a short time. `LookupQueue` shares introspection fairly between
client addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import urlsplit

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.core.scopes import NOTHING
from ostiary.errors import ProviderError
from ostiary_gateway.middleware.bearer import BearerCache, CachedBearer
from ostiary_gateway.middleware.config import ActionSettings, TrustedGateway
from ostiary_gateway.middleware.gateway_client import LOOK_UPS, GatewayQuestions
from ostiary_gateway.middleware.jwt_verifier import JwtVerifier, description_of
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.middleware.revocation_follower import RevocationFollower
from ostiary_gateway.networks import network
from ostiary_gateway.providers.common.jwt import Claims, ParsedToken, TokenRefused
from ostiary_gateway.sessions import well_formed
from ostiary_gateway.wire.action_token import TYPE, extra_of, is_for
from ostiary_gateway.wire.token_introspection import TokenDescription

# Action tokens: proofs that the gateway has allowed a request and redirected it here.

log = logging.getLogger("ostiary.backend")

# Action tokens live for about a minute. Hosts whose clocks differ by more than this must synchronize them.
SKEW = timedelta(seconds=10)
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class VerifiedAction:
    """The user whom the gateway allowed the action. `id` is the ``Audit-Id`` of the request at the gateway."""

    description: TokenDescription
    id: str


class ActionVerifier(JwtVerifier):
    """Verify the action tokens of one gateway.

    An action token is valid for one method and URL, and can be used repeatedly until it expires, so that a client can
    resume an interrupted download. No policy is evaluated again. Raises `TransportError` if a TLS file cannot be used.
    """

    def __init__(self, settings: ActionSettings, gateway: TrustedGateway, clock: Clock) -> None:
        super().__init__(settings, (settings.origin,), gateway, clock, types=frozenset((TYPE,)), skew=SKEW)
        self._origin = settings.origin.encode()
        url = urlsplit(settings.origin)
        usual = () if url.port is not None else (f"{url.netloc}:{_USUAL_PORTS[url.scheme]}",)
        self._hosts = frozenset(name.encode() for name in (url.netloc, *usual))

    async def verify(self, request: BackendRequest) -> VerifiedAction | None:
        """Return what the action token of *request* attests, or None if it is invalid. Raises `ProviderError`."""
        try:
            self._check_request(request)
            assert request.action is not None, "checked by whoever calls"
            claims = await self.claims_of(request.action.decode("latin-1"))
            if not is_for(claims, method=request.method, url=self._origin + request.target):
                raise TokenRefused("it is for another request")
            return _verified(claims)
        except TokenRefused as refused:
            log.info("an action token was refused: %s", refused)
            return None

    def _check_request(self, request: BackendRequest) -> None:
        if request.host.lower() not in self._hosts:
            raise TokenRefused("the Host of the request is not the one of actions.origin")
        if request.upgrade or request.has_body:
            raise TokenRefused("the request has a body, or changes the protocol")

    def check_kind(self, token: ParsedToken) -> None:
        # `typ` is optional in a JWT, but required here: it distinguishes action tokens from the issuer's other JWTs.
        kind = token.header.get("typ")
        if not isinstance(kind, str) or kind.lower() != TYPE:
            raise TokenRefused("it is a token of another kind")


def _verified(claims: Claims) -> VerifiedAction:
    description, credential_id = description_of(claims), claims.get("cid")
    if not isinstance(credential_id, str) or not credential_id:
        raise TokenRefused("it lacks what a revocation names")
    try:
        user = replace(description.user, extra=extra_of(claims))
    except ValueError as error:
        raise TokenRefused(str(error)) from None
    # Valid for this request only: anything else that a view requires is out of scope.
    once = replace(description, user=user, credential_id=credential_id, delegation=NOTHING.encode())
    return VerifiedAction(once, description.credential_id)


# Lookups at the gateway, fair between client addresses.
#
#     an address may have half of the slots  ->  a free slot, or the queue of the address  ->  round robin
#
# A flood of unknown tokens fills the queue of one address only. Tokens from another address wait for one lookup at
# most; tokens from the same address are served in order.

# Maximum number of waiting lookups, about two kilobytes each, and their timeout in seconds.
MOST_WAITING = 4_096
LONGEST_WAIT = 20.0


class LookupQueue:
    """A queue for *slots* concurrent lookups, at most half of them for one key.

    An instance belongs to one event loop.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._most = max(slots // 2, 1)
        self._taken: Counter[str] = Counter()
        # By key, in round-robin order.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._length = 0

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold a slot. Raises `ProviderError` if the queue is full and this key fills most of it, or on timeout."""
        if self._free and self._taken[key] < self._most:
            self._take(key)
        else:
            await self._wait(key)
        try:
            yield
        finally:
            self._release(key)

    async def _wait(self, key: str) -> None:
        if self._length >= MOST_WAITING:
            self._drop_one_for(key)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(waiter)
        self._length += 1
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # The slot was granted at the moment of the timeout or cancellation: return it.
                self._release(key)
            elif key in self._waiting and waiter in self._waiting[key]:
                self._remove(key, waiter)
            if isinstance(error, TimeoutError):
                raise _too_many(f"its turn did not come within {LONGEST_WAIT:g} seconds") from None
            raise

    def _drop_one_for(self, key: str) -> None:
        """Drop the newest waiter of the longest queue. Raises `ProviderError` if that queue is the one of *key*."""
        longest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting.get(key, ())) >= len(self._waiting[longest]):
            raise _too_many("too many tokens from this address wait")
        waiter = self._waiting[longest][-1]
        self._remove(longest, waiter)
        waiter.set_exception(_too_many("too many tokens from this address wait"))

    def _remove(self, key: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiting[key]
        queue.remove(waiter)
        self._length -= 1
        if not queue:
            del self._waiting[key]

    def _take(self, key: str) -> None:
        self._free -= 1
        self._taken[key] += 1

    def _release(self, key: str) -> None:
        self._free += 1
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
        # The first key below its limit. The few keys at their limit are skipped.
        turn = next((each for each in self._waiting if self._taken[each] < self._most), None)
        if turn is None:
            return
        queue = self._waiting.pop(turn)
        waiter = queue.popleft()
        self._length -= 1
        if queue:
            # Move the key to the end.
            self._waiting[turn] = queue
        self._take(turn)
        waiter.set_result(None)


def _too_many(cause: str) -> ProviderError:
    return ProviderError("too many unknown tokens have to be looked up", cause=cause)


# A JWT with many groups has a few thousand characters. Longer tokens are rejected without hashing them.
LONGEST_TOKEN = 16 * 1024
# How long an unknown token is cached, and how many of them. One address may have a sixteenth.
UNKNOWN_SECONDS = 5.0
MOST_UNKNOWN = 16_384


class BackendAuthenticator:
    """The authenticator of one API. An instance belongs to one event loop."""

    def __init__(
        self,
        questions: GatewayQuestions,
        jwts: JwtVerifier | None,
        actions: ActionVerifier | None = None,
        *,
        max_stale: float,
        clock: Clock,
    ) -> None:
        self._questions, self._jwts, self._actions = questions, jwts, actions
        self._now, self._monotonic = clock.now, clock.monotonic
        self.remembered = BearerCache()
        self._by_digest = self.remembered.by_digest
        self.follower = RevocationFollower(
            questions.fetch_revoked, max_stale=max_stale, clock=clock, on_revoked=self.remembered.forget_revoked
        )
        self._look_ups: Cache[bytes, tuple[CachedBearer | None]] = Cache(seconds=0.0, clock=clock)
        self._queue = LookupQueue(LOOK_UPS)
        # By digest. Caching is safe: an unknown opaque token does not become valid, because its value cannot be chosen.
        self._unknown: Cache[bytes, bool] = Cache(seconds=UNKNOWN_SECONDS, clock=clock, entries=MOST_UNKNOWN)

    def recall(self, token_digest: bytes) -> CachedBearer | None:
        """Return the token if it is cached and valid now."""
        token = self._by_digest.get(token_digest)
        if token is None or self._monotonic() >= self.follower.fresh_until:
            return None
        if token.expires_at <= self._now():
            self.remembered.forget(token)
            return None
        return token

    async def find(self, token: bytes, token_digest: bytes, address: str = "") -> CachedBearer | None:
        """Return the token, or None if it is unknown, expired or revoked.

        Raises `ProviderError` if that cannot be determined.

        *address* is the client's.
        """
        is_opaque = well_formed(token)
        if not is_opaque and (self._jwts is None or token.count(b".") != 2):
            # Not the format of a gateway token: no lookup is needed.
            return None
        if self._unknown.get(token_digest):
            return None
        await self.follower.ensure_fresh()
        text = token.decode("latin-1")
        (remembered,) = await self._look_ups.fill(
            token_digest, lambda: self._look_up(text, token_digest, address, is_opaque=is_opaque)
        )
        # It may have been revoked while this caller waited for the lookup.
        return None if remembered is None or remembered.is_revoked else remembered

    async def _look_up(
        self, token: str, token_digest: bytes, address: str, *, is_opaque: bool
    ) -> tuple[CachedBearer | None]:
        """Look up a token. The result is a tuple because the cache does not store None."""
        while True:
            epoch = self.follower.epoch
            if is_opaque:
                async with self._queue.turn(network(address)):
                    description = await self._questions.describe(token, address)
            else:
                description = await self._verifier.describe(token)
            if epoch == self.follower.epoch:
                break
            # A revocation arrived during the lookup, so the response may be older. Repeat it.
        if description is None and is_opaque:
            self._unknown.put(token_digest, True, owner=network(address))
        if description is None or description.expires_at <= self._now():
            return (None,)
        if not is_opaque:
            self._check_list(self._verifier.url)
            if self.follower.tokens.concern(description):
                return (None,)
        remembered = CachedBearer(token_digest, description)
        self.remembered.remember(remembered)
        return (remembered,)

    @property
    def _verifier(self) -> JwtVerifier:
        assert self._jwts is not None, "checked by whoever calls"
        return self._jwts

    async def find_action(self, request: BackendRequest) -> tuple[CachedBearer, str] | None:
        """Return the user of the action token of *request* and the gateway's request id, or None if it is invalid.

        Raises `ProviderError` if that cannot be determined. The result is not cached: the next request differs.
        """
        assert self._actions is not None, "checked by whoever calls"
        action = await self._actions.verify(request)
        if action is None:
            return None
        await self.follower.ensure_fresh()
        self._check_list(self._actions.url)
        if self.follower.tokens.concern(action.description):
            return None
        return CachedBearer(b"", action.description), action.id

    def _check_list(self, issuer: str) -> None:
        """Raise `ProviderError` if the gateway's revocation list does not cover the JWTs of *issuer*."""
        if self.follower.tokens.issuer != issuer:
            cause = f"the gateway's list is not about the issuer {issuer}"
            hint = "issuer, in jwt and in actions, must be the issuer of the gateway, which must sign JWTs (issuer)"
            raise ProviderError("revoked JWTs cannot be told from others", cause=cause, hint=hint)

    async def close(self) -> None:
        await self._questions.close()
        for verifier in (self._jwts, self._actions):
            if verifier is not None:
                await verifier.close()
