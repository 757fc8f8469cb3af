"""Token to bearer: in memory, by asking the gateway, or by verifying a JWT.

    recall (at once)  ->  opaque: ask the gateway  |  JWT: verify here, then look at the revocations  ->  remember
    a request that the gateway has redirected: verify its proof, then look at the revocations

Called by the gatekeeper. A remembered token counts until it expires or is revoked, as long as the gateway's revocations
are followed (`revocation_follower`). The gateway is asked about an unknown token once in a while, and about the tokens
of each client address in turn (`lookup_queue`).
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

# Verifies the proof of a request that the gateway has allowed and redirected here.
#
# Called by the authenticator. The proof is good for the method and the URL that it names, as often as it is used within
# its minute: a download that was cut off goes on with another request. No policy is asked again.

log = logging.getLogger("ostiary.backend")

# It lives for a minute or so: clocks that differ by more than this must be set.
SKEW = timedelta(seconds=10)
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class VerifiedAction:
    """Who was allowed to do it. `id` is the ``Audit-Id`` of the request at the gateway."""

    description: TokenDescription
    id: str


class ActionVerifier(JwtVerifier):
    """For the proofs of one gateway. Raises `TransportError` if a file of TLS cannot be used."""

    def __init__(self, settings: ActionSettings, gateway: TrustedGateway, clock: Clock) -> None:
        super().__init__(settings, (settings.origin,), gateway, clock, types=frozenset((TYPE,)), skew=SKEW)
        self._origin = settings.origin.encode()
        url = urlsplit(settings.origin)
        usual = () if url.port is not None else (f"{url.netloc}:{_USUAL_PORTS[url.scheme]}",)
        self._hosts = frozenset(name.encode() for name in (url.netloc, *usual))

    async def verify(self, request: BackendRequest) -> VerifiedAction | None:
        """What the proof of *request* attests; None if it is not to be believed. Raises `ProviderError`."""
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
        # A JWT need not have a type. This one must: it is what keeps it apart from all others of the issuer.
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
    # For this request alone: whatever a view asks for besides is beyond it.
    once = replace(description, user=user, credential_id=credential_id, delegation=NOTHING.encode())
    return VerifiedAction(once, description.credential_id)


# Turns for tokens that must be looked up at the gateway: fair between client addresses.
#
#     an address may have half of the slots  ->  a free slot at once, or the queue of the address  ->  one turn each
#
# A flood of unknown tokens fills the queue of one address. Tokens from other addresses wait for one
# look-up at most, and those from the same address in the order in which they came.

# How many wait in all, each in about two kilobytes, and for how long.
MOST_WAITING = 4_096
LONGEST_WAIT = 20.0


class LookupQueue:
    """*slots* look-ups at a time, at most half of them for one key. One event loop uses it."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._most = max(slots // 2, 1)
        self._taken: Counter[str] = Counter()
        # By key, in the order of their turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._length = 0

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold a slot. Raises `ProviderError` if too many wait, most of them with this key, or for too long."""
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
                # Its turn had come at the same moment.
                self._release(key)
            elif key in self._waiting and waiter in self._waiting[key]:
                self._remove(key, waiter)
            if isinstance(error, TimeoutError):
                raise _too_many(f"its turn did not come within {LONGEST_WAIT:g} seconds") from None
            raise

    def _drop_one_for(self, key: str) -> None:
        """Make room for *key* where the queue is longest. Raises `ProviderError` if that is its own."""
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
        # The first key that may have a slot. The few that have their half already are passed over.
        turn = next((each for each in self._waiting if self._taken[each] < self._most), None)
        if turn is None:
            return
        queue = self._waiting.pop(turn)
        waiter = queue.popleft()
        self._length -= 1
        if queue:
            # Behind the others.
            self._waiting[turn] = queue
        self._take(turn)
        waiter.set_result(None)


def _too_many(cause: str) -> ProviderError:
    return ProviderError("too many unknown tokens have to be looked up", cause=cause)


# A JWT with many groups has a few thousand characters. What is longer is not even hashed.
LONGEST_TOKEN = 16 * 1024
# How long a token that the gateway does not know is not asked about again, and how many such tokens are remembered: a
# sixteenth of them for one address.
UNKNOWN_SECONDS = 5.0
MOST_UNKNOWN = 16_384


class BackendAuthenticator:
    """One event loop uses it."""

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
        # By digest. An opaque token that is unknown does not become valid: nobody can choose the next one.
        self._unknown: Cache[bytes, bool] = Cache(seconds=UNKNOWN_SECONDS, clock=clock, entries=MOST_UNKNOWN)

    def recall(self, token_digest: bytes) -> CachedBearer | None:
        """The token, if it is in memory and good this very moment."""
        token = self._by_digest.get(token_digest)
        if token is None or self._monotonic() >= self.follower.fresh_until:
            return None
        if token.expires_at <= self._now():
            self.remembered.forget(token)
            return None
        return token

    async def find(self, token: bytes, token_digest: bytes, address: str = "") -> CachedBearer | None:
        """The token; None if it is unknown, expired or revoked. Raises `ProviderError` if nobody can say.

        *address* is the client's.
        """
        is_opaque = well_formed(token)
        if not is_opaque and (self._jwts is None or token.count(b".") != 2):
            # No token of ours has this form: nobody need be asked.
            return None
        if self._unknown.get(token_digest):
            return None
        await self.follower.ensure_fresh()
        text = token.decode("latin-1")
        (remembered,) = await self._look_ups.fill(
            token_digest, lambda: self._look_up(text, token_digest, address, is_opaque=is_opaque)
        )
        # It may have been revoked while this caller waited for its turn.
        return None if remembered is None or remembered.is_revoked else remembered

    async def _look_up(
        self, token: str, token_digest: bytes, address: str, *, is_opaque: bool
    ) -> tuple[CachedBearer | None]:
        """In a tuple, since a cache keeps no None."""
        while True:
            epoch = self.follower.epoch
            if is_opaque:
                async with self._queue.turn(network(address)):
                    description = await self._questions.describe(token, address)
            else:
                description = await self._verifier.describe(token)
            if epoch == self.follower.epoch:
                break
            # A revocation came while the gateway was asked: its answer may be older than that.
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
        """Whose the proof of a redirected *request* is, and the id of that request at the gateway; None if it is none.

        Raises `ProviderError` if nobody can say. It is not remembered: the next request is another one.
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
        """Raise `ProviderError` if the list of the gateway says nothing about the JWTs that are accepted here."""
        if self.follower.tokens.issuer != issuer:
            cause = f"the gateway's list is not about the issuer {issuer}"
            hint = "issuer, in jwt and in actions, must be the issuer of the gateway, which must sign JWTs (issuer)"
            raise ProviderError("revoked JWTs cannot be told from others", cause=cause, hint=hint)

    async def close(self) -> None:
        await self._questions.close()
        for verifier in (self._jwts, self._actions):
            if verifier is not None:
                await verifier.close()
