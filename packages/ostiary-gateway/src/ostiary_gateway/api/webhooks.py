"""The webhooks below ``/webhooks``, for clusters and backends.

A response is sent synchronously if nothing must be waited for, which is the usual case. A "no" is a 200. Only "could
not determine" is a 500: Kubernetes retries, and then follows its failure policy.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import OstiaryError, TooManyRequests
from ostiary.model import Attributes, Decision, Verdict
from ostiary.wire import status
from ostiary.wire.status import Answer
from ostiary_gateway.api.revocations import RevokedCredentialList, RevokedCredentialReviews
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.bearer_token import bearer
from ostiary_gateway.authentication.callers import CallerToken, CertificateNames
from ostiary_gateway.authentication.token_cache import CachedToken
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.authorization.step_up import AppliedRules, StepUpRules, describe
from ostiary_gateway.config.extauth import Callers
from ostiary_gateway.config.gateway_config import Webhooks
from ostiary_gateway.http1.headers import NO_DIGEST, FilteredHeaders
from ostiary_gateway.issuer.claims import session_digest
from ostiary_gateway.limits.rates import FailedAttempts
from ostiary_gateway.proxy.context import RequestContext, Served
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.proxy.target import path_of
from ostiary_gateway.proxy.token_review import NARROWED
from ostiary_gateway.sessions import digest, well_formed
from ostiary_gateway.wire.authentication import (
    TokenReview,
    decode_token_review,
    encode_authenticated,
    encode_unauthenticated,
)
from ostiary_gateway.wire.authorization import SUBJECT, AccessReview, ReviewError, decode_review, encode_status
from ostiary_gateway.wire.token_introspection import PATH as TOKEN_INTROSPECTION
from ostiary_gateway.wire.token_introspection import TokenDescription, decode_question, encode_answer


class WebhookCallers:
    """The configured callers: a client certificate with a listed name, or the bearer of the configured token."""

    def __init__(self, configured: Callers, clock: Clock) -> None:
        self._names = CertificateNames(configured.names)
        self._token = None if configured.token_file is None else CallerToken(configured.token_file, clock)

    def include(self, certificate: bytes | None, scanned: FilteredHeaders) -> bool:
        """Report whether the sender is one of them. Raises `OSError` if the token file cannot be read.

        *certificate* is the peer's, in DER, and *scanned* the headers of the call.
        """
        if self._names.include(certificate):
            return True
        if self._token is None:
            return False
        if scanned.authorization is not None:
            token = bearer(scanned.authorization)
            scanned.digest = NO_DIGEST if token is None else digest(token)
        # Without the header the request head came from the cache, which stores only the digest.
        return hmac.compare_digest(scanned.digest, self._token.digest())


# Token introspection: the user, expiry and scope of a token, for backends that check tokens themselves.

log = logging.getLogger("ostiary.gateway")

# Identical for unknown, expired and revoked tokens.
NOBODY = Answer(200, encode_answer(None))


class TokenIntrospections:
    """Respond to ``POST /webhooks/token-introspection``.

    Unlike a TokenReview, it also describes scoped tokens: a caller of this kind applies the delegation before the
    policy (decision 0057). Unknown tokens count against the address of the client that presented them to the backend
    (`limits.failuresPerMinute`); the backend always gets a response.
    """

    def __init__(self, authenticator: TokenAuthenticator, failures: FailedAttempts) -> None:
        self._authenticator = authenticator
        self._failures = failures

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        try:
            text, address = decode_question(body)
            token = text.encode("utf-8", "surrogatepass")
        except ValueError as error:
            return status.bad_request(str(error))
        if not well_formed(token):
            return NOBODY
        token_digest = digest(token)
        live = self._authenticator.recall(token_digest)
        return self._look_up(token_digest, address) if live is None else _describe(live)

    async def _look_up(self, token_digest: bytes, address: str) -> Answer:
        try:
            live = await self._authenticator.find(token_digest)
        except OstiaryError as error:
            log.error("a token cannot be looked up", extra={"cause": error.cause or error.summary})
            return status.internal()
        if live is None and address:
            with suppress(TooManyRequests):  # reported to the client at the gateway; the backend gets its response
                self._failures.charge(address, token_digest)
        return NOBODY if live is None else _describe(live)


def _describe(live: CachedToken) -> Answer:
    session = live.session
    description = TokenDescription(
        live.user,
        # Earlier than the token's end if the owner must be checked again before it (service accounts, API tokens).
        live.expires_at,
        live.digest.hex(),
        session_digest(session.id),
        sequence=session.sequence or 0,
        began_at=int(session.created_at.timestamp()),
        delegation=live.delegation,
    )
    return Answer(200, encode_answer(description))


# TokenReview and SubjectAccessReview, for clusters. A response is immediate for a cached token and a local policy.

# Maximum number of cached responses per token: many different audiences must not fill the memory.
MOST_KEPT = 512
# Maximum number of cached decoded reviews, by the digest of their bodies.
MOST_QUESTIONS = 8192
# Longer reviews are not cached, so that they cannot fill the memory.
LONGEST_QUESTION = 4096

# Identical for unknown, expired and revoked tokens.
_NO_GOOD = "the token is not valid"
_OTHER_AUDIENCE = "the token is for other audiences"


# Called with the denied attributes, the decision, and the id under which the reason can be looked up.
OnRefused = Callable[[Attributes, Decision, str], None]


class _TokenQuestion(NamedTuple):
    """The content of a TokenReview, with the token's digest instead of the token."""

    token: bytes
    api_version: str
    audiences: tuple[str, ...]


