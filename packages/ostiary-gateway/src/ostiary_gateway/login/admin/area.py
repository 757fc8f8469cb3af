"""The administration area: its pages, and the permission that each requires.

    /auth/admin                          all sessions          GET sessions
    /auth/admin/decisions, ../stream     decisions             watch of decisions
    /auth/admin/refusals[?id=..]         denied requests       GET decisions, GET decisions/<id>
    /auth/admin/accounts                 service accounts      GET serviceaccounts
    /auth/admin/who-can                  who can?              POST subjectsearches
    /auth/admin/replicas                 replicas              GET replicas

A page requires the same permission as the corresponding request to the API below ``/apis/ostiary.dev/v1``: the policy
alone determines who is an administrator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo
from ostiary_gateway.accounts.service_accounts import AccountState, ServiceAccount, ServiceAccounts
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.authorization.chain import Authorizer, ChainExplanation, Step, WhoCan
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.authorization.recent_decisions import RecentDecisions
from ostiary_gateway.authorization.token_scope import explain_with_scope
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.admin import tables as frames
from ostiary_gateway.login.admin.replicas import replicas_page
from ostiary_gateway.login.admin.requests import (
    MOST_DECISIONS,
    MOST_REFUSALS,
    RequestListing,
    decisions_page,
    refusals_page,
)
from ostiary_gateway.login.admin.searches import DecidedRequest, describe, of_decision, of_refusal, read_values
from ostiary_gateway.login.admin.sessions import SessionLists, sessions_page
from ostiary_gateway.login.admin.stream import DecisionStreams, is_allowed
from ostiary_gateway.login.admin.tables import (
    ACCOUNTS,
    DECISIONS,
    REFUSALS,
    SESSIONS,
    TITLES,
    WHO_CAN,
    AdminFrame,
    link,
    moment_cell,
    pager,
    shown,
    table,
)
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import counted, say
from ostiary_gateway.login.pages.pieces import problem_note, shown_time, time_text
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import field, only
from ostiary_gateway.replicas.cluster_lookup import EveryEndedRequest, EveryRefusal
from ostiary_gateway.replicas.decision_feed import DecisionFeed
from ostiary_gateway.replicas.registry import Replicas
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.wire.ostiary_dev import PREFIX, decode_subject_search
from ostiary_gateway.wire.request_info import request_info

# --- service accounts: read-only; ``ostiary-gateway accounts`` and the API change them ---

ON_A_PAGE = 50
FIELDS = ("namespace",)
_COLUMNS = (
    *("admin.account", "admin.state", "admin.description", "admin.created", "admin.created_by", "admin.source"),
    "admin.action",
)
_STATES = {
    AccountState.ACTIVE: "admin.state_active",
    AccountState.DISABLED: "admin.state_disabled",
    AccountState.DELETING: "admin.state_deleting",
}


async def accounts_page(accounts: ServiceAccounts, request: LoginRequest, frame: AdminFrame) -> LoginAnswer:
    values, problem = {}, ""
    try:
        values = read_values(request, FIELDS)
    except ValueError as error:
        problem = str(error)
    after = only(request.query, "after") or ""
    page = await accounts.list(values.get("namespace", ""), after=after, limit=ON_A_PAGE)
    rows = [_row(account) for account in page.accounts]
    body = fill(
        "admin/accounts.html",
        problem=problem_note(problem),
        namespace=values.get("namespace", ""),
        table=table(counted("admin.account_count", len(rows)), _COLUMNS, rows),
        pager=pager(ACCOUNTS, values, after=after, next_after=page.after),
    )
    return frame.page(ACCOUNTS, body, status=400 if problem else 200)


def _row(account: ServiceAccount) -> Sequence[str]:
    return (
        str(account.name),
        _state(account),
        shown(account.description),
        moment_cell(account.created_at),
        shown(account.created_by),
        say("admin.source_configuration" if account.is_declared else "admin.source_api"),
        fill(
            "admin/account_sessions.html",
            url=link(SESSIONS, {"user": account.name.username}),
            name=str(account.name),
        ),
    )


def _state(account: ServiceAccount) -> Markup:
    template = "admin/tag_good.html" if account.is_active else "admin/tag_bad.html"
    return fill(template, text=say(_STATES[account.state]))


# --- explanation of one request by its id ---


def explanation_page(decided: Refusal, now: ChainExplanation, frame: AdminFrame) -> LoginAnswer:
    """Explain a request. *decided* is the decision made then, *now* the one that would be made today."""
    attributes, was_allowed = decided.attributes, decided.decision.allowed
    title = say("admin.explanation_allowed" if was_allowed else "admin.explanation")
    here = DECISIONS if was_allowed else REFUSALS
    body = fill(
        "admin/explanation.html",
        title=title,
        id=decided.id,
        user=shown(attributes.user.username),
        groups=shown(", ".join(attributes.user.groups)) or say("common.none"),
        asked=describe(attributes.request),
        at=shown_time(decided.at),
        then=_outcome(decided.decision),
        now=shown(now.error) if now.decision is None else _outcome(now.decision),
        steps=join(_step(step) for step in now.steps),
        back=here,
        title_of_list=say(TITLES[here]),
    )
    return frame.page(here, body, title=title)


def ended_page(ended: EndedRequest, frame: AdminFrame) -> LoginAnswer:
    """Show a request without a decision: a failed sign-in, or an unauthenticated request."""
    facts = {
        "admin.ended_id": shown(ended.id),
        "admin.ended_at": time_text(ended.at),
        "admin.user": shown(ended.username),
        "admin.ended_from": shown(ended.address),
        "admin.ended_request": shown(f"{ended.method} {ended.path}"),
        "admin.ended_sign_in": shown(f"{ended.login} ({ended.provider})" if ended.provider else ended.login),
        "admin.ended_status": say("admin.ended_status_text", status=str(ended.status)),
        "admin.ended_reason": shown(ended.reason),
    }
    return frame.page(REFUSALS, fill("admin/ended.html", facts=_facts(facts)), title=say("admin.ended"))


def _step(step: Step) -> Markup:
    facts: dict[str, str] = {}
    if step.error:
        facts["admin.unavailable"] = shown(step.error)
    elif step.explanation is None:
        facts["admin.not_evaluated"] = say("admin.decided_earlier")
    else:
        decision = step.explanation.decision
        verdict, reason = decision.verdict.value, decision.reason
        facts["admin.says"] = shown(f"{verdict}: {reason}" if reason else verdict)
        facts["admin.closest"] = shown(step.explanation.closest)
        facts["admin.failed"] = shown(step.explanation.failed)
    remedy = step.explanation.remedy if step.explanation is not None else ""
    remedy_row = fill("admin/remedy.html", remedy=shown(remedy)) if remedy else NOTHING
    return fill("admin/step.html", provider=step.name, facts=_facts(facts), remedy=remedy_row)


def _facts(facts: dict[str, str]) -> Markup:
    return join(fill("fact.html", name=say(name), value=value) for name, value in facts.items() if value)


def _outcome(decision: Decision) -> str:
    """Describe a decision of the whole chain, where no opinion means denied."""
    outcome = say("admin.allowed" if decision.allowed else "admin.hidden" if decision.hidden else "admin.denied")
    reason = shown(decision.reason)
    return say("admin.with_reason", outcome=outcome, reason=reason) if reason else outcome


# --- who can: search for the subjects that the policy allows an action ---

_ASKED = ("verb", "group", "resource", "namespace", "name", "path")
_WHO_CAN_COLUMNS = ("admin.subject", "admin.kind", "admin.via")


def who_can_page(authorizer: Authorizer, request: LoginRequest, frame: AdminFrame) -> LoginAnswer:
    values = {name: only(request.query, name) or "" for name in _ASKED}
    problem, result = NOTHING, NOTHING
    if any(values.values()):
        try:
            result = _search_result(authorizer.who_can(Attributes(UserInfo(""), decode_subject_search(values))))
        except ValueError as error:
            problem = problem_note(str(error))
    return frame.page(WHO_CAN, fill("admin/who_can.html", problem=problem, found=result, **values))


def _search_result(search: WhoCan) -> Markup:
    rows = [
        (
            shown(f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name),
            shown(subject.kind),
            shown(subject.via),
        )
        for subject in search.subjects
    ]
    unknown = NOTHING
    if search.unknown:
        unknown = fill("problem.html", text=say("admin.cannot_list", names=", ".join(search.unknown)))
    found = table(counted("admin.subject_count", len(rows)), _WHO_CAN_COLUMNS, rows)
    return fill("admin/found.html", table=found, unknown=unknown)


FindVisitor = Callable[[LoginRequest], Awaitable[Visitor | None]]


@dataclass(frozen=True, slots=True)
class Permission:
    """The request to the gateway's own API that the policy must allow."""

    resource: str
    method: str = "GET"
    query: str = ""


