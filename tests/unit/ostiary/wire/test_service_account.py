"""TokenRequest: what is asked for, and which answers are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostiary.wire.service_account import (
    UnusableAnswer,
    decode_service_account,
    decode_token_request,
    encode_token_request,
    service_account_path,
    token_path,
)

CANARY = "c4n4ry0c4n4ry0c4n4ry"


def answer(**changes: Any) -> bytes:
    spec = {"audiences": ["registry"], "expirationSeconds": 3600, **changes.pop("spec", {})}
    status = {"token": CANARY, "expirationTimestamp": "2030-01-01T01:00:00Z", **changes.pop("status", {})}
    document = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": spec, "status": status}
    return json.dumps({**document, **changes}).encode()


def test_a_request_names_the_audience_and_nothing_that_was_not_given() -> None:
    assert json.loads(encode_token_request("registry")) == {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["registry"]},
    }


def test_a_request_is_bound_to_the_account_and_the_pod_as_the_kubelet_binds_it() -> None:
    body = encode_token_request("registry", account_uid="sa-uid", pod_name="web", pod_uid="pod-uid", seconds=600)
    document = json.loads(body)
    assert document["metadata"] == {"uid": "sa-uid"}
    assert document["spec"] == {
        "audiences": ["registry"],
        "expirationSeconds": 600,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod-uid"},
    }


def test_a_pod_may_be_named_without_its_uid() -> None:
    reference = json.loads(encode_token_request("registry", pod_name="web"))["spec"]["boundObjectRef"]
    assert reference == {"apiVersion": "v1", "kind": "Pod", "name": "web"}


def test_names_cannot_leave_their_place_in_the_path() -> None:
    assert service_account_path("a/b", "..?x") == "/api/v1/namespaces/a%2Fb/serviceaccounts/..%3Fx"
    assert token_path("ns", "sa") == "/api/v1/namespaces/ns/serviceaccounts/sa/token"


def test_an_answer_says_how_long_the_token_is_good_for() -> None:
    bound = decode_token_request(answer(), audience="registry")
    assert bound.token.reveal() == CANARY
    assert (bound.expires_at, bound.lifetime) == (datetime(2030, 1, 1, 1, tzinfo=UTC), timedelta(hours=1))
    assert CANARY not in repr(bound)


def test_an_answer_that_is_not_what_was_asked_for_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    cases = [
        (b"", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'"' + CANARY.encode(), "not a JSON object"),
        (answer(kind="Status"), "no token"),
        (answer(status={"token": ""}), "no token"),
        (answer(status={"token": f"{CANARY}\n"}), "no token"),
        (answer(status={"token": 5}), "no token"),
        (answer(spec={"audiences": ["elsewhere"]}), "another audience"),
        (answer(spec={"audiences": None}), "another audience"),
        (answer(spec={"expirationSeconds": 0}), "how long"),
        (answer(spec={"expirationSeconds": True}), "how long"),
        (answer(status={"expirationTimestamp": None}), "when the token expires"),
        (answer(status={"expirationTimestamp": "2030-01-01T01:00:00"}), "when the token expires"),
    ]
    for body, why in cases:
        with subtests.test(body=body, why=why):
            with pytest.raises(UnusableAnswer, match=why) as refused:
                decode_token_request(body, audience="registry")
            assert CANARY not in str(refused.value)
            assert refused.value.__cause__ is None
            assert refused.value.__context__ is None


def test_a_service_account_has_a_uid_and_perhaps_annotations() -> None:
    assert decode_service_account(b'{"metadata": {"uid": "u"}}') == ("u", {})
    body = json.dumps({"metadata": {"uid": "u", "annotations": {"a": "b", "c": 5}}}).encode()
    assert decode_service_account(body) == ("u", {"a": "b"})


@pytest.mark.parametrize("body", [b"{}", b'{"metadata": {}}', b'{"metadata": {"uid": 7}}', b"no"])
def test_what_is_no_service_account_is_refused(body: bytes) -> None:
    with pytest.raises(UnusableAnswer):
        decode_service_account(body)