class TokenReviews:
    """Respond to TokenReviews. *audiences* are those of our tokens; if empty, tokens are valid for every audience.

    If *fresh*, the store is queried each time: the session may have been stepped up at another worker, and the cluster
    must see how the user is authenticated now.
    """

    def __init__(
        self, authenticator: TokenAuthenticator, audiences: Sequence[str] = (), *, fresh: bool = False
    ) -> None:
        self._authenticator = authenticator
        self._fresh = fresh
        self._audiences = frozenset(audiences)
        # A cluster repeats the same review for the same token.
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

    def _answer(self, asked: _TokenQuestion, live: CachedToken | None) -> Answer:
        if live is None:
            return Answer(200, encode_unauthenticated(asked.api_version, _NO_GOOD))
        # Responses are cached with the token and are discarded with it. The key includes this object, because a reload
        # may change the audiences.
        key = (self, asked)
        answer = live.review_answers.get(key)
        if answer is None:
            answer = self._work_out(asked, live)
            if len(live.review_answers) < MOST_KEPT and sum(map(len, asked.audiences)) <= LONGEST_QUESTION:
                live.review_answers[key] = answer
        return answer

    def _work_out(self, asked: _TokenQuestion, live: CachedToken) -> Answer:
        audiences: tuple[str, ...] = ()
        if asked.audiences and self._audiences:
            audiences = tuple(audience for audience in asked.audiences if audience in self._audiences)
            if not audiences:
                return Answer(200, encode_unauthenticated(asked.api_version, _OTHER_AUDIENCE))
        if live.delegation:
            # The caller would treat the token as the owner's and grant the owner's full rights.
            return Answer(200, encode_unauthenticated(asked.api_version, NARROWED))
        credential_id = f"OSTIARY={live.session.id}"
        # Like the TokenReview of an API server. A kube-apiserver adds the implied groups itself; other callers do not.
        user = with_implied_groups(live.user)
        body = encode_authenticated(asked.api_version, user, credential_id=credential_id, audiences=audiences)
        return Answer(200, body)


def _question_of(review: TokenReview) -> _TokenQuestion:
    token = review.token.encode("utf-8", "surrogatepass")
    return _TokenQuestion(digest(token) if well_formed(token) else NO_DIGEST, review.api_version, review.audiences)


