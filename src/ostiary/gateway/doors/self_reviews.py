"""The reviews that users make about themselves: ``kubectl auth can-i``, ``can-i --list`` and ``whoami``.

Called by the engine for a request that `is_self_review`, with its whole body. The upstream would answer from its own
policy, about the user that we present to it; these answers are about ours. What the upstream would refuse besides is
not known here. Anybody who is signed in may ask, as in Kubernetes. Everything else about them, down to the encodings
and the warnings, is as kube-apiserver has it (`ostiary.wire.self_reviews`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.implied_groups import with_implied_groups
from ostiary.errors import OstiaryError
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.request.stages import Passage
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary.wire.codec.encodings import as_json, encode
from ostiary.wire.codec.negotiation import MEDIA_TYPES, Representation, wanted_representation
from ostiary.wire.self_reviews import (
    ACCESS,
    API_VERSIONS,
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

# k8s.io/apiserver/pkg/endpoints/filters/warning.go
WARNING_CHARACTERS = 4096
LONGEST_WARNING = 256

_KINDS = {"selfsubjectaccessreviews": ACCESS, "selfsubjectrulesreviews": RULES, "selfsubjectreviews": WHO}


def is_self_review(info: RequestInfo) -> bool:
    """Whether the gateway answers this itself, for an upstream that is a Kubernetes API.

    Only v1: older versions are the upstream's to know, or not to know.
    """
    kind = _KINDS.get(info.resource)
    return (
        kind is not None
        and info.verb == "create"
        and f"{info.api_group}/{info.api_version}" == API_VERSIONS[kind]
        and not (info.name or info.namespace or info.subresource)
    )


class ReviewRequest(NamedTuple):
    """What a request says besides who asks: the body, and the headers and the query that tell how to read it."""

    body: bytes
    content_type: str = ""
    accept: str = ""
    user_agent: str = ""
    query: str = ""


class ReviewAnswer(NamedTuple):
    code: int
    content_type: str
    body: bytes
    warnings: tuple[str, ...] = ()


class SelfReviews:
    def __init__(self, authorizer: Authorizer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._authorizer = authorizer
        self._clock = clock

    def answer(
        self, info: RequestInfo, user: UserInfo, request: ReviewRequest
    ) -> ReviewAnswer | Awaitable[ReviewAnswer]:
        """The answer to *user*; something to await only if a provider must be asked elsewhere."""
        wanted = wanted_representation(request.accept, query=request.query, user_agent=request.user_agent)
        if wanted is None:
            return _not_acceptable()
        kind = _KINDS[info.resource]
        try:
            review = read_review(kind, request.body, content_type=request.content_type, query=request.query)
        except ReviewRefused as refused:
            return _refusal(refused, wanted)
        user = with_implied_groups(user)
        if kind == WHO:
            now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
            return _created(who_answer(user, now), wanted, review)
        if kind == RULES:
            rules = self._authorizer.rules_for(user, review.spec["namespace"], upstream=info.upstream)
            return _created(rules_answer(rules), wanted, review)
        return self._access(review, user, wanted, upstream=info.upstream)

    def _access(
        self, review: SelfReview, user: UserInfo, wanted: Representation, *, upstream: str
    ) -> ReviewAnswer | Awaitable[ReviewAnswer]:
        question, error = access_question(review)
        attributes = Attributes(user, replace(question, upstream=upstream))

        def answer(decision: Decision) -> ReviewAnswer:
            return _created(access_answer(review, decision, error=error), wanted, review)

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


def _created(value: dict[str, Any], wanted: Representation, review: SelfReview) -> ReviewAnswer:
    if wanted.metadata_version:
        value = only_metadata(value, wanted.metadata_version)
    return ReviewAnswer(201, *encode(value, wanted), review.warnings)


def _refusal(refused: ReviewRefused, wanted: Representation) -> ReviewAnswer:
    causes = [{"reason": each.reason, "message": each.message, "field": each.field} for each in refused.causes]
    told = {"group": refused.group, "kind": refused.subject, "causes": causes}
    details = {key: value for key, value in told.items() if value} if causes else None
    reason = {400: "BadRequest", 415: "UnsupportedMediaType", 422: "Invalid"}[refused.code]
    failure = status.failure_object(refused.code, reason, str(refused), details)
    return ReviewAnswer(refused.code, *encode(failure, wanted), refused.warnings)


def _not_acceptable() -> ReviewAnswer:
    # Nothing that the client reads can be had, so it gets what people read.
    message = f"only the following media types are accepted: {', '.join(MEDIA_TYPES)}"
    failure = status.failure_object(406, "NotAcceptable", message)
    return ReviewAnswer(406, "application/json", as_json(failure, pretty=True))


def _could_not_ask(error: OstiaryError, wanted: Representation) -> ReviewAnswer:
    log.error("a self review cannot be answered", extra={"cause": error.cause or error.summary})
    failure = status.failure_object(500, "InternalError", "Internal error occurred")
    return ReviewAnswer(500, *encode(failure, wanted))


# --- between an exchange and a review ---


def review_request(passage: Passage, body: bytes) -> ReviewRequest:
    return ReviewRequest(
        body,
        content_type=_header(passage, b"content-type"),
        accept=",".join(_headers(passage, b"accept")),
        user_agent=_header(passage, b"user-agent"),
        query=passage.exchange.request.target.partition(b"?")[2].decode("latin-1"),
    )


def _headers(passage: Passage, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in passage.exchange.request.headers if key.lower() == name]


def _header(passage: Passage, name: bytes) -> str:
    return next(iter(_headers(passage, name)), "")


def send_review(passage: Passage, answer: ReviewAnswer) -> int:
    if passage.exchange.gone:
        return 0
    texts = bounded_warnings(answer.warnings)
    warnings = [(b"Warning", f'299 - "{_quoted(text)}"'.encode("utf-8", "replace")) for text in texts]
    headers = [
        (b"Audit-Id", passage.audit_id.encode()),
        (b"Cache-Control", b"no-cache, private"),
        (b"Content-Type", answer.content_type.encode()),
    ]
    passage.exchange.respond(answer.code, [*headers, *warnings], answer.body)
    return answer.code


def bounded_warnings(texts: Sequence[str]) -> list[str]:
    """What fits into a head, as kube-apiserver has it: each once, and if all are too long, the first ones shortened."""
    texts = list(dict.fromkeys(texts))
    if sum(map(len, texts)) <= WARNING_CHARACTERS:
        return texts
    kept, written = [], 0
    for text in texts:
        if written >= WARNING_CHARACTERS:
            break
        kept.append(text[:LONGEST_WARNING])
        written += len(kept[-1])
    return kept


def _quoted(text: str) -> str:
    """A warning names fields as they were written; whatever a header cannot carry is dropped."""
    kept = "".join(character for character in text if character.isprintable() and ord(character) < 0x7F)
    return kept.replace("\\", "\\\\").replace('"', '\\"')
