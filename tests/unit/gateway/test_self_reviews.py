"""What users ask about themselves."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from ostiary.gateway.authorize import Authorizer, Link
from ostiary.gateway.self_reviews import SelfReviews, is_self_review
from ostiary.interfaces.attributes import RequestLine
from ostiary.interfaces.authorization import NonResourceRule, ResourceRule, Rules
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary.testing import FakeClock
from ostiary.wire.request_info import request_info
from ostiary.wire.status import Answer

ANN = UserInfo("ann", "u1", ("dev",), (("team", ("x",)),))
ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
PROTOBUF = "application/vnd.kubernetes.protobuf"


class Policy:
    """Ann may get pods, and is not told of secrets."""

    def decide(self, attributes: Attributes) -> Decision:
        request = attributes.request
        if request.resource == "broken":
            raise ConnectionError("canary")
        if attributes.user.username == ANN.username and request.verb == "get" and request.resource == "pods":
            return Decision(Verdict.ALLOW, "because")
        return Decision(Verdict.NO_OPINION, "canary-reason", hidden=request.resource == "secrets")

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return Rules((ResourceRule(("get",), ("",), (f"pods-of-{namespace}",)),), (NonResourceRule(("get",), ("/x",)),))


class Elsewhere:
    def __init__(self) -> None:
        self._policy = Policy()

    async def authorize(self, attributes: Attributes) -> Decision:
        return self._policy.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


def asked(path: str, method: str = "POST") -> RequestInfo:
    return request_info(RequestLine(method, path))


def body_for(path: str, **spec: Any) -> bytes:
    kinds = {ACCESS: "SelfSubjectAccessReview", RULES: "SelfSubjectRulesReview", WHO: "SelfSubjectReview"}
    group_version = "/".join(path.split("/")[2:4])
    return json.dumps({"kind": kinds[path], "apiVersion": group_version, "spec": spec}).encode()


def can_i(verb: str, resource: str) -> bytes:
    return body_for(ACCESS, resourceAttributes={"verb": verb, "resource": resource, "namespace": "n"})


async def ask(
    provider: Policy | Elsewhere, path: str, body: bytes, content_type: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    reviews = SelfReviews(Authorizer([Link("policy", provider)], clock=FakeClock()))
    answer = reviews.answer(asked(path), ANN, body, content_type)
    assert isinstance(answer, Answer) or isinstance(provider, Elsewhere)
    found = await answer if inspect.isawaitable(answer) else answer
    return found.code, json.loads(found.body)


@pytest.mark.parametrize("path", [ACCESS, RULES, WHO])
def test_the_reviews_about_oneself_are_ours_to_answer(path: str) -> None:
    assert is_self_review(asked(path))
    assert is_self_review(asked(path.replace("/v1/", "/v1beta1/")))
    assert not is_self_review(asked(path.replace("/v1/", "/v2/")))
    assert not is_self_review(asked(path, "GET"))
    assert not is_self_review(asked(f"{path}/x"))
    assert not is_self_review(asked(path.replace(".k8s.io", ".example")))


def test_other_reviews_are_not() -> None:
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1/subjectaccessreviews"))
    assert not is_self_review(asked("/apis/authentication.k8s.io/v1/tokenreviews"))
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1/namespaces/n/selfsubjectaccessreviews"))
    assert not is_self_review(asked("/apis/authorization.k8s.io/v1alpha1/selfsubjectaccessreviews"))
    assert is_self_review(asked("/apis/authentication.k8s.io/v1alpha1/selfsubjectreviews"))
    assert not is_self_review(asked("/selfsubjectreviews"))


@pytest.mark.parametrize("provider", [Policy(), Elsewhere()], ids=["at once", "elsewhere"])
async def test_can_i(provider: Policy | Elsewhere) -> None:
    code, body = await ask(provider, ACCESS, can_i("get", "pods"))
    assert (code, body["status"]) == (201, {"allowed": True, "reason": "because"})
    assert body["spec"] == {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "n"}}


@pytest.mark.parametrize("provider", [Policy(), Elsewhere()], ids=["at once", "elsewhere"])
async def test_a_refusal_gives_no_reason_and_does_not_show_that_it_is_hidden(provider: Policy | Elsewhere) -> None:
    """S55."""
    refused = [(await ask(provider, ACCESS, can_i("get", resource)))[1]["status"] for resource in ("nodes", "secrets")]
    assert refused == [{"allowed": False}] * 2


async def test_can_i_list() -> None:
    code, body = await ask(Policy(), RULES, body_for(RULES, namespace="n"))
    assert code == 201
    assert body["status"]["resourceRules"] == [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods-of-n"]}]
    assert body["status"]["nonResourceRules"] == [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]
    assert body["status"]["incomplete"] is False


async def test_a_provider_that_cannot_list_its_rules_makes_the_list_incomplete() -> None:
    _, body = await ask(Elsewhere(), RULES, body_for(RULES, namespace="n"))
    assert body["status"]["incomplete"] is True


async def test_whoami() -> None:
    """S40."""
    code, body = await ask(Policy(), WHO, body_for(WHO))
    assert code == 201
    expected = {"username": "ann", "uid": "u1", "groups": ["dev"], "extra": {"team": ["x"]}}
    assert body["status"]["userInfo"] == expected


@pytest.mark.parametrize("provider", [Policy(), Elsewhere()], ids=["at once", "elsewhere"])
async def test_a_provider_that_cannot_be_asked_is_a_500(provider: Policy | Elsewhere) -> None:
    """S53."""
    code, body = await ask(provider, ACCESS, can_i("get", "broken"))
    assert (code, body["reason"]) == (500, "InternalError")
    assert "canary" not in json.dumps(body)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", ""])
async def test_json_in_all_its_spellings(content_type: str) -> None:
    assert (await ask(Policy(), WHO, body_for(WHO), content_type))[0] == 201


@pytest.mark.parametrize("content_type", ["application/cbor", "application/yaml", "text/plain"])
async def test_an_encoding_that_we_do_not_read_is_a_415(content_type: str) -> None:
    """Clients that prefer CBOR then ask again in JSON."""
    code, body = await ask(Policy(), WHO, body_for(WHO), content_type)
    assert (code, body["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("path", "body", "content_type"),
    [
        (ACCESS, b"", ""),
        (ACCESS, b"{}", ""),
        (ACCESS, body_for(RULES, namespace="n"), ""),
        (ACCESS, can_i("get", "pods").replace(b"/v1", b"/v1beta1"), ""),
        (ACCESS, can_i("get", "pods").replace(b"SelfSubject", b"Subject"), ""),
        (RULES, body_for(RULES), ""),
        (RULES, can_i("get", "pods"), ""),
        (WHO, body_for(RULES, namespace="n"), ""),
        (WHO, body_for(WHO).replace(b"/v1", b"/v1beta1"), ""),
        (WHO, body_for(WHO), PROTOBUF),
    ],
    ids=range(10),
)
async def test_what_is_no_such_review_is_a_400(path: str, body: bytes, content_type: str) -> None:
    """S56: read only here, after the request was let in."""
    code, answer = await ask(Policy(), path, body, content_type)
    assert (code, answer["reason"]) == (400, "BadRequest")
