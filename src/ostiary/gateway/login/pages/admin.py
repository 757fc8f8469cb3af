"""The administration pages: all sessions, denied requests, who can do something, replicas.

Called by the pages of people who are signed in. A page needs the same permission as the corresponding request to the
API below ``/apis/ostiary.dev/v1``: the policy alone makes somebody an administrator.
"""

from __future__ import annotations

from urllib.parse import quote

from ostiary.core.text import printable
from ostiary.core.tokens import Tokens
from ostiary.errors import ProviderError
from ostiary.gateway.audit.ended_requests import EndedRequest
from ostiary.gateway.authorize.chain import Authorizer, ChainExplanation, Step, WhoCan
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.authorize.token_scope import explain_with_scope
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import counted, say
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import navigation, problem_note, shown_time, time_text
from ostiary.gateway.login.pages.replicas import replicas_body
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.pages.views import session_row
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.visit import field, only
from ostiary.gateway.replicas.every_request import EveryEndedRequest, EveryRefusal
from ostiary.gateway.replicas.registry import Replicas
from ostiary.interfaces.attributes import RequestLine
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import RevocationKind
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary.wire.ostiary_dev.operators import PREFIX, decode_subject_search
from ostiary.wire.request.request_info import request_info

MOST_SESSIONS = 200
MOST_REFUSALS = 50
_LINKS = {
    "/auth/admin": "admin.sessions",
    "/auth/admin/refusals": "admin.refusals",
    "/auth/admin/who-can": "admin.who_can",
    "/auth/admin/replicas": "admin.replicas",
}
_ENTRANCES = (("sessions", "GET"), ("decisions/x", "GET"), ("subjectsearches", "POST"), ("replicas", "GET"))
_ASKED = ("verb", "group", "resource", "namespace", "name", "path")


