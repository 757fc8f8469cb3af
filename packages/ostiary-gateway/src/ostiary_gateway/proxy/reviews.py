"""Reviews that the gateway serves itself: detection, parsing and responses.

Only version v1 is served here. Older versions are left to the upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ostiary.model import RequestInfo
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.wire.self_reviews import ACCESS, API_VERSIONS, RULES, TOKEN, WHO

# k8s.io/apiserver/pkg/endpoints/filters/warning.go
WARNING_CHARACTERS = 4096
LONGEST_WARNING = 256

SELF_REVIEW_KINDS = {"selfsubjectaccessreviews": ACCESS, "selfsubjectrulesreviews": RULES, "selfsubjectreviews": WHO}


def is_self_review(info: RequestInfo) -> bool:
    """Whether the gateway serves this request itself, for an upstream that is a Kubernetes API."""
    kind = SELF_REVIEW_KINDS.get(info.resource)
    return kind is not None and _creates(info, kind)


def is_token_review(info: RequestInfo) -> bool:
    return info.resource == "tokenreviews" and _creates(info, TOKEN)


def _creates(info: RequestInfo, kind: str) -> bool:
    return (
        info.verb == "create"
        and f"{info.api_group}/{info.api_version}" == API_VERSIONS[kind]
        and not (info.name or info.namespace or info.subresource)
    )


class ReviewRequest(NamedTuple):
    """A review request without its sender: the body, and the headers and query that determine its format."""

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


def review_request(ctx: RequestContext, body: bytes) -> ReviewRequest:
    return ReviewRequest(
        body,
        content_type=_header(ctx, b"content-type"),
        accept=",".join(_headers(ctx, b"accept")),
        user_agent=_header(ctx, b"user-agent"),
        query=ctx.exchange.request.target.partition(b"?")[2].decode("latin-1"),
    )


def _headers(ctx: RequestContext, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in ctx.exchange.request.headers if key.lower() == name]


def _header(ctx: RequestContext, name: bytes) -> str:
    return next(iter(_headers(ctx, name)), "")


def send_review(ctx: RequestContext, answer: ReviewAnswer) -> int:
    """Send *answer*. Return the status that was sent, or 0 if the client is gone."""
    if ctx.exchange.gone:
        return 0
    texts = bounded_warnings(answer.warnings)
    warnings = [(b"Warning", f'299 - "{_quote(text)}"'.encode("utf-8", "replace")) for text in texts]
    headers = [
        (b"Audit-Id", ctx.audit_id.encode()),
        (b"Cache-Control", b"no-cache, private"),
        (b"Content-Type", answer.content_type.encode()),
    ]
    ctx.exchange.respond(answer.code, [*headers, *warnings], answer.body)
    return answer.code


def bounded_warnings(texts: Sequence[str]) -> list[str]:
    """Limit warnings like kube-apiserver: remove duplicates, and truncate them if they are too long in total."""
    texts = list(dict.fromkeys(texts))
    if sum(map(len, texts)) <= WARNING_CHARACTERS:
        return texts
    shortened, total = [], 0
    for text in texts:
        if total >= WARNING_CHARACTERS:
            break
        shortened.append(text[:LONGEST_WARNING])
        total += len(shortened[-1])
    return shortened


def _quote(text: str) -> str:
    """Quote a warning. It contains the client's field names, so drop characters that are invalid in a header."""
    plain = "".join(character for character in text if character.isascii() and character.isprintable())
    return plain.replace("\\", "\\\\").replace('"', '\\"')
