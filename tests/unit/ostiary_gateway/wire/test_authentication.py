"""TokenReview and SelfSubjectReview, as Kubernetes sends and reads them."""

from __future__ import annotations

import json

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.wire.authentication import (
    CREDENTIAL_ID,
    decode_token_review,
    encode_authenticated,
    encode_unauthenticated,
    user_fields,
)
from ostiary_gateway.wire.authorization import MAX_BYTES, ReviewError

# As kube-apiserver writes it; an older one writes an explicit null for its creation time.
REVIEW = (
    b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1beta1","metadata":{"creationTimestamp":null},'
    b'"spec":{"token":"canary-token","audiences":["https://kubernetes.default.svc"]},"status":{"user":{}}}\n'
)
ANN = UserInfo("ann", "u1", ("dev", "a,b"), (("team", ("x", "y")),))


def test_a_token_review_is_read() -> None:
    review = decode_token_review(REVIEW)
    assert review.api_version == "authentication.k8s.io/v1beta1"
    assert review.token == "canary-token"
    assert review.audiences == ("https://kubernetes.default.svc",)
    assert "canary" not in repr(review)


def test_what_may_be_absent_may_be_null() -> None:
    spec = b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"audiences":null}}'
    assert decode_token_review(spec).token == ""
    assert decode_token_review(spec).audiences == ()


def test_what_is_no_token_review_is_refused_without_quoting_it(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1"}',
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":null}',
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v2","spec":{"token":"canary-token"}}',
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1alpha1","spec":{"token":"canary-token"}}',
        b'{"kind":"Canary-token","apiVersion":"authentication.k8s.io/v1","spec":{"token":"canary-token"}}',
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":["canary-token"]}}',
        b'{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","spec":{"token":"canary-token}}',
        b'{"spec":{"token":"' + b"x" * MAX_BYTES + b'"}}',
    ]
    for body in cases:
        with subtests.test(body=body):
            with pytest.raises(ReviewError) as raised:
                decode_token_review(body)
            assert "anary" not in str(raised.value)
            assert raised.value.__cause__ is None


def test_a_good_token_is_answered_with_the_user() -> None:
    """S40: user and groups as the token attests them, in their order, each group one string."""
    body = encode_authenticated("authentication.k8s.io/v1", ANN, credential_id="OSTIARY=s1", audiences=("api",))
    assert json.loads(body) == {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {},
        "status": {
            "authenticated": True,
            "user": {
                "username": "ann",
                "uid": "u1",
                "groups": ["dev", "a,b"],
                "extra": {"team": ["x", "y"], CREDENTIAL_ID: ["OSTIARY=s1"]},
            },
            "audiences": ["api"],
        },
    }


def test_a_credential_id_of_the_user_does_not_outlive_ours() -> None:
    user = UserInfo("ann", extra=((CREDENTIAL_ID, ("X509SHA256=00",)),))
    shown = json.loads(encode_authenticated("authentication.k8s.io/v1", user, credential_id="OSTIARY=s1"))
    assert shown["status"]["user"]["extra"] == {CREDENTIAL_ID: ["OSTIARY=s1"]}


def test_what_is_empty_is_left_out() -> None:
    shown = json.loads(encode_authenticated("authentication.k8s.io/v1beta1", UserInfo("ann")))
    assert shown["status"] == {"authenticated": True, "user": {"username": "ann"}}


def test_a_bad_token_is_answered_with_false() -> None:
    shown = json.loads(encode_unauthenticated("authentication.k8s.io/v1", "no"))
    assert shown["status"] == {"authenticated": False, "error": "no"}


def test_a_user_as_plain_values() -> None:
    fields = user_fields(ANN)
    assert list(fields["groups"]) == ["dev", "a,b"]
    assert CREDENTIAL_ID not in fields["extra"]
    assert user_fields(UserInfo("ann")) == {"username": "ann"}