class AdminPages:
    def __init__(
        self,
        tokens: Tokens,
        authorizer: Authorizer,
        refusals: EveryRefusal | None = None,
        ended: EveryEndedRequest | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        self._tokens = tokens
        self._authorizer = authorizer
        self._all_refusals = refusals or EveryRefusal(authorizer)
        self._ended = ended
        self._all_replicas = replicas

    async def may_enter(self, user: UserInfo) -> bool:
        """Whether *user* may see any of the pages. If that cannot be found out, they may not."""
        try:
            for resource, method in _ENTRANCES:
                if await self._may(user, method, resource):
                    return True
        except ProviderError:
            pass
        return False

    async def answer(self, steps: list[str], request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        match (request.method, *steps):
            case ("GET",):
                return await self._refusal_for(visitor, "GET", "sessions") or await self._sessions(request, visitor)
            case ("GET", "refusals"):
                decision = only(request.query, "id") or ""
                needed = f"decisions/{quote(decision, safe='')}" if decision else "decisions"
                return await self._refusal_for(visitor, "GET", needed) or await self._refusals(decision, visitor)
            case ("GET", "who-can"):
                return await self._refusal_for(visitor, "POST", "subjectsearches") or self._who_can(request, visitor)
            case ("GET", "replicas"):
                return await self._refusal_for(visitor, "GET", "replicas") or await self._replicas(visitor)
        return answers.error(404, "page not found")

    async def end_session(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        """The form has been checked to be ours."""
        session = field(request, "session")
        if session is None:
            return answers.error(400, "the form does not name a session")
        refusal = await self._refusal_for(visitor, "DELETE", f"sessions/{quote(session, safe='')}")
        if refusal is not None:
            return refusal
        await self._tokens.revoke(RevocationKind.SESSION, session, by=visitor.session.user.username)
        return answers.redirect("/auth/admin", 303)

    async def _refusal_for(self, visitor: Visitor, method: str, resource: str) -> LoginAnswer | None:
        """The refusal, if the policy does not allow it."""
        if await self._may(visitor.session.user, method, resource):
            return None
        return answers.error(403, "permission denied: the policy does not allow you to use this page")

    async def _may(self, user: UserInfo, method: str, resource: str) -> bool:
        info = request_info(RequestLine(method, f"{PREFIX}/{resource}"))
        return (await self._authorizer.authorize(Attributes(user, info))).allowed

    # --- the pages ---

    async def _sessions(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        user, group = only(request.query, "user"), only(request.query, "group")
        sessions = await self._tokens.store.sessions(username=user, group=group, limit=MOST_SESSIONS)
        rows = join(
            session_row(session, visitor, action="/auth/admin", owner=True, here=session.id == visitor.session.id)
            for session in sessions
        )
        count = counted("admin.session_count", len(sessions))
        if len(sessions) == MOST_SESSIONS:
            count = say("admin.newest", count=count)
        body = fill("admin_sessions.html", rows=rows, count=count, user=user or "", group=group or "")
        return _page(say("admin.sessions"), "/auth/admin", body, visitor)

    async def _refusals(self, decision: str, visitor: Visitor) -> LoginAnswer:
        if decision:
            refusal = await self._all_refusals.recall(decision)
            ended = await self._ended.recall(decision) if self._ended is not None and refusal is None else None
            if ended is not None:
                return _ended_page(ended, visitor)
            if refusal is None:
                return answers.error(404, "unknown request id: this gateway remembers no such request")
            now = explain_with_scope(await self._authorizer.explain(refusal.attributes), refusal)
            return _explanation_page(refusal, now, visitor)
        latest = await self._all_refusals.recent(MOST_REFUSALS)
        rows = join(
            fill(
                "admin_refusal.html",
                user=printable(refusal.attributes.user.username),
                asked=describe(refusal.attributes.request),
                at=shown_time(refusal.at),
                reason=printable(refusal.decision.reason) or say("admin.no_rule"),
                url=f"/auth/admin/refusals?id={quote(refusal.id, safe='')}",
            )
            for refusal in latest
        )
        body = fill("admin_refusals.html", rows=rows, count=counted("admin.refusal_count", len(latest)))
        return _page(say("admin.refusals"), "/auth/admin/refusals", body, visitor)

    async def _replicas(self, visitor: Visitor) -> LoginAnswer:
        replicas = [] if self._all_replicas is None else await self._all_replicas.all()
        body = replicas_body(replicas, counted("admin.replica_count", len(replicas)))
        return _page(say("admin.replicas"), "/auth/admin/replicas", body, visitor)

    def _who_can(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        values = {name: only(request.query, name) or "" for name in _ASKED}
        problem, result = NOTHING, NOTHING
        if any(values.values()):
            try:
                result = _search_result(
                    self._authorizer.who_can(Attributes(UserInfo(""), decode_subject_search(values)))
                )
            except ValueError as error:
                problem = problem_note(str(error))
        body = fill("admin_who_can.html", problem=problem, found=result, **values)
        return _page(say("admin.who_can"), "/auth/admin/who-can", body, visitor)


def describe(info: RequestInfo) -> str:
    """What a request asks for, in a line."""
    if not info.is_resource:
        return printable(f"{info.verb} {info.path}")
    resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
    kind = f"{resource}.{info.api_group}" if info.api_group else resource
    name = f" {info.name}" if info.name else ""
    scope = f" in {info.namespace}" if info.namespace else ""
    return printable(f"{info.verb} {kind}{name}{scope}")


def _explanation_page(refusal: Refusal, now: ChainExplanation, visitor: Visitor) -> LoginAnswer:
    attributes = refusal.attributes
    decided = now.error if now.decision is None else _outcome(now.decision)
    body = fill(
        "admin_explanation.html",
        id=refusal.id,
        user=printable(attributes.user.username),
        groups=printable(", ".join(attributes.user.groups)) or say("common.none"),
        asked=describe(attributes.request),
        at=shown_time(refusal.at),
        then=_outcome(refusal.decision),
        now=decided,
        steps=join(_step(step) for step in now.steps),
    )
    return _page(say("admin.explanation"), "/auth/admin/refusals", body, visitor)


def _ended_page(ended: EndedRequest, visitor: Visitor) -> LoginAnswer:
    """A request without a decision: a sign-in that failed, or nobody was identified."""
    facts = {
        "admin.ended_id": printable(ended.id),
        "admin.ended_at": time_text(ended.at),
        "admin.user": printable(ended.username),
        "admin.ended_from": printable(ended.address),
        "admin.ended_request": printable(f"{ended.method} {ended.path}"),
        "admin.ended_sign_in": printable(f"{ended.login} ({ended.provider})" if ended.provider else ended.login),
        "admin.ended_status": say("admin.ended_status_text", status=str(ended.status)),
        "admin.ended_reason": printable(ended.reason),
    }
    rows = (fill("fact.html", name=say(name), value=value) for name, value in facts.items() if value)
    return _page(say("admin.ended"), "/auth/admin/refusals", fill("admin_ended.html", facts=join(rows)), visitor)


def _step(step: Step) -> Markup:
    facts: dict[str, str] = {}
    if step.error:
        facts["admin.unavailable"] = printable(step.error)
    elif step.explanation is None:
        facts["admin.not_evaluated"] = say("admin.decided_earlier")
    else:
        explanation = step.explanation
        facts["admin.says"] = _decision(explanation.decision.verdict.value, explanation.decision.reason)
        facts["admin.closest"] = printable(explanation.closest)
        facts["admin.failed"] = printable(explanation.failed)
    rows = (fill("fact.html", name=say(name), value=value) for name, value in facts.items() if value)
    remedy = step.explanation.remedy if step.explanation is not None else ""
    remedy_row = fill("admin_remedy.html", remedy=printable(remedy)) if remedy else NOTHING
    return fill("admin_step.html", provider=step.name, facts=join(rows), remedy=remedy_row)


def _search_result(search: WhoCan) -> Markup:
    rows = join(
        fill(
            "admin_subject.html",
            name=printable(f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name),
            kind=printable(subject.kind),
            via=printable(subject.via),
        )
        for subject in search.subjects
    )
    unknown = NOTHING
    if search.unknown:
        text = say("admin.cannot_list", names=", ".join(search.unknown))
        unknown = fill("problem.html", text=text)
    return fill(
        "admin_found.html", rows=rows, count=counted("admin.subject_count", len(search.subjects)), unknown=unknown
    )


def _outcome(decision: Decision) -> str:
    """Of the whole chain, where no opinion means denied."""
    outcome = say("admin.allowed" if decision.allowed else "admin.hidden" if decision.hidden else "admin.denied")
    reason = printable(decision.reason)
    return say("admin.with_reason", outcome=outcome, reason=reason) if reason else outcome


def _decision(verdict: str, reason: str) -> str:
    return printable(f"{verdict}: {reason}" if reason else verdict)


def _page(title: str, here: str, body: Markup, visitor: Visitor) -> LoginAnswer:
    links = join(
        fill("navigation_here.html" if url == here else "navigation_link.html", url=url, text=say(message))
        for url, message in _LINKS.items()
    )
    tabs = fill("admin_links.html", links=links)
    return page(
        title,
        Markup(tabs + body),
        navigation=navigation("/auth/admin", admin=True, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
    )
