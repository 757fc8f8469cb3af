"""Access reviews as kube-apiserver and kubectl write them, and what must not pass for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Rules
from ostiary_gateway.wire.authorization import (
    LOCAL,
    MAX_BYTES,
    SELF,
    SUBJECT,
    V1,
    V1BETA1,
    ReviewError,
    decode_review,
    decode_status,
    encode_review,
    encode_status,
    rules_status,
)
from ostiary_gateway.wire.request_info import PROXY, WATCH

POD: dict[str, Any] = {"namespace": "dev", "verb": "get", "version": "v1", "resource": "pods", "name": "web-0"}
ALICE = UserInfo("alice", "u1", ("dev", "ops"), (("scopes", ("a", "b")),))


def review(spec: dict[str, Any], *, kind: str = SUBJECT, version: str = V1, **more: Any) -> bytes:
    return json.dumps({"kind": kind, "apiVersion": version, "metadata": {}, "spec": spec, **more}).encode()


# As an API server sends it by default: v1beta1, metadata with a null time, selectors in both forms.
FROM_KUBE = b"""{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1",
"metadata":{"creationTimestamp":null},"spec":{"resourceAttributes":{"namespace":"dev","verb":"list","group":"apps","version":"v1","resource":"deployments",
"fieldSelector":{"rawSelector":"metadata.name=other",
"requirements":[{"key":"metadata.name","operator":"In","values":["web"]}]},
"labelSelector":{"requirements":[{"key":"tier","operator":"Exists"}]}},
"user":"alice","group":["dev","system:authenticated"],"extra":{"scopes":["b","a"]},"uid":"u1"},"status":{"allowed":false}}"""


def test_a_review_of_v1beta1_names_the_groups_group() -> None:
    """2.4: the subject's groups are `group` in v1beta1; requirements count and the raw selector does not."""
    found = decode_review(FROM_KUBE)
    assert found.user == UserInfo("alice", "u1", ("dev", "system:authenticated"), (("scopes", ("b", "a")),))
    assert found.request == RequestInfo(
        verb="list",
        method="GET",
        path="",
        is_resource=True,
        api_group="apps",
        api_version="v1",
        namespace="dev",
        resource="deployments",
        field_selector=(Requirement("metadata.name", "In", ("web",)),),
        label_selector=(Requirement("tier", "Exists"),),
        of_kubernetes=True,
    )


@pytest.mark.parametrize(("version", "right", "wrong"), [(V1, "groups", "group"), (V1BETA1, "group", "groups")])
def test_the_other_versions_spelling_of_groups_is_not_read(version: str, right: str, wrong: str) -> None:
    """2.4."""
    spec = {"resourceAttributes": POD, "user": "alice", right: ["a"], wrong: ["b"]}
    found = decode_review(review(spec, version=version))
    assert found.user == UserInfo("alice", groups=("a",))


def test_a_path_that_is_no_resource_has_its_verb_and_method() -> None:
    found = decode_review(review({"nonResourceAttributes": {"path": "/healthz", "verb": "get"}, "user": "alice"}))
    assert found.request == RequestInfo(verb="get", method="GET", path="/healthz", of_kubernetes=True)


@pytest.mark.parametrize(
    ("verb", "subresource", "method", "modifier"),
    [("watch", "", "GET", WATCH), ("create", "proxy", "POST", PROXY), ("proxy", "", "", PROXY), ("get", "", "GET", "")],
)
def test_a_review_has_the_method_and_modifier_that_its_verb_implies(
    verb: str, subresource: str, method: str, modifier: str
) -> None:
    """S46: as a request for the same would have, so that all doors decide alike."""
    asked = {**POD, "verb": verb, "subresource": subresource}
    found = decode_review(review({"resourceAttributes": asked, "user": "alice"})).request
    assert (found.method, found.modifier) == (method, modifier)


@pytest.mark.parametrize(
    "spec",
    [
        {"user": "alice"},
        {"user": "alice", "resourceAttributes": POD, "nonResourceAttributes": {"path": "/x", "verb": "get"}},
        {"user": "alice", "resourceAttributes": None},
    ],
)
def test_exactly_one_of_the_two_kinds_of_attributes_must_be_set(spec: dict[str, Any]) -> None:
    """2.4."""
    with pytest.raises(ReviewError, match="exactly one"):
        decode_review(review(spec))


def test_a_review_about_nobody_is_refused() -> None:
    with pytest.raises(ReviewError, match="at least one"):
        decode_review(review({"resourceAttributes": POD}))


