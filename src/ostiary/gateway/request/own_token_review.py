"""A TokenReview that somebody makes about the very token that they present.

Called by the engine before such a request is refused or passed on. The upstream does not know our tokens, and would say
that nobody is signed in. What is told here is what ``whoami`` tells, so nothing has to be allowed for it; a review of
any other token is decided on and passed on like every request, with the body that was read.
"""

from __future__ import annotations

from ostiary.core.implied_groups import with_implied_groups
from ostiary.core.tokens import digest, well_formed
from ostiary.gateway.authenticate.authenticator import LiveToken
from ostiary.gateway.doors.self_reviews import ReviewAnswer, ReviewRequest, review_request
from ostiary.gateway.http1.body import BodyTooLarge, read_body
from ostiary.gateway.request.stages import Passage
from ostiary.model import RequestInfo
from ostiary.wire import status
from ostiary.wire.codec.encodings import encode
from ostiary.wire.codec.negotiation import wanted_representation
from ostiary.wire.self_reviews import API_VERSIONS, TOKEN, ReviewRefused, read_review, token_answer

# A larger one is passed on without a look: no token is as long as that.
LARGEST_TOKEN_REVIEW = 64 * 1024


def is_token_review(info: RequestInfo) -> bool:
    return (
        info.resource == "tokenreviews"
        and info.verb == "create"
        and f"{info.api_group}/{info.api_version}" == API_VERSIONS[TOKEN]
        and not (info.name or info.namespace or info.subresource)
    )


async def review_own_token(passage: Passage) -> ReviewAnswer | None:
    """Read the body and answer it, or give it back and answer nothing; raises `ClientGone`."""
    exchange = passage.exchange
    if (exchange.request.content_length or 0) > LARGEST_TOKEN_REVIEW:
        return None
    try:
        body = await read_body(exchange, LARGEST_TOKEN_REVIEW)
    except BodyTooLarge:
        code, text = status.too_large()
        return ReviewAnswer(code, "application/json", text)
    answer = answer_about_own_token(passage.live, review_request(passage, body))
    if answer is None:
        exchange.return_body(body)
    return answer


def answer_about_own_token(live: LiveToken, request: ReviewRequest) -> ReviewAnswer | None:
    """The answer to whoever presents *live*; None if they ask about something else, or cannot be understood."""
    wanted = wanted_representation(request.accept, query=request.query, user_agent=request.user_agent)
    try:
        review = read_review(TOKEN, request.body, content_type=request.content_type, query=request.query)
    except ReviewRefused:
        return None
    token = str(review.spec.get("token", "")).encode("utf-8", "surrogatepass")
    if wanted is None or not well_formed(token) or digest(token) != live.digest:
        return None
    answer = token_answer(review, with_implied_groups(live.user), f"OSTIARY={live.session.id}")
    return ReviewAnswer(201, *encode(answer, wanted), review.warnings)
