"""Receives the reviews that users make about themselves, and answers them from our policy.

Called by the engine for a request that is a self review; `self_reviews` says what is answered.
"""

from __future__ import annotations

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.doors.self_reviews import SelfReviews
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary.gateway.request.own.reviews import ReviewAnswer, review_request, send_review
from ostiary.gateway.request.own.send_status import send_status
from ostiary.gateway.request.stages import Passage
from ostiary.wire import status

# A question about oneself is short; reading a long one holds up everybody else.
LARGEST_SELF_REVIEW = 128 * 1024


class SelfReviewHandler:
    """Reads a self review and sends its answer."""

    def __init__(self, authorizer: Authorizer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviews = SelfReviews(authorizer, clock)

    async def handle(self, passage: Passage) -> int:
        try:
            body = await read_body(passage.exchange, LARGEST_SELF_REVIEW)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return send_status(passage, status.too_large())
        request = review_request(passage, body)
        answer = self._reviews.answer(passage.plan.info, passage.plan.user, request, passage.plan.delegation)
        return send_review(passage, answer if isinstance(answer, ReviewAnswer) else await answer)