def test_a_self_review_is_about_the_caller_whatever_it_says() -> None:
    found = decode_review(review({"resourceAttributes": POD, "user": "root", "groups": ["system:masters"]}, kind=SELF))
    assert found.user is None
    assert found.attributes(ALICE) == Attributes(ALICE, found.request)
    with pytest.raises(ReviewError):
        found.attributes()


@pytest.mark.parametrize(
    ("metadata", "asked"),
    [
        ({"namespace": "other"}, {"resourceAttributes": POD}),
        ({}, {"resourceAttributes": POD}),
        ({}, {"resourceAttributes": {**POD, "namespace": ""}}),
        ({"namespace": "dev"}, {"nonResourceAttributes": {"path": "/x", "verb": "get"}}),
    ],
)
def test_a_local_review_stays_in_its_namespace(metadata: dict[str, str], asked: dict[str, Any]) -> None:
    with pytest.raises(ReviewError, match="own namespace"):
        decode_review(review({"user": "alice", **asked}, kind=LOCAL, metadata=metadata))


def test_a_local_review_in_its_namespace_is_read() -> None:
    found = decode_review(
        review({"user": "alice", "resourceAttributes": POD}, kind=LOCAL, metadata={"namespace": "dev"})
    )
    assert (found.kind, found.namespace, found.user) == (LOCAL, "dev", UserInfo("alice"))


def test_what_is_no_review_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    """Typed decoding is the schema check; sizes are bounded."""
    cases = [
        b"",
        b"secret-marker",
        b"[]",
        b"{}",
        b'{"kind":"SubjectAccessReview"}',
        b"\xff\xfe",
        b"[" * 100_000,
        review({"user": 7, "resourceAttributes": POD}),
        review({"user": "a", "groups": "secret-marker", "resourceAttributes": POD}),
        review({"user": "a", "extra": {"secret-marker": [1]}, "resourceAttributes": POD}),
        review({"user": "a", "resourceAttributes": POD}, version="authorization.k8s.io/v2"),
        review({"user": "a", "resourceAttributes": POD}, kind="TokenReview"),
        review({"user": "a" * MAX_BYTES, "resourceAttributes": POD}),
    ]
    for data in cases:
        with subtests.test(data=data):
            with pytest.raises(ReviewError) as caught:
                decode_review(data)
            assert "secret-marker" not in str(caught.value)


def test_unknown_fields_of_a_newer_cluster_do_not_matter() -> None:
    assert decode_review(review({"user": "a", "resourceAttributes": {**POD, "new": 1}, "newer": {}}, newest=[])).user


def test_absent_lists_may_be_null_as_go_writes_them() -> None:
    found = decode_review(review({"user": "a", "groups": None, "extra": {"k": None}, "resourceAttributes": POD}))
    assert found.user == UserInfo("a", extra=(("k", ()),))


# --- answers ---


def test_an_answer_echoes_the_question_and_says_three_things(subtests: pytest.Subtests) -> None:
    """2.4: no opinion is allowed:false and denied absent; "not found" cannot be said, so its reason is neutral."""
    cases: list[tuple[Decision, dict[str, Any]]] = [
        (Decision(Verdict.ALLOW, "because"), {"allowed": True, "reason": "because"}),
        (Decision(Verdict.DENY, "no"), {"allowed": False, "denied": True, "reason": "no"}),
        (Decision(Verdict.NO_OPINION, "hm"), {"allowed": False, "reason": "hm"}),
        (Decision(Verdict.NO_OPINION, "nothing in namespace dev", hidden=True), {"allowed": False}),
        (Decision(Verdict.DENY, "nothing in namespace dev", hidden=True), {"allowed": False, "denied": True}),
    ]
    for version in [V1, V1BETA1]:
        for decision, status in cases:
            with subtests.test(version=version, decision=decision, status=status):
                spec = {"user": "alice", "resourceAttributes": POD}
                answer = json.loads(encode_status(decode_review(review(spec, version=version)), decision))
                assert answer == {
                    "kind": SUBJECT,
                    "apiVersion": version,
                    "metadata": {},
                    "spec": spec,
                    "status": status,
                }


def test_an_evaluation_error_and_another_reason_can_be_told() -> None:
    asked = decode_review(review({"user": "alice", "resourceAttributes": POD}))
    answer = json.loads(encode_status(asked, Decision(Verdict.NO_OPINION, "x"), reason="", error="could not ask"))
    assert answer["status"] == {"allowed": False, "evaluationError": "could not ask"}


def test_rules_are_listed_as_kubernetes_lists_them() -> None:
    rules = Rules(
        (ResourceRule(("get",), ("",), ("pods",)),),
        (NonResourceRule(("get",), ("/api",)),),
        True,
        "cluster: cannot list",
    )
    assert json.loads(json.dumps(rules_status(rules))) == {
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/api"]}],
        "incomplete": True,
        "evaluationError": "cluster: cannot list",
    }


