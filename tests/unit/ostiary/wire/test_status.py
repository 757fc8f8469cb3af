"""Refusals in the words and bytes of Kubernetes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary.wire.www_authenticate import parse_challenges
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.request_info import request_info


def asked(method: str, target: str, username: str = "ann") -> Attributes:
    path, _, query = target.partition("?")
    return Attributes(UserInfo(username), request_info(RequestLine(method, path, query)))


def message(answer: status.Answer) -> str:
    return str(json.loads(answer.body)["message"])


def test_the_401_is_the_one_of_kubernetes_for_every_reason() -> None:
    """S38, S39."""
    assert status.unauthorized() == (
        401,
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
        b'"message":"Unauthorized","reason":"Unauthorized","code":401}\n',
    )


def test_the_challenge_is_bearer_and_names_an_error_only_if_there_was_a_token() -> None:
    """S38, S41."""
    (challenge,) = parse_challenges(status.www_authenticate(False, "my gate"))
    assert (challenge.scheme, dict(challenge.parameters)) == ("bearer", {"realm": "my gate"})
    (challenge,) = parse_challenges(status.www_authenticate(True, 'a"b\\'))
    assert dict(challenge.parameters) == {"realm": 'a"b\\', "error": "invalid_token"}


FORBIDDEN = [
    (
        "GET",
        "/api/v1/namespaces/n/pods/x",
        'pods "x" is forbidden: User "ann" cannot get resource "pods" in API group "" in the namespace "n"',
        {"name": "x", "kind": "pods"},
    ),
    (
        "GET",
        "/api/v1/namespaces/n/pods",
        'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "n"',
        {"kind": "pods"},
    ),
    (
        "PUT",
        "/apis/apps/v1/namespaces/n/deployments/d/scale",
        'deployments.apps "d" is forbidden: User "ann" cannot update resource "deployments/scale" '
        'in API group "apps" in the namespace "n"',
        {"name": "d", "group": "apps", "kind": "deployments"},
    ),
    (
        "GET",
        "/api/v1/nodes?watch=1",
        'nodes is forbidden: User "ann" cannot watch resource "nodes" in API group "" at the cluster scope',
        {"kind": "nodes"},
    ),
    ("POST", "/metrics", 'forbidden: User "ann" cannot post path "/metrics"', {}),
]


@pytest.mark.parametrize(("method", "target", "words", "details"), FORBIDDEN)
def test_a_403_says_what_kubernetes_says(method: str, target: str, words: str, details: dict[str, str]) -> None:
    """S52."""
    code, body = status.forbidden(asked(method, target))
    assert code == 403
    expected: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": words,
    }
    expected |= {"reason": "Forbidden", "details": details, "code": 403}
    assert list(json.loads(body).items()) == list(expected.items())
    assert list(json.loads(body)["details"]) == list(details)
    assert body.endswith(b"}\n")
    assert message(status.forbidden(asked(method, target), "ask Bob")) == f"{words}: ask Bob"


def test_markup_in_names_stays_harmless() -> None:
    _, body = status.forbidden(asked("GET", "/%3Cscript%3E", 'a&b"<'))
    assert not set(b"<>&") & set(body)
    assert json.loads(body)["message"] == r'forbidden: User "a&amp;b\"&lt;" cannot get path "/&lt;script&gt;"'


def test_names_are_quoted_as_go_quotes_them() -> None:
    shown = message(status.forbidden(asked("GET", "/x", "a\n\x00\x7fé\u200b\U000e0001\\")))
    assert shown == r'forbidden: User "a\n\x00\x7fé\u200b\U000e0001\\" cannot get path "/x"'


def test_a_404_is_what_a_missing_object_gets() -> None:
    """S51, S55."""
    code, body = status.not_found(asked("GET", "/apis/apps/v1/namespaces/secret-plans/deployments/d/scale").request)
    assert code == 404
    assert body == (
        b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
        b'"message":"deployments.apps \\"d\\" not found","reason":"NotFound",'
        b'"details":{"name":"d","group":"apps","kind":"deployments"},"code":404}\n'
    )


def test_a_404_never_names_the_namespace(subtests: pytest.Subtests) -> None:
    """S55: nor does it depend on it in any other way."""
    for method in ["GET", "POST", "DELETE"]:
        for kind in ["pods", "pods/p", "pods/p/exec"]:
            with subtests.test(method=method, kind=kind):
                answers = {
                    status.not_found(asked(method, f"/api/v1/namespaces/{namespace}/{kind}").request)
                    for namespace in ("secret-plans", "other")
                }
                (answer,) = answers
                assert b"secret" not in answer.body


def test_a_404_without_a_name_is_the_one_for_an_unknown_path() -> None:
    assert status.not_found(asked("POST", "/api/v1/namespaces/n/pods").request) == status.no_route()
    assert status.not_found(asked("GET", "/nowhere").request) == status.no_route()
    assert status.no_route().code == 404


def test_every_other_failure_has_its_code_and_reason(subtests: pytest.Subtests) -> None:
    """S53."""
    cases: list[tuple[status.Answer, int, str | None]] = [
        (status.bad_request("no"), 400, "BadRequest"),
        (status.method_not_allowed(), 405, "MethodNotAllowed"),
        (status.too_large(), 413, "RequestEntityTooLarge"),
        (status.too_many(0.2), 429, "TooManyRequests"),
        (status.internal(), 500, "InternalError"),
        (status.upstream_failed(502), 502, None),
        (status.upstream_failed(503), 503, "ServiceUnavailable"),
        (status.upstream_failed(504), 504, "Timeout"),
    ]
    for answer, code, reason in cases:
        with subtests.test(answer=answer, code=code, reason=reason):
            shown = json.loads(answer.body)
            assert answer.code == shown["code"] == code
            assert shown.get("reason") == reason
            assert (shown["kind"], shown["status"]) == ("Status", "Failure")


def test_a_429_says_in_whole_seconds_when_to_come_back() -> None:
    assert json.loads(status.too_many(2.1).body)["details"] == {"retryAfterSeconds": 3}
    assert json.loads(status.too_many(0).body)["details"] == {"retryAfterSeconds": 1}


def test_a_500_names_the_request_and_not_the_cause() -> None:
    assert "r-17" in message(status.internal("r-17"))


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_name_gives_json(username: str, name: str, namespace: str) -> None:
    info = RequestInfo("get", "GET", "/", is_resource=True, resource="pods", name=name, namespace=namespace)
    for answer in (status.forbidden(Attributes(UserInfo(username), info)), status.not_found(info)):
        assert json.loads(answer.body)["code"] == answer.code
        assert not set(b"<>&") & set(answer.body)
        assert answer.body.count(b"\n") == 1
