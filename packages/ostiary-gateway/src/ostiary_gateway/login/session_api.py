"""The session API for clients with tokens: refresh, end and inspect a session.

Clients that refresh with the same refresh token at the same moment get the same response: the first one refreshes, and
the others wait for it. Shortly afterwards the same worker returns the same response, and so do all replicas if the
store has messages for replicas. Otherwise another worker rejects the token with a 409, which does no harm. A second use
later than that ends the session.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.core.scopes import decode
from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.store_capabilities import NoteStore
from ostiary_gateway.interfaces.token_store import Found, RevocationKind, Session, SessionKind, TokenKind
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.identity_service import IdentityService
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import bearer, field
from ostiary_gateway.sealing import derived_key, seal, unseal
from ostiary_gateway.sessions import REUSE_LEEWAY, Issued, Tokens, digest, unseal_kept

# Result of a refresh, stored for a moment so that any replica can return it again.
#
# A client may lose the response because its replica was killed or the connection broke. It retries with the token that
# it has, and the load balancer may choose another replica. That token is used; without the stored result the session
# would end. The pair is sealed with the used token, which only the client has.

TOPIC = "renewed sessions"
_KIND = b"renewed session"


class RenewedPairs:
    """Token pairs of recent refreshes. Stores nothing if the store has no messages for replicas."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._notes = ability(tokens.store, NoteStore)

    async def keep(self, spent: str, pair: Issued) -> None:
        """Store *pair*.

        Called before *spent* is marked as used: a replica that dies right after that does not lose the pair.
        """
        if self._notes is None:
            return
        value = {
            "token": pair.token.reveal(),
            "renewal": pair.renewal.reveal(),
            "expires_at": pair.expires_at.isoformat(),
        }
        sealed = seal(json.dumps(value).encode(), _KIND, spent)
        await self._notes.put_notes(TOPIC, {_key(spent): sealed}, seconds=REUSE_LEEWAY.total_seconds())

    async def find(self, spent: str) -> Issued | None:
        """Return the pair that *spent* was exchanged for a moment ago, if it is valid."""
        note = None if self._notes is None else await self._notes.find_note(TOPIC, _key(spent))
        plain = None if note is None else unseal(note.data, _KIND, spent)
        if plain is None:
            return None
        value: dict[str, str] = json.loads(plain)
        # If two replicas refreshed at the same moment, one succeeded, and this may be the pair of the other.
        entry = await self._tokens.find(value["token"])
        if entry is None:
            return None
        expires_at = datetime.fromisoformat(value["expires_at"])
        return Issued(entry.session, Secret(value["token"]), expires_at, Secret(value["renewal"]))


def _key(spent: str) -> str:
    return derived_key(b"find", _KIND, spent).hex()


RENEWAL_FIELD = "renewal_token"
RENEWALS = 10_000
FindToken = Callable[[str], Awaitable[Found | None]]


class SessionApi:
    """Refresh, end and inspect sessions.

    *find_token* also checks whether the owner of a service account token is still valid. *step_up*: step-up rules are
    configured, and token responses say so.
    """

    def __init__(
        self,
        tokens: Tokens,
        providers: IdentityService,
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
            # Another replica may have refreshed it a moment ago.
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
        # Same response for an unknown token: its session does not exist, which is what the client requested.
        answer = answers.no_content()
        try:
            record = await self._tokens.store.find(digest(token))
            # A browser secret is not a token: it is valid on our own pages only.
            if record is not None and record.token.delegation:
                return await self._end_token(record, request, answer)
            if record is not None and record.token.kind is not TokenKind.BROWSER:
                await self.end(record.session, request, answer, everywhere=field(request, "everywhere") == "true")
        except Exception as error:
            return self._events.record_failure(error, request)
        return answer

    async def _end_token(self, record: Found, request: LoginRequest, answer: LoginAnswer) -> LoginAnswer:
        """Revoke a scoped token. It cannot end its session or other sessions."""
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
        """End *session*, or all sessions of its user. *answer* is the response that will be sent."""
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
        """Return the session and record of *token*, or None if it or its owner is no longer valid."""
        record = await self._tokens.find(token)
        if record is None or record.session.kind is SessionKind.SIGN_IN:
            return record
        checked = await self._find_token(token)
        # The result of the check expires with the check; the token itself is valid for longer.
        return None if checked is None else replace(checked, token=record.token)
