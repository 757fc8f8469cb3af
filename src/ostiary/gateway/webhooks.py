"""The webhooks that a cluster asks: who is this token (TokenReview), may this user (SubjectAccessReview).

Called with the body of a request whose sender has been authenticated; the listener sends what comes back. An answer
is given at once if nothing must be waited for, which is the rule: a token in memory, a policy of our own. A "no" is an
answer of 200. Only "could not ask" is a 500: Kubernetes tries that again, and then follows its failure policy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence

from ostiary.core.tokens import digest
from ostiary.errors import OstiaryError
from ostiary.gateway.authenticate import Authenticator, LiveToken
from ostiary.gateway.authorize import Authorizer
from ostiary.model import Attributes, Decision
from ostiary.wire import status
from ostiary.wire.authentication import (
    TokenReview,
    decode_token_review,
    encode_authenticated,
    encode_unauthenticated,
)
from ostiary.wire.authorization import SUBJECT, AccessReview, ReviewError, decode_review, encode_status
from ostiary.wire.status import Answer

log = logging.getLogger("ostiary.gateway")

# How much may lie with one token: odd audiences shall not fill the memory.
MOST_KEPT = 512

# The same for the unknown, the expired and the revoked.
_NO_GOOD = "the token is not valid"
_OTHER_AUDIENCE = "the token is for other audiences"


class TokenReviews:
    """Answers TokenReviews. *audiences* are those that our tokens are for; without any, they are for whoever asks."""

    def __init__(self, authenticator: Authenticator, audiences: Sequence[str] = ()) -> None:
        self._authenticator = authenticator
        self._audiences = frozenset(audiences)

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        try:
            review = decode_token_review(body)
        except ReviewError as error:
            return status.bad_request(str(error))
        token = review.token.encode("utf-8", "surrogatepass")
        live = self._authenticator.known(digest(token))
        return self._look_up(review, token) if live is None else self._answer(review, live)

    async def _look_up(self, review: TokenReview, token: bytes) -> Answer:
        try:
            live = await self._authenticator.find(token)
        except Exception as error:
            return _could_not_ask("a token cannot be looked up", error)
        return self._answer(review, live)

    def _answer(self, review: TokenReview, live: LiveToken | None) -> Answer:
        if live is None:
            return Answer(200, encode_unauthenticated(review.api_version, _NO_GOOD))
        # A cluster asks about the same token again and again. What was answered lies with the token, and dies with it.
        key = (TokenReviews, review.api_version, review.audiences)
        answer: Answer | None = live.plans.get(key)
        if answer is None:
            answer = self._work_out(review, live)
            if len(live.plans) < MOST_KEPT:
                live.plans[key] = answer
        return answer

    def _work_out(self, review: TokenReview, live: LiveToken) -> Answer:
        audiences: tuple[str, ...] = ()
        if review.audiences and self._audiences:
            audiences = tuple(audience for audience in review.audiences if audience in self._audiences)
            if not audiences:
                return Answer(200, encode_unauthenticated(review.api_version, _OTHER_AUDIENCE))
        credential_id = f"OSTIARY={live.session.id}"
        body = encode_authenticated(review.api_version, live.user, credential_id=credential_id, audiences=audiences)
        return Answer(200, body)


class SubjectAccessReviews:
    """Answers SubjectAccessReviews.

    A review cannot say 404, and what it gives as the reason is shown to the user. So every refusal reads alike,
    hidden or not, and its decision id leads an operator to the reason.
    """

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        try:
            review = decode_review(body)
            if review.kind != SUBJECT:
                raise ReviewError(f"kind must be {SUBJECT}")
            attributes = review.attributes()
        except ReviewError as error:
            return status.bad_request(str(error))
        try:
            decision = self._authorizer.decide(attributes)
        except OstiaryError as error:
            return _could_not_ask("an access review cannot be answered", error)
        return self._ask(review, attributes) if decision is None else self._answer(review, attributes, decision)

    async def _ask(self, review: AccessReview, attributes: Attributes) -> Answer:
        try:
            decision = await self._authorizer.authorize(attributes)
        except OstiaryError as error:
            return _could_not_ask("an access review cannot be answered", error)
        return self._answer(review, attributes, decision)

    def _answer(self, review: AccessReview, attributes: Attributes, decision: Decision) -> Answer:
        if decision.allowed:
            return Answer(200, encode_status(review, decision))
        reason = f"ostiary: decision {self._authorizer.record(attributes, decision)}"
        return Answer(200, encode_status(review, decision, reason=reason))


def _could_not_ask(what: str, error: Exception) -> Answer:
    cause = (error.cause or error.summary) if isinstance(error, OstiaryError) else type(error).__name__
    log.error(what, extra={"cause": cause})
    return status.internal()
