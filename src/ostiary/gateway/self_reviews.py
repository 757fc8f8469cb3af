"""The reviews that users make about themselves: ``kubectl auth can-i``, ``can-i --list`` and ``whoami``.

Called by the engine for a request that `is_self_review`, with its whole body. The upstream would answer from its own
policy, about the user that we present to it; these answers are about ours. What the upstream would refuse besides is
not known here. Anybody who is signed in may ask, as in Kubernetes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from ostiary.errors import OstiaryError
from ostiary.gateway.authorize import Authorizer
from ostiary.model import Decision, RequestInfo, UserInfo
from ostiary.wire import authentication, authorization, protobuf, status
from ostiary.wire.authorization import AccessReview, ReviewError
from ostiary.wire.protobuf import ProtobufError
from ostiary.wire.status import Answer

log = logging.getLogger("ostiary.gateway")

_JSON = "application/json"
_ACCESS, _RULES, _WHO = "selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"
_GROUPS = {_ACCESS: authorization.GROUP, _RULES: authorization.GROUP, _WHO: authentication.GROUP}
_VERSIONS: dict[str, frozenset[str]] = {
    authorization.GROUP: frozenset(authorization.VERSIONS),
    authentication.GROUP: authentication.SELF_VERSIONS,
}


def is_self_review(info: RequestInfo) -> bool:
    """Whether the gateway answers this itself, for an upstream that is a Kubernetes API."""
    return (
        info.resource in _GROUPS
        and info.verb == "create"
        and info.api_group == _GROUPS[info.resource]
        and _api_version(info) in _VERSIONS[info.api_group]
        and not (info.name or info.namespace or info.subresource)
    )


class SelfReviews:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    def answer(
        self, info: RequestInfo, user: UserInfo, body: bytes, content_type: str = _JSON
    ) -> Answer | Awaitable[Answer]:
        """The answer to *user*; something to await only if a provider must be asked elsewhere."""
        try:
            text = _as_json(body, content_type)
            if text is None:
                return status.unsupported_media_type(_JSON, protobuf.CONTENT_TYPE)
            if info.resource == _WHO:
                return _who(info, user, text)
            return self._rules(info, user, text) if info.resource == _RULES else self._access(info, user, text)
        except (ReviewError, ProtobufError) as error:
            return status.bad_request(str(error))
        except OstiaryError as error:
            return _could_not_ask(error)

    def _rules(self, info: RequestInfo, user: UserInfo, text: bytes) -> Answer:
        review = authorization.decode_rules_review(text)
        _check_version(info, review.api_version)
        return Answer(201, authorization.encode_rules(review, self._authorizer.rules_for(user, review.namespace)))

    def _access(self, info: RequestInfo, user: UserInfo, text: bytes) -> Answer | Awaitable[Answer]:
        review = authorization.decode_review(text)
        if review.kind != authorization.SELF:
            raise ReviewError(f"kind must be {authorization.SELF}")
        _check_version(info, review.api_version)
        decision = self._authorizer.decide(review.attributes(user))
        return self._ask(review, user) if decision is None else _access_answer(review, decision)

    async def _ask(self, review: AccessReview, user: UserInfo) -> Answer:
        try:
            return _access_answer(review, await self._authorizer.authorize(review.attributes(user)))
        except OstiaryError as error:
            return _could_not_ask(error)


def _who(info: RequestInfo, user: UserInfo, text: bytes) -> Answer:
    version = authentication.decode_self_review(text)
    _check_version(info, version)
    return Answer(201, authentication.encode_self_review(version, user))


def _access_answer(review: AccessReview, decision: Decision) -> Answer:
    # Why it is refused is for the operator; that it is hidden must not show either.
    reason = None if decision.allowed else ""
    return Answer(201, authorization.encode_status(review, decision, reason=reason))


def _as_json(body: bytes, content_type: str) -> bytes | None:
    """The body as JSON; None if it is in an encoding that we do not read. CBOR clients then fall back to JSON."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in ("", _JSON):
        return body
    return protobuf.review_as_json(body) if media_type == protobuf.CONTENT_TYPE else None


def _api_version(info: RequestInfo) -> str:
    return f"{info.api_group}/{info.api_version}"


def _check_version(info: RequestInfo, api_version: str) -> None:
    if api_version != _api_version(info):
        raise ReviewError("the apiVersion in the body is not that of the path")


def _could_not_ask(error: OstiaryError) -> Answer:
    log.error("a self review cannot be answered", extra={"cause": error.cause or error.summary})
    return status.internal()
