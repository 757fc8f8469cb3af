"""TokenReviews of a client's own token, served by the gateway.

The upstream does not know the gateway's tokens and would respond that the token is invalid. The response contains what
``whoami`` shows, so no permission is required. A review of any other token is authorized and forwarded as usual.
"""

from __future__ import annotations

from ostiary.wire import status
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.request_log import RequestLog
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.proxy.reviews import ReviewAnswer, ReviewRequest, review_request, send_review
from ostiary_gateway.sessions import digest, well_formed
from ostiary_gateway.wire.negotiation import wanted_representation
from ostiary_gateway.wire.protobuf import encode_as
from ostiary_gateway.wire.self_reviews import TOKEN, ReviewRefused, read_review, token_answer, token_refusal

# Larger bodies are forwarded without inspection: no token is that long.
LARGEST_TOKEN_REVIEW = 64 * 1024
NARROWED = "the token is limited to a scope: it is good at the gateway only"


class OwnTokenReviews:
    """Serves token reviews for one engine."""

    def __init__(self, recheck: RecheckAfterWait, answers: Responses, records: RequestLog) -> None:
        self._recheck = recheck
        self._answers = answers
        self._records = records

    async def answer_or_pass(self, ctx: RequestContext) -> bool:
        """Respond to a review of the sender's own token.

        Return True for any other request, which continues as usual.
        """
        try:
            answer = await review_own_token(ctx)
        except ClientGone:
            ctx.release()
            return False
        ctx.body_was_read = True
        if not await self._recheck.is_still_allowed(ctx):
            return False
        plan = ctx.plan
        if answer is None and plan.ruling.allowed:
            return True
        ctx.release()
        if answer is None:
            self._answers.send_refusal(ctx, plan)
        else:
            now = self._records.count(ctx, answer.code, plan)
            if plan.audit is not None:
                self._records.record_completion(plan.audit, ctx, answer.code, now)
            send_review(ctx, answer)
        return False


async def review_own_token(ctx: RequestContext) -> ReviewAnswer | None:
    """Read the body and return the response.

    For any other request put the body back and return None. Raises `ClientGone`.
    """
    exchange = ctx.exchange
    if (exchange.request.content_length or 0) > LARGEST_TOKEN_REVIEW:
        return None
    try:
        body = await read_body(exchange, LARGEST_TOKEN_REVIEW)
    except BodyTooLarge:
        code, text = status.too_large()
        return ReviewAnswer(code, "application/json", text)
    answer = answer_about_own_token(ctx.token, review_request(ctx, body))
    if answer is None:
        exchange.return_body(body)
    return answer


def answer_about_own_token(token: CachedToken, request: ReviewRequest) -> ReviewAnswer | None:
    """Return the response to the owner of *token*; None if the review is about another token or invalid."""
    representation = wanted_representation(request.accept, query=request.query, user_agent=request.user_agent)
    try:
        review = read_review(TOKEN, request.body, content_type=request.content_type, query=request.query)
    except ReviewRefused:
        return None
    reviewed = str(review.spec.get("token", "")).encode("utf-8", "surrogatepass")
    if representation is None or not well_formed(reviewed) or digest(reviewed) != token.digest:
        return None
    if token.delegation:
        # A TokenReview cannot express the scope, so a backend would grant the owner's full rights.
        answer = token_refusal(review, NARROWED)
    else:
        answer = token_answer(review, with_implied_groups(token.user), f"OSTIARY={token.session.id}")
    return ReviewAnswer(201, *encode_as(answer, representation), review.warnings)
