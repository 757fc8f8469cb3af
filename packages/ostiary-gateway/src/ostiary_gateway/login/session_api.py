"""What programs do with a session: renew it, end it, ask about it. They present tokens.

Called by the routes. Programs that renew with the same token at the same moment get the same answer: the first one
renews, and the others wait for it. A moment later it is the same answer at the same worker, and at all replicas whose
store keeps notes. At another worker without such a store, the token is refused with a 409, which does no harm. A second
use later than that ends the session.
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

# What a renewal brought, for a moment, so that any replica can answer the same renewal again.
#
# A client whose answer was lost, because its replica was killed or the connection broke, asks again with the token that
# it has, and the load balancer sends it to another replica. That token is spent; without this the session would end.
# Called by `sessions.calls`. The pair is sealed with the spent token, which nobody but the client has.

TOPIC = "renewed sessions"
_KIND = b"renewed session"


class RenewedPairs:
    """Keeps nothing if the store keeps no notes for replicas."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._notes = ability(tokens.store, NoteStore)

    async def keep(self, spent: str, pair: Issued) -> None:
        """Called before *spent* is spent: if the replica dies right after that, the pair is not lost with it."""
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
        """The pair that *spent* was spent for a moment ago, if it is good."""
        note = None if self._notes is None else await self._notes.find_note(TOPIC, _key(spent))
        plain = None if note is None else unseal(note.data, _KIND, spent)
        if plain is None:
            return None
        value: dict[str, str] = json.loads(plain)
        # Of two replicas that renewed at the same moment one has succeeded, and this may be the other's.
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
    """*find_token* also says whether the holder of a program's token is still somebody.

    *step_up*: there are step-up rules, which programs are told of.
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
