"""Why a request was denied or allowed, and how one ended that nobody decided on: values in, page out. Pure.

Called by the administration area, with the id that the caller of the request was told.
"""

from __future__ import annotations

from ostiary.gateway.audit.ended_requests import EndedRequest
from ostiary.gateway.authorize.chain import ChainExplanation, Step
from ostiary.gateway.authorize.refusals import Refusal
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.admin.frame import DECISIONS, REFUSALS, TITLES, AdminFrame
from ostiary.gateway.login.pages.admin.listing.decided import describe
from ostiary.gateway.login.pages.admin.listing.texts import shown
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.pieces import shown_time, time_text
from ostiary.gateway.login.pages.templates import fill
from ostiary.model import Decision


def explanation_page(decided: Refusal, now: ChainExplanation, frame: AdminFrame) -> LoginAnswer:
    """*decided* is what was decided then, *now* what would be decided today."""
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
    """A request without a decision: a sign-in that failed, or nobody was identified."""
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
    """Of the whole chain, where no opinion means denied."""
    outcome = say("admin.allowed" if decision.allowed else "admin.hidden" if decision.hidden else "admin.denied")
    reason = shown(decision.reason)
    return say("admin.with_reason", outcome=outcome, reason=reason) if reason else outcome