# --- we ask, and are answered ---


def test_we_ask_as_kubernetes_does() -> None:
    """2.4: empty fields are left out, and only requirements are sent."""
    request = RequestInfo(
        verb="list",
        method="GET",
        path="/api/v1/pods",
        is_resource=True,
        api_version="v1",
        resource="pods",
        field_selector=(Requirement("spec.nodeName", "In", ("n1",)),),
        label_selector=(),
    )
    asked = json.loads(encode_review(Attributes(ALICE, request)))
    assert asked == {
        "kind": SUBJECT,
        "apiVersion": V1,
        "metadata": {},
        "spec": {
            "resourceAttributes": {
                "verb": "list",
                "version": "v1",
                "resource": "pods",
                "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]},
            },
            "user": "alice",
            "groups": ["dev", "ops"],
            "uid": "u1",
            "extra": {"scopes": ["a", "b"]},
        },
    }
    assert json.loads(encode_review(Attributes(ALICE, request), api_version=V1BETA1))["spec"]["group"] == ["dev", "ops"]


def answer(status: Any, *, kind: str = SUBJECT, version: str = V1) -> bytes:
    return json.dumps({"kind": kind, "apiVersion": version, "status": status}).encode()


@pytest.mark.parametrize(
    ("status", "decision"),
    [
        ({"allowed": True, "reason": "r"}, Decision(Verdict.ALLOW, "r")),
        ({"allowed": False, "denied": True}, Decision(Verdict.DENY)),
        ({"allowed": False}, Decision(Verdict.NO_OPINION)),
        ({"allowed": False, "reason": "r", "evaluationError": "e"}, Decision(Verdict.NO_OPINION, "r; e")),
    ],
)
def test_the_other_servers_answer_is_a_decision(status: dict[str, Any], decision: Decision) -> None:
    """2.4, R14."""
    assert decode_status(answer(status)) == decision


def test_an_unclear_answer_is_an_error_and_no_decision(subtests: pytest.Subtests) -> None:
    """2.4: both allowed and denied is an error; so is everything that is no answer at all."""
    cases = [
        answer({"allowed": True, "denied": True}),
        answer({}),
        answer(None),
        answer({"allowed": "true"}),
        answer({"allowed": 1}),
        answer({"allowed": True}, version=V1BETA1),
        answer({"allowed": True}, kind="Status"),
        b'{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1"}',
        b"<html>",
        b"",
        answer({"allowed": True, "reason": "x" * MAX_BYTES}),
    ]
    for data in cases:
        with subtests.test(data=data), pytest.raises(ReviewError):
            decode_status(data)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
requirements = st.lists(
    st.builds(Requirement, text, text, st.lists(text, max_size=2).map(tuple)), min_size=1, max_size=2
)
users = st.builds(
    UserInfo,
    text.filter(bool),
    text,
    st.lists(text, max_size=3).map(tuple),
    st.dictionaries(text, st.lists(text, max_size=2).map(tuple), max_size=2).map(lambda d: tuple(sorted(d.items()))),
)
resources = st.builds(
    RequestInfo,
    verb=st.sampled_from(["get", "list", "escalate", ""]),
    method=st.just(""),
    path=st.just(""),
    is_resource=st.just(True),
    api_group=text,
    api_version=text,
    namespace=text,
    resource=text,
    subresource=text,
    name=text,
    field_selector=st.none() | requirements.map(tuple),
    label_selector=st.none() | requirements.map(tuple),
    of_kubernetes=st.just(True),
)
paths = st.builds(RequestInfo, verb=text, method=st.just(""), path=text, of_kubernetes=st.just(True))


@settings(max_examples=60, deadline=None)
@given(users, resources | paths, st.sampled_from([V1, V1BETA1]))
def test_what_we_ask_is_what_is_understood(user: UserInfo, request: RequestInfo, version: str) -> None:
    """S14: strings are opaque, so they come back as they went. T1: nothing that matters is lost on the way."""
    found = decode_review(encode_review(Attributes(user, request), api_version=version))
    assert found.user == user
    for name in RequestInfo.__slots__:
        if name not in ("method", "modifier"):
            assert getattr(found.request, name) == getattr(request, name), name


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Verdict)), text)
def test_what_we_answer_is_what_is_understood(verdict: Verdict, reason: str) -> None:
    asked = decode_review(review({"user": "alice", "resourceAttributes": POD}))
    assert decode_status(encode_status(asked, Decision(verdict, reason))) == Decision(verdict, reason)
