"""Token to bearer: in memory, by asking the gateway, or by verifying a JWT.

    recall (at once)  ->  opaque: ask the gateway  |  JWT: verify here, then look at the revocations  ->  remember
    a request that the gateway has redirected: verify its proof, then look at the revocations

Called by the gatekeeper. A remembered token counts until it expires or is revoked, as long as the gateway's revocations
are followed (`revocation_follower`). The gateway is asked about an unknown token once in a while, and about the tokens
of each client address in turn (`lookup_queue`).
"""

from __future__ import annotations

from ostiary.backend.authenticate.action_verifier import ActionVerifier
from ostiary.backend.authenticate.bearer import RememberedToken, RememberedTokens
from ostiary.backend.authenticate.gateway_questions import LOOK_UPS, GatewayQuestions
from ostiary.backend.authenticate.jwt_verifier import JwtVerifier
from ostiary.backend.authenticate.lookup_queue import LookupQueue
from ostiary.backend.authenticate.revocation_follower import RevocationFollower
from ostiary.backend.request import BackendRequest
from ostiary.core.caching.cache import Cache
from ostiary.core.clock import Clock
from ostiary.core.net.networks import network
from ostiary.core.tokens import well_formed
from ostiary.errors import ProviderError

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
        self.remembered = RememberedTokens()
        self._by_digest = self.remembered.by_digest
        self.follower = RevocationFollower(
            questions.fetch_revoked, max_stale=max_stale, clock=clock, on_revoked=self.remembered.forget_revoked
        )
        self._look_ups: Cache[bytes, tuple[RememberedToken | None]] = Cache(seconds=0.0, clock=clock)
        self._queue = LookupQueue(LOOK_UPS)
        # By digest. An opaque token that is unknown does not become valid: nobody can choose the next one.
        self._unknown: Cache[bytes, bool] = Cache(seconds=UNKNOWN_SECONDS, clock=clock, entries=MOST_UNKNOWN)

    def recall(self, token_digest: bytes) -> RememberedToken | None:
        """The token, if it is in memory and good this very moment."""
        token = self._by_digest.get(token_digest)
        if token is None or self._monotonic() >= self.follower.fresh_until:
            return None
        if token.expires_at <= self._now():
            self.remembered.forget(token)
            return None
        return token

    async def find(self, token: bytes, token_digest: bytes, address: str = "") -> RememberedToken | None:
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
    ) -> tuple[RememberedToken | None]:
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
        remembered = RememberedToken(token_digest, description)
        self.remembered.remember(remembered)
        return (remembered,)

    @property
    def _verifier(self) -> JwtVerifier:
        assert self._jwts is not None, "checked by whoever calls"
        return self._jwts

    async def find_action(self, request: BackendRequest) -> tuple[RememberedToken, str] | None:
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
        return RememberedToken(b"", action.description), action.id

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
