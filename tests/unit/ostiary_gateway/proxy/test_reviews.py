"""Which reviews the gateway answers itself, and what of their answers fits into a head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostiary.model import RequestInfo
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.reviews import ReviewAnswer, bounded_warnings, is_self_review, review_request, send_review
from ostiary_gateway.wire.request_info import request_info
from tests.support.http1 import connected, get, listening, until
from tests.support.http1_server import Held
from tests.unit.ostiary_gateway.proxy.gateways import configured, kubernetes, serving

ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def asked(path: str, method: str = "POST") -> RequestInfo:
    return request_info(RequestLine(method, path))


@pytest.mark.parametrize("path", [ACCESS, RULES, WHO])
def test_the_reviews_about_oneself_are_ours_to_answer(path: str) -> None:
    assert is_self_review(asked(path))
    # Gone from the API of today; an upstream that still has it answers for itself.
    assert not is_self_review(asked(path.replace("/v1/", "/v1beta1/")))
    assert not is_self_review(asked(path.replace("/v1/", "/v2/")))
    assert not is_self_review(asked(path, "GET"))
    assert not is_self_review(asked(f"{path}/x"))
    assert not is_self_review(asked(path.replace(".k8s.io", ".example")))


def test_other_reviews_are_not() -> None:
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1/subjectaccessreviews"))
    assert not is_self_review(asked("/apis/authentication.k8s.io/v1/tokenreviews"))
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1/namespaces/n/selfsubjectaccessreviews"))
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1alpha1/selfsubjectaccessreviews"))
    assert not is_self_review(asked("/apis/authentication.k8s.io/v1alpha1/selfsubjectreviews"))
    assert not is_self_review(asked("/selfsubjectreviews"))


def test_warnings_fit_into_a_head() -> None:
    assert bounded_warnings(["a", "b", "a"]) == ["a", "b"]
    assert bounded_warnings(["x" * 4096]) == ["x" * 4096]
    many = bounded_warnings([f'unknown field "{number}"' for number in range(10_000)])
    assert 4096 <= sum(map(len, many)) < 4096 + 256
    assert bounded_warnings(["x" * 5000, "y" * 10]) == ["x" * 256, "y" * 10]
    assert bounded_warnings(["x" * 4097]) == ["x" * 256]
    # The one that reaches 4096 is the last.
    texts = [f"{number:0300}" for number in range(15)]
    assert len(bounded_warnings([*texts, "x" * 255, "y", "z"])) == 17
    assert len(bounded_warnings([*texts, "x" * 256, "y", "z"])) == 16


async def test_a_review_is_read_with_its_query_and_its_headers() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get("/x?pretty=true&y=1", "Content-Type: a/b", "Accept: c/d", "Accept: e/f", "User-Agent: curl/8"))
        await until(lambda: bool(held.exchanges))
        request = review_request(RequestContext(held.exchanges[0], 0.0, "an-id"), b"body")
    assert request == (b"body", "a/b", "c/d,e/f", "curl/8", "pretty=true&y=1")


async def test_a_review_is_answered_counted_and_recorded_and_warns_of_what_it_does_not_know(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    async with serving(configured(tmp_path, nowhere, upstreams=kubernetes(nowhere))) as site:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "a~\x7fé\u200b\\": 1}
        body = json.dumps(review).encode()
        answer = await site.ask(WHO, "Content-Type: application/json", method="POST", body=body)
        assert answer.status == 201
        assert answer.one("Cache-Control") == b"no-cache, private"
        # As an answer writes it: the quotes of the text are escaped, and what a head cannot carry is left out.
        assert answer.one("Warning") == b'299 - "unknown field \\"a~\\\\\\""'
        assert site.count("requests_total", "create", "201") == 1
        (event,) = await site.events()
        assert event["responseStatus"]["code"] == 201


async def test_nothing_is_sent_to_a_client_that_is_gone() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: bool(held.exchanges))
        client.reset()
        await until(lambda: held.exchanges[0].gone)
        ctx = RequestContext(held.exchanges[0], 0.0, "an-id")
        assert send_review(ctx, ReviewAnswer(201, "application/json", b"{}")) == 0
