"""What programs do with a session: renew it, end it, ask about it. They present tokens.

Called by the routes. Programs that renew with the same token at the same moment get the same answer: the first one
renews, and the others wait for it. A moment later it is the same answer at the same worker, and at all replicas whose
store keeps notes. At another worker without such a store, the token is refused with a 409, which does no harm. A second
use later than that ends the session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from ostiary.core.caching.cache import Cache
from ostiary.core.clock import Clock
from ostiary.core.delegation import decode
from ostiary.core.tokens import REUSE_LEEWAY, Issued, Tokens, digest, unseal_kept
from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.sessions.renewed import RenewedPairs
from ostiary.gateway.login.sign_in.providers import ProviderCalls
from ostiary.gateway.login.visit import bearer, field
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Found, RevocationKind, Session, SessionKind, TokenKind

RENEWAL_FIELD = "renewal_token"
RENEWALS = 10_000
FindToken = Callable[[str], Awaitable[Found | None]]


class SessionCalls:
    """*find_token* also says whether the holder of a program's token is still somebody.

    *step_up*: there are step-up rules, which programs are told of.
    """

    def __init__(
        self,
        tokens: Tokens,
        providers: ProviderCalls,
        events: LoginEvents,
        *,
        find_token: FindToken,
        clock: Clock,
        step_up: bool = False,
    ) -> None:
        self._step_up = step_up
        self._tokens = tokens
        self._find_token = find_token
        self._providers = providers
        self._events = events
        self._pairs = RenewedPairs(tokens)
        self._renewed: Cache[bytes, Issued] = Cache(
            seconds=REUSE_LEEWAY.total_seconds(), clock=clock, entries=RENEWALS, share=RENEWALS
        )

    async def renew(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        renewal = field(request, RENEWAL_FIELD)
        if renewal is None:
            return answers.error(400, f"the form field {RENEWAL_FIELD} is missing")
        try:
            pair = await self._renewed.fill(digest(renewal), lambda: self._renew(renewal, request))
        except LoginRefused as refusal:
            return self._events.record_refusal(refusal, request, answers.not_renewed(refusal))
        except Exception as error:
            return self._events.record_failure(error, request)
        return answers.token_pair(pair, step_up=self._step_up)

    async def _renew(self, renewal: str, request: LoginRequest) -> Issued:
        try:
            pair = await self._tokens.renew(
                renewal,
                lambda session: self._providers.recheck(session, request, unseal_kept(session, renewal)),
                keep=partial(self._pairs.keep, renewal),
            )
        except LoginRefused as refusal:
            # It may have been renewed a moment ago, by another replica.
            earlier = None if refusal.retry_after is None else await self._pairs.find(renewal)
            if earlier is None:
                raise
            return earlier
        self._events.record_session(LoginEventKind.RENEWED, request, pair.session)
        return pair

    async def logout(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        token = bearer(request) or field(request, RENEWAL_FIELD)
        if token is None:
            return answers.bearer_challenge()
        # The same answer for an unknown token: its session does not exist, which is what was asked for.
        answer = answers.no_content()
        try:
            record = await self._tokens.store.find(digest(token))
            # A browser's secret is not a token: it works on our own pages only.
            if record is not None and record.token.delegation:
                return await self._end_token(record, request, answer)
            if record is not None and record.token.kind is not TokenKind.BROWSER:
                await self.end(record.session, request, answer, everywhere=field(request, "everywhere") == "true")
        except Exception as error:
            return self._events.record_failure(error, request)
        return answer

    async def _end_token(self, record: Found, request: LoginRequest, answer: LoginAnswer) -> LoginAnswer:
        """A token that is less than its owner ends itself and nothing else."""
        if field(request, "everywhere") == "true":
            return answers.error(403, "this token is limited to a scope: it cannot end other sessions")
        actor = decode(record.token.delegation).actor or "a narrowed token"
        by = f"logout of {record.session.user.username} ({actor})"
        username = record.session.user.username
        await self._tokens.revoke(RevocationKind.TOKEN, record.token.digest.hex(), by=by, owner=username)
        self._events.record_session(
            LoginEventKind.ENDED, request, record.session, status=answer.status, reason="one narrowed token"
        )
        return answer

    async def end(
        self, session: Session, request: LoginRequest, answer: LoginAnswer, *, everywhere: bool = False
    ) -> None:
        """End *session*, or all of its user's. *answer* is what is going to be said."""
        username = session.user.username
        if everywhere:
            await self._tokens.revoke(RevocationKind.USER, username, by=f"logout of {username}")
        else:
            await self._tokens.end_session(session, by=f"logout of {username}")
        reason = "everywhere" if everywhere else ""
        self._events.record_session(LoginEventKind.ENDED, request, session, status=answer.status, reason=reason)

    async def whoami(self, request: LoginRequest) -> LoginAnswer:
        if request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET"])
        token = bearer(request)
        if token is None:
            return answers.bearer_challenge()
        try:
            record = await self.find(token)
        except Exception as error:
            return self._events.record_failure(error, request)
        return answers.no_good_token() if record is None else answers.whoami(record)

    async def find(self, token: str) -> Found | None:
        """Whose token it is, and what of; None if nobody's any more."""
        record = await self._tokens.find(token)
        if record is None or record.session.kind is SessionKind.SIGN_IN:
            return record
        checked = await self._find_token(token)
        # That one ends with its check; the token itself lives longer.
        return None if checked is None else replace(checked, token=record.token)
