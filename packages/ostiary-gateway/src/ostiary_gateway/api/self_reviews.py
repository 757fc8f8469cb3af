"""Reviews that users make about themselves: ``kubectl auth can-i``, ``can-i --list`` and ``whoami``.

The upstream would respond from its own policy, about the user that the gateway presents to it. These responses are from
the gateway's policy and do not include what the upstream would deny in addition. Every signed-in user may send them, as
in Kubernetes. Encodings and warnings match kube-apiserver (`ostiary_gateway.wire.self_reviews`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import replace

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import Delegation
from ostiary.errors import OstiaryError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary_gateway.authorization.cached_decision import OutOfScope
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.authorization.scope_rules import rules_within
from ostiary_gateway.authorization.token_scope import refusal_by_scope
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.proxy.reviews import SELF_REVIEW_KINDS, ReviewAnswer, ReviewRequest, review_request, send_review
from ostiary_gateway.wire.audit_policy import ACTOR, SCOPE
from ostiary_gateway.wire.negotiation import MEDIA_TYPES, Representation, wanted_representation
from ostiary_gateway.wire.protobuf import as_json, encode_as
from ostiary_gateway.wire.self_reviews import (
    RULES,
    WHO,
    ReviewRefused,
    SelfReview,
    access_answer,
    access_question,
    only_metadata,
    read_review,
    rules_answer,
    who_answer,
)

log = logging.getLogger("ostiary.gateway")


class SelfReviews:
    """Respond to SelfSubjectAccessReview, SelfSubjectRulesReview and SelfSubjectReview."""

    def __init__(self, authorizer: Authorizer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._authorizer = authorizer
        self._clock = clock

    def answer(
        self, info: RequestInfo, user: UserInfo, request: ReviewRequest, delegation: Delegation | None = None
    ) -> ReviewAnswer | Awaitable[ReviewAnswer]:
        """Return the response to *user*; an awaitable only if a remote provider must be queried.

        *delegation* is that of a scoped token: the response covers only what the token permits.
        """
        representation = wanted_representation(request.accept, query=request.query, user_agent=request.user_agent)
        if representation is None:
            return _not_acceptable()
        kind = SELF_REVIEW_KINDS[info.resource]
        try:
            review = read_review(kind, request.body, content_type=request.content_type, query=request.query)
        except ReviewRefused as refused:
            return _refusal(refused, representation)
        user = with_implied_groups(user)
        if kind == WHO:
            now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            return _creation(who_answer(_with_delegation(user, delegation), now), representation, review)
        if kind == RULES:
            namespace = review.spec["namespace"]
            rules = self._authorizer.rules_for(user, namespace, upstream=info.upstream)
            if delegation is not None:
                rules = rules_within(rules, delegation, namespace=namespace, upstream=info.upstream)
            return _creation(rules_answer(rules), representation, review)
        return self._access(review, user, representation, delegation, upstream=info.upstream)

    def _access(
        self,
        review: SelfReview,
        user: UserInfo,
        wanted: Representation,
        delegation: Delegation | None,
        *,
        upstream: str,
    ) -> ReviewAnswer | Awaitable[ReviewAnswer]:
        question, error = access_question(review)
        attributes = Attributes(user, replace(question, upstream=upstream))

        def answer(decision: Decision) -> ReviewAnswer:
            refused = decision.reason if isinstance(decision, OutOfScope) else ""
            return _creation(access_answer(review, decision, error=error, refused=refused), wanted, review)

        refusal = refusal_by_scope(delegation, (attributes.request,), generation=self._authorizer.generation)
        if refusal is not None:
            return answer(refusal)

        async def ask() -> ReviewAnswer:
            try:
                return answer(await self._authorizer.authorize(attributes))
            except OstiaryError as failure:
                return _could_not_ask(failure, wanted)

        try:
            decision = self._authorizer.decide(attributes)
        except OstiaryError as failure:
            return _could_not_ask(failure, wanted)
        return ask() if decision is None else answer(decision)


def _with_delegation(user: UserInfo, delegation: Delegation | None) -> UserInfo:
    """Return *user* with the token's scope in the extra fields, where ``kubectl auth whoami`` shows it."""
    if delegation is None:
        return user
    notes = {SCOPE: (str(delegation),), **({ACTOR: (delegation.actor,)} if delegation.actor else {})}
    return replace(user, extra=tuple(sorted({**dict(user.extra), **notes}.items())))


def _creation(value: dict[str, object], wanted: Representation, review: SelfReview) -> ReviewAnswer:
    if wanted.metadata_version:
        value = only_metadata(value, wanted.metadata_version)
    return ReviewAnswer(201, *encode_as(value, wanted), review.warnings)


def _refusal(refused: ReviewRefused, wanted: Representation) -> ReviewAnswer:
    causes = [{"reason": each.reason, "message": each.message, "field": each.field} for each in refused.causes]
    fields = {"group": refused.group, "kind": refused.subject, "causes": causes}
    details = {key: value for key, value in fields.items() if value} if causes else None
    reason = {400: "BadRequest", 415: "UnsupportedMediaType", 422: "Invalid"}[refused.code]
    failure = status.failure_object(refused.code, reason, str(refused), details)
    return ReviewAnswer(refused.code, *encode_as(failure, wanted), refused.warnings)


def _not_acceptable() -> ReviewAnswer:
    # The client accepts none of our media types, so send the human-readable one.
    message = f"only the following media types are accepted: {', '.join(MEDIA_TYPES)}"
    failure = status.failure_object(406, "NotAcceptable", message)
    return ReviewAnswer(406, "application/json", as_json(failure, pretty=True))


def _could_not_ask(error: OstiaryError, wanted: Representation) -> ReviewAnswer:
    log.error("a self review cannot be answered", extra={"cause": error.cause or error.summary})
    failure = status.failure_object(500, "InternalError", "Internal error occurred")
    return ReviewAnswer(500, *encode_as(failure, wanted))


# Self reviews are short. Parsing a long one would delay all other requests.
LARGEST_SELF_REVIEW = 128 * 1024


class SelfReviewHandler:
    """Read a self review and send the response."""

    def __init__(self, authorizer: Authorizer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviews = SelfReviews(authorizer, clock)

    async def handle(self, ctx: RequestContext) -> int:
        try:
            body = await read_body(ctx.exchange, LARGEST_SELF_REVIEW)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return send_status(ctx, status.too_large())
        request = review_request(ctx, body)
        answer = self._reviews.answer(ctx.plan.info, ctx.plan.user, request, ctx.plan.delegation)
        return send_review(ctx, answer if isinstance(answer, ReviewAnswer) else await answer)
