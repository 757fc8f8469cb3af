"""The webhooks that a cluster asks: who is this token (TokenReview), may this user (SubjectAccessReview).

Called with the body of a request whose sender has been authenticated; the listener sends what comes back. An answer
is given at once if nothing must be waited for, which is the rule: a token in memory, a policy of our own. A "no" is an
answer of 200. Only "could not ask" is a 500: Kubernetes tries that again, and then follows its failure policy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from ostiary.core.caching.bounded import Bounded
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.tokens import digest, well_formed
from ostiary.core.users.implied_groups import with_implied_groups
from ostiary.errors import OstiaryError
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.ruling import Ruling
from ostiary.gateway.authorize.step_up import AppliedRules, StepUpRules, describe
from ostiary.gateway.http1.headers import NO_DIGEST
from ostiary.gateway.request.own.token_review import NARROWED
from ostiary.model import Attributes, Decision, Verdict
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

# How many answers are kept with one token, so that many different audiences cannot fill our memory.
MOST_KEPT = 512
# How many decoded questions are kept, by the bytes of their bodies.
MOST_QUESTIONS = 8192
# A longer one is decoded each time, so that long questions cannot fill our memory.
LONGEST_QUESTION = 4096

# The same for the unknown, the expired and the revoked.
_NO_GOOD = "the token is not valid"
_OTHER_AUDIENCE = "the token is for other audiences"


# Called with what was refused, the decision, and the id under which the reason can be looked up later.
OnRefused = Callable[[Attributes, Decision, str], None]


class _TokenQuestion(NamedTuple):
    """What a TokenReview asks. The token is kept as its digest, which is enough to find it."""

    token: bytes
    api_version: str
    audiences: tuple[str, ...]


class TokenReviews:
    """Answers TokenReviews. *audiences* are those of our tokens; without any, tokens are good for every audience.

    With *fresh* the store is asked each time: a session may have been stepped up at another worker, and the cluster
    must be told how its person has signed in by now.
    """

    def __init__(
        self, authenticator: TokenAuthenticator, audiences: Sequence[str] = (), *, fresh: bool = False
    ) -> None:
        self._authenticator = authenticator
        self._fresh = fresh
        self._audiences = frozenset(audiences)
        # A cluster sends the same review for the same token again and again.
        self._questions: Bounded[bytes, _TokenQuestion] = Bounded(MOST_QUESTIONS)

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        key = sha256(body).digest()
        question = self._questions.get(key)
        if question is None:
            try:
                question = _question_of(decode_token_review(body))
            except ReviewError as error:
                return status.bad_request(str(error))
            if len(body) <= LONGEST_QUESTION and self._authenticator.recall(question.token) is not None:
                self._questions.keep(key, question)
        live = None if self._fresh else self._authenticator.recall(question.token)
        return self._look_up(question) if live is None else self._answer(question, live)

    async def _look_up(self, asked: _TokenQuestion) -> Answer:
        try:
            live = None if asked.token is NO_DIGEST else await self._authenticator.find(asked.token)
        except Exception as error:
            return _could_not_ask("a token cannot be looked up", error)
        return self._answer(asked, live)

    def _answer(self, asked: _TokenQuestion, live: TokenInUse | None) -> Answer:
        if live is None:
            return Answer(200, encode_unauthenticated(asked.api_version, _NO_GOOD))
        # What was answered lies with the token, and dies with it; for these audiences only: a reload may change them.
        key = (self, asked)
        answer = live.review_answers.get(key)
        if answer is None:
            answer = self._work_out(asked, live)
            if len(live.review_answers) < MOST_KEPT and sum(map(len, asked.audiences)) <= LONGEST_QUESTION:
                live.review_answers[key] = answer
        return answer

    def _work_out(self, asked: _TokenQuestion, live: TokenInUse) -> Answer:
        audiences: tuple[str, ...] = ()
        if asked.audiences and self._audiences:
            audiences = tuple(audience for audience in asked.audiences if audience in self._audiences)
            if not audiences:
                return Answer(200, encode_unauthenticated(asked.api_version, _OTHER_AUDIENCE))
        if live.delegation:
            # Whoever asks would take the token for its owner's, and let it do what the owner may.
            return Answer(200, encode_unauthenticated(asked.api_version, NARROWED))
        credential_id = f"OSTIARY={live.session.id}"
        # As the TokenReview of an API server does. One that asks us would add the implied groups itself; others do not.
        user = with_implied_groups(live.user)
        body = encode_authenticated(asked.api_version, user, credential_id=credential_id, audiences=audiences)
        return Answer(200, body)


def _question_of(review: TokenReview) -> _TokenQuestion:
    token = review.token.encode("utf-8", "surrogatepass")
    return _TokenQuestion(digest(token) if well_formed(token) else NO_DIGEST, review.api_version, review.audiences)


class SubjectAccessReviews:
    """Answers SubjectAccessReviews.

    A review cannot answer 404, and its reason is shown to the user. So every refusal reads alike, hidden or not, and
    an operator finds the reason by the decision id. What falls under a rule of *step_up* is denied unless the extra
    fields of the user say that their sign-in is enough: the person is told to step up, and nothing is held.
    """

    def __init__(
        self,
        authorizer: Authorizer,
        on_refused: OnRefused = lambda attributes, decision, id: None,
        *,
        step_up: StepUpRules | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._step_up = step_up or None
        self._now = clock.now
        self._authorizer = authorizer
        self._on_refused = on_refused
        # What was allowed, by the bytes of the body. A refusal is answered anew each time, with an id of its own.
        self._allowed: Bounded[bytes, tuple[Ruling, Answer]] = Bounded(MOST_QUESTIONS)

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        key = sha256(body).digest()
        allowed = self._allowed.get(key)
        if allowed is not None and self._authorizer.still_holds(allowed[0]):
            return allowed[1]
        try:
            review = decode_review(body)
            if review.kind != SUBJECT:
                raise ReviewError(f"kind must be {SUBJECT}")
            attributes = review.attributes()
        except ReviewError as error:
            return status.bad_request(str(error))
        try:
            ruling = self._authorizer.decide(attributes)
        except OstiaryError as error:
            return _could_not_ask("an access review cannot be answered", error)
        if ruling is None:
            return self._ask(review, attributes)
        answer = self._answer(review, attributes, ruling)
        # How recent a sign-in is changes from one question to the next.
        keeps = self._step_up is None or self._applied(attributes) is None
        if ruling.allowed and keeps and len(body) <= LONGEST_QUESTION:
            self._allowed.keep(key, (ruling, answer))
        return answer

    def _applied(self, attributes: Attributes) -> AppliedRules | None:
        """The step-up rules; those for some upstreams, too: a cluster does not say which one it is."""
        if self._step_up is None:
            return None
        return self._step_up.applying((attributes.request,), attributes.user, any_upstream=True)

    async def _ask(self, review: AccessReview, attributes: Attributes) -> Answer:
        try:
            decision = await self._authorizer.authorize(attributes)
        except OstiaryError as error:
            return _could_not_ask("an access review cannot be answered", error)
        return self._answer(review, attributes, decision)

    def _answer(self, review: AccessReview, attributes: Attributes, decision: Decision) -> Answer:
        if decision.allowed:
            applied = self._applied(attributes)
            rule = None if applied is None else applied.first_unmet(self._now())
            if rule is None:
                return Answer(200, encode_status(review, decision))
            needed = f"step-up required by the rule {rule.name}: {describe(rule.required)}"
            refused = Decision(Verdict.DENY, needed)
            self._on_refused(attributes, refused, self._authorizer.record(attributes, refused))
            # Whoever may do it may know what it takes.
            return Answer(200, encode_status(review, refused, reason=f"{needed}; run: ostiary login --step-up"))
        decision_id = self._authorizer.record(attributes, decision)
        self._on_refused(attributes, decision, decision_id)
        return Answer(200, encode_status(review, decision, reason=f"ostiary: decision {decision_id}"))


def _could_not_ask(what: str, error: Exception) -> Answer:
    cause = (error.cause or error.summary) if isinstance(error, OstiaryError) else type(error).__name__
    log.error(what, extra={"cause": cause})
    return status.internal()