WATCH = Permission("decisions", query="watch=true")
LIST_REFUSALS = Permission("decisions")
# Required permission of each page, by URL.
_PERMISSIONS = {
    frames.SESSIONS: Permission("sessions"),
    frames.DECISIONS: WATCH,
    frames.REFUSALS: LIST_REFUSALS,
    frames.ACCOUNTS: Permission("serviceaccounts"),
    frames.WHO_CAN: Permission("subjectsearches", "POST"),
    frames.REPLICAS: Permission("replicas"),
}
# A user who may have one decision explained may enter too, by its id.
_EXPLAIN_ANY = Permission("decisions/x")


@dataclass(frozen=True, slots=True)
class AdminSources:
    """Data sources of the administration area."""

    tokens: Tokens
    authorizer: Authorizer
    refusals: EveryRefusal | None = None
    ended: EveryEndedRequest | None = None
    replicas: Replicas | None = None
    decisions: DecisionFeed | None = None
    accounts: ServiceAccounts | None = None
    clock: Clock = SYSTEM_CLOCK


class AdminPages:
    """The pages of the administration area."""

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
        """Report whether *user* may see any of the pages. False if the authorizer is unavailable."""
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
        """Return the stream of decisions. The caller has verified the stream key, because this is not a page load."""
        refusal = await self._refusal_for(visitor, WATCH)
        if refusal is not None:
            return refusal

        async def is_still_allowed() -> bool:
            now = await self._find_visitor(request)
            return now is not None and now.session.id == visitor.session.id and await self._may(now.session.user, WATCH)

        return await self._streams.answer(request, visitor, lambda: is_allowed(is_still_allowed))

    async def end_session(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        """End a session. The form's origin is already verified."""
        session = field(request, "session")
        if session is None:
            return answers.error(400, "the form does not name a session")
        refusal = await self._refusal_for(visitor, Permission(f"sessions/{quote(session, safe='')}", "DELETE"))
        if refusal is not None:
            return refusal
        await self._tokens.revoke(RevocationKind.SESSION, session, by=visitor.session.user.username)
        return answers.redirect(frames.SESSIONS, 303)

    async def _refusal_for(self, visitor: Visitor, permission: Permission) -> LoginAnswer | None:
        """Return a 403 if the policy does not allow *permission*."""
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
                # Read the clock first: the stream reports everything decided after this moment.
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
