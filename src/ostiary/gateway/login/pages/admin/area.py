"""The administration area: which page is whose, and who may load it.

    /auth/admin                          all sessions          GET sessions
    /auth/admin/decisions, ../stream     decisions             watch of decisions
    /auth/admin/refusals[?id=..]         denied requests       GET decisions, GET decisions/<id>
    /auth/admin/accounts                 service accounts      GET serviceaccounts
    /auth/admin/who-can                  who can?              POST subjectsearches
    /auth/admin/replicas                 replicas              GET replicas

Called by the pages of people who are signed in. A page needs the same permission as the corresponding request to the
API below ``/apis/ostiary.dev/v1``: the policy alone makes somebody an administrator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.tokens import Tokens
from ostiary.errors import ProviderError
from ostiary.gateway.accounts.service_accounts import ServiceAccounts
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.recent_decisions import RecentDecisions
from ostiary.gateway.authorize.token_scope import explain_with_scope
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.admin import frame as frames
from ostiary.gateway.login.pages.admin.accounts import accounts_page
from ostiary.gateway.login.pages.admin.explanation import ended_page, explanation_page
from ostiary.gateway.login.pages.admin.frame import AdminFrame
from ostiary.gateway.login.pages.admin.listing.decided import DecidedRequest, of_decision, of_refusal
from ostiary.gateway.login.pages.admin.listing.session_lists import SessionLists
from ostiary.gateway.login.pages.admin.replicas import replicas_page
from ostiary.gateway.login.pages.admin.requests import (
    MOST_DECISIONS,
    MOST_REFUSALS,
    RequestListing,
    decisions_page,
    refusals_page,
)
from ostiary.gateway.login.pages.admin.sessions import sessions_page
from ostiary.gateway.login.pages.admin.stream import DecisionStreams, is_allowed
from ostiary.gateway.login.pages.admin.who_can import who_can_page
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.visit import field, only
from ostiary.gateway.replicas.decision_feed import DecisionFeed
from ostiary.gateway.replicas.every_request import EveryEndedRequest, EveryRefusal
from ostiary.gateway.replicas.registry import Replicas
from ostiary.interfaces.attributes import RequestLine
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import RevocationKind
from ostiary.model import Attributes, UserInfo
from ostiary.wire.ostiary_dev.operators import PREFIX
from ostiary.wire.request.request_info import request_info

FindVisitor = Callable[[LoginRequest], Awaitable[Visitor | None]]


@dataclass(frozen=True, slots=True)
class Permission:
    """What the policy must allow: a request to our own API."""

    resource: str
    method: str = "GET"
    query: str = ""


WATCH = Permission("decisions", query="watch=true")
LIST_REFUSALS = Permission("decisions")
# Of the pages by their addresses.
_PERMISSIONS = {
    frames.SESSIONS: Permission("sessions"),
    frames.DECISIONS: WATCH,
    frames.REFUSALS: LIST_REFUSALS,
    frames.ACCOUNTS: Permission("serviceaccounts"),
    frames.WHO_CAN: Permission("subjectsearches", "POST"),
    frames.REPLICAS: Permission("replicas"),
}
# Whoever may have one decision explained may enter, too: by its id.
_EXPLAIN_ANY = Permission("decisions/x")


@dataclass(frozen=True, slots=True)
class AdminSources:
    """What the pages show."""

    tokens: Tokens
    authorizer: Authorizer
    refusals: EveryRefusal | None = None
    ended: EveryEndedRequest | None = None
    replicas: Replicas | None = None
    decisions: DecisionFeed | None = None
    accounts: ServiceAccounts | None = None
    clock: Clock = SYSTEM_CLOCK


class AdminPages:
    def __init__(self, sources: AdminSources, find_visitor: FindVisitor) -> None:
        self._sources = sources
        self._tokens = sources.tokens
        self._authorizer = sources.authorizer
        self._refusals = sources.refusals or EveryRefusal(sources.authorizer)
        self._decisions = sources.decisions or DecisionFeed(RecentDecisions(clock=sources.clock))
        self._find_visitor = find_visitor
        self._lists = SessionLists(sources.tokens.store)
        self._streams = DecisionStreams(self._decisions, sources.clock)

    async def may_enter(self, user: UserInfo) -> bool:
        """Whether *user* may see any of the pages. If that cannot be found out, they may not."""
        try:
            for permission in (*_PERMISSIONS.values(), _EXPLAIN_ANY):
                if await self._may(user, permission):
                    return True
        except ProviderError:
            pass
        return False

    async def answer(self, steps: list[str], request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        if request.method != "GET":
            return answers.error(404, "page not found")
        if steps == ["refusals"] and (decision_id := only(request.query, "id")):
            needed = Permission(f"decisions/{quote(decision_id, safe='')}")
            return await self._refusal_for(visitor, needed) or await self._explain(decision_id, visitor)
        here = "/".join((frames.SESSIONS, *steps))
        if here not in _PERMISSIONS or (here == frames.ACCOUNTS and self._sources.accounts is None):
            return answers.error(404, "page not found")
        return await self._refusal_for(visitor, _PERMISSIONS[here]) or await self._page(here, request, visitor)

    async def stream(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        """Decisions as they are made. The request is no load of a page, and has proved that it comes from ours."""
        refusal = await self._refusal_for(visitor, WATCH)
        if refusal is not None:
            return refusal

        async def is_still_allowed() -> bool:
            now = await self._find_visitor(request)
            return now is not None and now.session.id == visitor.session.id and await self._may(now.session.user, WATCH)

        return await self._streams.answer(request, visitor, lambda: is_allowed(is_still_allowed))

    async def end_session(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        """The form has been checked to be ours."""
        session = field(request, "session")
        if session is None:
            return answers.error(400, "the form does not name a session")
        refusal = await self._refusal_for(visitor, Permission(f"sessions/{quote(session, safe='')}", "DELETE"))
        if refusal is not None:
            return refusal
        await self._tokens.revoke(RevocationKind.SESSION, session, by=visitor.session.user.username)
        return answers.redirect(frames.SESSIONS, 303)

    async def _refusal_for(self, visitor: Visitor, permission: Permission) -> LoginAnswer | None:
        """The refusal, if the policy does not allow it."""
        if await self._may(visitor.session.user, permission):
            return None
        return answers.error(403, "permission denied: the policy does not allow you to use this page")

    async def _may(self, user: UserInfo, permission: Permission) -> bool:
        info = request_info(RequestLine(permission.method, f"{PREFIX}/{permission.resource}", permission.query))
        return (await self._authorizer.authorize(Attributes(user, info))).allowed

    async def _frame(self, visitor: Visitor) -> AdminFrame:
        tabs = [url for url, needed in _PERMISSIONS.items() if await self._may(visitor.session.user, needed)]
        if self._sources.accounts is None and frames.ACCOUNTS in tabs:
            tabs.remove(frames.ACCOUNTS)
        return AdminFrame(visitor, tabs)

    # --- the pages ---

    async def _page(self, here: str, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        frame = await self._frame(visitor)
        match here:
            case frames.SESSIONS:
                return await sessions_page(self._lists, request, frame)
            case frames.DECISIONS:
                # Before anything is read: what comes later is told by the stream.
                now = self._sources.clock.now()
                return decisions_page(RequestListing(request), await self._latest_decisions(), frame, now=now)
            case frames.REFUSALS:
                return refusals_page(RequestListing(request), await self._latest_refusals(), frame)
            case frames.ACCOUNTS if self._sources.accounts is not None:
                return await accounts_page(self._sources.accounts, request, frame)
            case frames.WHO_CAN:
                return who_can_page(self._authorizer, request, frame)
        all_replicas = self._sources.replicas
        return replicas_page([] if all_replicas is None else await all_replicas.all(), frame)

    async def _explain(self, decision_id: str, visitor: Visitor) -> LoginAnswer:
        refusal = await self._refusals.recall(decision_id)
        if refusal is None:
            decision = await self._decisions.recall(decision_id)
            refusal = None if decision is None else decision.remembered
        if refusal is not None:
            now = explain_with_scope(await self._authorizer.explain(refusal.attributes), refusal)
            return explanation_page(refusal, now, await self._frame(visitor))
        ended = None if self._sources.ended is None else await self._sources.ended.recall(decision_id)
        if ended is not None:
            return ended_page(ended, await self._frame(visitor))
        return answers.error(404, "unknown request id: this gateway remembers no such request")

    async def _latest_decisions(self) -> list[DecidedRequest]:
        return [of_decision(each) for each in await self._decisions.latest(MOST_DECISIONS)]

    async def _latest_refusals(self) -> list[DecidedRequest]:
        return [of_refusal(each) for each in await self._refusals.recent(MOST_REFUSALS)]