class SubjectAccessReviews:
    """Respond to SubjectAccessReviews.

    A review cannot respond with 404, and its reason is shown to the user. So every denial reads the same, hidden or
    not, and an operator finds the reason by the decision id. A request under a rule of *step_up* is denied unless the
    extra fields of the user prove a sufficient sign-in: the user is prompted to step up, and no request is held.
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
        # Allowed reviews, by the digest of the body. Denials are not cached, because each gets its own id.
        self._allowed: Bounded[bytes, tuple[CachedDecision, Answer]] = Bounded(MOST_QUESTIONS)

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        key = sha256(body).digest()
        allowed = self._allowed.get(key)
        if allowed is not None and self._authorizer.is_valid(allowed[0]):
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
        # Not cached: the age of a sign-in changes from one review to the next.
        keeps = self._step_up is None or self._applied(attributes) is None
        if ruling.allowed and keeps and len(body) <= LONGEST_QUESTION:
            self._allowed.keep(key, (ruling, answer))
        return answer

    def _applied(self, attributes: Attributes) -> AppliedRules | None:
        """Return the step-up rules, including those for single upstreams: a cluster does not say which one it is."""
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
            # The policy allows this user, so the required step-up may be disclosed to them.
            return Answer(200, encode_status(review, refused, reason=f"{needed}; run: ostiary login --step-up"))
        decision_id = self._authorizer.record(attributes, decision)
        self._on_refused(attributes, decision, decision_id)
        return Answer(200, encode_status(review, decision, reason=f"ostiary: decision {decision_id}"))


def _could_not_ask(what: str, error: Exception) -> Answer:
    cause = (error.cause or error.summary) if isinstance(error, OstiaryError) else type(error).__name__
    log.error(what, extra={"cause": cause})
    return status.internal()


# Large enough for selectors, which Kubernetes bounds by its own limit on a request's head.
LARGEST_REVIEW = 1024 * 1024

Reviews = TokenReviews | SubjectAccessReviews | RevokedCredentialReviews | TokenIntrospections
REVOKED_CREDENTIALS = b"/webhooks/revoked-credentials"


class WebhookHandler:
    """The endpoints below ``/webhooks``, for the configured callers.

    *failures* counts invalid tokens by the address of the client. *deny_revoked* is for clusters that trust our issuer,
    *revoked_list* for them and for backends.

    A cluster calls for each of its own requests, so a response that needs no waiting is sent without a task.
    """

    def __init__(
        self,
        configured: Webhooks,
        authenticator: TokenAuthenticator,
        authorizer: Authorizer,
        clock: Clock,
        *,
        on_refused: OnRefused,
        failures: FailedAttempts,
        step_up: StepUpRules | None = None,
        deny_revoked: RevokedCredentialReviews | None = None,
        revoked_list: RevokedCredentialList | None = None,
    ) -> None:
        self._callers = WebhookCallers(configured.callers, clock)
        self._reviews: dict[bytes, Reviews] = {}
        if configured.token_review:
            self._reviews[b"/webhooks/token-review"] = TokenReviews(
                authenticator, configured.audiences, fresh=bool(step_up)
            )
        if configured.subject_access_review:
            self._reviews[b"/webhooks/subject-access-review"] = SubjectAccessReviews(
                authorizer, on_refused, step_up=step_up, clock=clock
            )
        if configured.introspection:
            self._reviews[TOKEN_INTROSPECTION.encode()] = TokenIntrospections(authenticator, failures)
        if deny_revoked is not None:
            self._reviews[b"/webhooks/deny-revoked"] = deny_revoked
        self._revoked_list = revoked_list
        # kube-apiserver appends this query to the URL. With any other query the path alone is looked up.
        self._reviews |= {path + b"?timeout=30s": reviews for path, reviews in self._reviews.items()}

    def handle(self, ctx: RequestContext, served: Served) -> Awaitable[None] | None:
        exchange = ctx.exchange
        request = exchange.request
        target = path_of(request.target, request.host)
        reviews = self._reviews.get(target) or self._reviews.get(target.partition(b"?")[0])
        try:
            allowed = self._callers.include(exchange.connection.peer_certificate, ctx.scanned)
        except OSError as error:
            # An error of the gateway: a 401 would mean that the caller's token is invalid.
            log.error("callers.tokenFile cannot be read", extra={"cause": error.strerror})
            served(send_status(ctx, status.internal()))
            return None
        if not allowed:
            served(send_status(ctx, status.unauthorized(), (b"WWW-Authenticate", b"Bearer")))
        elif self._revoked_list is not None and target.partition(b"?")[0] == REVOKED_CREDENTIALS:
            return self._send_list(self._revoked_list, target.partition(b"?")[2], ctx, served)
        elif reviews is None:
            served(send_status(ctx, status.no_route()))
        elif request.method != b"POST":
            served(send_status(ctx, status.method_not_allowed(), (b"Allow", b"POST")))
        elif request.content_length is not None and request.content_length > LARGEST_REVIEW:
            served(send_status(ctx, status.too_large()))
        else:
            body = exchange.whole_body()
            answer = None if body is None else reviews.answer(body)
            if isinstance(answer, status.Answer):
                served(send_status(ctx, answer))
            else:
                _ReviewInProgress(reviews, ctx, served).begin(answer)
        return None

    async def _send_list(
        self, revoked: RevokedCredentialList, query: bytes, ctx: RequestContext, served: Served
    ) -> None:
        if ctx.exchange.request.method != b"GET":
            served(send_status(ctx, status.method_not_allowed(), (b"Allow", b"GET")))
        else:
            answer = await revoked.answer(query.decode("latin-1"))
            served(send_status(ctx, answer, (b"Cache-Control", b"no-store")))


class _ReviewInProgress:
    """A review whose body is incomplete or whose response needs a lookup. Responds with the last byte if possible."""

    __slots__ = ("_parts", "_passage", "_reviews", "_served", "_size", "_task")

    def __init__(self, reviews: Reviews, ctx: RequestContext, served: Served) -> None:
        self._reviews, self._passage, self._served = reviews, ctx, served
        self._parts: list[bytes] = []
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self, answer: Awaitable[status.Answer] | None) -> None:
        """Wait for the body, or for *answer* if the body has been read."""
        if answer is None:
            self._passage.exchange.accept_body(self)
        else:
            self._wait_for(answer)

    def body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= LARGEST_REVIEW:
            self._parts.append(data)

    def body_end(self) -> None:
        if self._size > LARGEST_REVIEW:
            self._send(status.too_large())
            return
        answer = self._reviews.answer(b"".join(self._parts))
        if isinstance(answer, status.Answer):
            self._send(answer)
        else:
            self._wait_for(answer)

    def _wait_for(self, answer: Awaitable[status.Answer]) -> None:
        exchange = self._passage.exchange
        exchange.responder = self
        self._task = exchange.connection.loop.create_task(self._answer_later(answer))

    async def _answer_later(self, answer: Awaitable[status.Answer]) -> None:
        try:
            self._send(await answer)
        except Exception as error:
            log.error("a review could not be answered", extra={"cause": type(error).__name__}, exc_info=error)
            self._send(status.internal())

    def _send(self, answer: status.Answer) -> None:
        self._passage.exchange.responder = None
        self._served(send_status(self._passage, answer))

    def client_lost(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._served(0)

    def client_full(self) -> None:
        pass

    def client_ready(self) -> None:
        pass
