"""Receives the calls of ``/webhooks``: checks the caller, reads the body, sends the answer.

Called by the engine. What a review is answered with is decided in `reviews`, and who may call in `callers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from ostiary.core.clock import Clock
from ostiary.core.counting.rates import FailedAttempts
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.step_up import StepUpRules
from ostiary.gateway.config.settings import Webhooks
from ostiary.gateway.doors.webhooks.callers import WebhookCallers
from ostiary.gateway.doors.webhooks.introspection import TokenIntrospections
from ostiary.gateway.doors.webhooks.reviews import OnRefused, SubjectAccessReviews, TokenReviews
from ostiary.gateway.doors.webhooks.revocations import RevokedCredentialList, RevokedCredentialReviews
from ostiary.gateway.request.own.send_status import send_status
from ostiary.gateway.request.stages import Passage, Served
from ostiary.gateway.request.target import path_of
from ostiary.wire import status
from ostiary.wire.ostiary_dev.token_introspection import PATH as TOKEN_INTROSPECTION

log = logging.getLogger("ostiary.gateway")

# Kubernetes sends selectors along; they are bounded by its own limit on a request's head.
LARGEST_REVIEW = 1024 * 1024

Reviews = TokenReviews | SubjectAccessReviews | RevokedCredentialReviews | TokenIntrospections
REVOKED_CREDENTIALS = b"/webhooks/revoked-credentials"


class WebhookHandler:
    """What is below ``/webhooks``, for the configured callers.

    *failures* counts bad tokens by the address of the client. *deny_revoked* is for clusters that trust our issuer,
    *revoked_list* for them and for backends.

    A cluster calls for every request of its own, so an answer that needs no waiting is sent without a task.
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

    def handle(self, passage: Passage, served: Served) -> Awaitable[None] | None:
        exchange = passage.exchange
        request = exchange.request
        target = path_of(request.target, request.host)
        reviews = self._reviews.get(target) or self._reviews.get(target.partition(b"?")[0])
        try:
            allowed = self._callers.include(exchange.connection.peer_certificate, passage.scanned)
        except OSError as error:
            # Our own failure: a 401 would tell the caller that its token is not valid.
            log.error("callers.tokenFile cannot be read", extra={"cause": error.strerror})
            served(send_status(passage, status.internal()))
            return None
        if not allowed:
            served(send_status(passage, status.unauthorized(), (b"WWW-Authenticate", b"Bearer")))
        elif self._revoked_list is not None and target.partition(b"?")[0] == REVOKED_CREDENTIALS:
            return self._send_list(self._revoked_list, target.partition(b"?")[2], passage, served)
        elif reviews is None:
            served(send_status(passage, status.no_route()))
        elif request.method != b"POST":
            served(send_status(passage, status.method_not_allowed(), (b"Allow", b"POST")))
        elif request.content_length is not None and request.content_length > LARGEST_REVIEW:
            served(send_status(passage, status.too_large()))
        else:
            body = exchange.whole_body()
            answer = None if body is None else reviews.answer(body)
            if isinstance(answer, status.Answer):
                served(send_status(passage, answer))
            else:
                _ReviewInProgress(reviews, passage, served).begin(answer)
        return None

    async def _send_list(self, revoked: RevokedCredentialList, query: bytes, passage: Passage, served: Served) -> None:
        if passage.exchange.request.method != b"GET":
            served(send_status(passage, status.method_not_allowed(), (b"Allow", b"GET")))
        else:
            answer = await revoked.answer(query.decode("latin-1"))
            served(send_status(passage, answer, (b"Cache-Control", b"no-store")))


class _ReviewInProgress:
    """A review whose body has not arrived, or whose answer takes a look-up. Answered with the last byte if possible."""

    __slots__ = ("_parts", "_passage", "_reviews", "_served", "_size", "_task")

    def __init__(self, reviews: Reviews, passage: Passage, served: Served) -> None:
        self._reviews, self._passage, self._served = reviews, passage, served
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
