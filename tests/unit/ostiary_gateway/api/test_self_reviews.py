"""What users ask about themselves."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.api.self_reviews import SelfReviews
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Rules
from ostiary_gateway.proxy.reviews import ReviewAnswer, ReviewRequest
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.protobuf import decode
from ostiary_gateway.wire.request_info import request_info

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
        if attributes.user == with_implied_groups(ANN) and request.verb == "get" and request.resource == "pods":
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
    answer = reviews.answer(asked(path), ANN, ReviewRequest(body, content_type=content_type))
    assert isinstance(answer, ReviewAnswer) or isinstance(provider, Elsewhere)
    found = await answer if inspect.isawaitable(answer) else answer
    return found.code, json.loads(found.body)


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
    expected = {"username": "ann", "uid": "u1", "groups": ["dev", "system:authenticated"], "extra": {"team": ["x"]}}
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


@pytest.mark.parametrize("content_type", ["application/cbor", "text/yaml", "text/plain", "application/json2", ";"])
async def test_an_encoding_that_we_do_not_read_is_a_415(content_type: str) -> None:
    """Clients that prefer CBOR then ask again in JSON."""
    code, body = await ask(Policy(), WHO, body_for(WHO), content_type)
    assert (code, body["reason"]) == (415, "UnsupportedMediaType")


async def test_what_is_no_such_review_is_a_400(subtests: pytest.Subtests) -> None:
    """S56: read only here, after the request was let in."""
    cases = [
        (ACCESS, b"", ""),
        (ACCESS, b"[1", ""),
        (ACCESS, body_for(RULES, namespace="n"), ""),
        (ACCESS, can_i("get", "pods").replace(b"/v1", b"/v1beta1"), ""),
        (ACCESS, can_i("get", "pods").replace(b"SelfSubject", b"Subject"), ""),
        (RULES, body_for(RULES), ""),
        (RULES, can_i("get", "pods"), ""),
        (WHO, body_for(RULES, namespace="n"), ""),
        (WHO, body_for(WHO).replace(b"/v1", b"/v1beta1"), ""),
        (WHO, body_for(WHO), PROTOBUF),
    ]
    for path, body, content_type in cases:
        with subtests.test(path=path, body=body, content_type=content_type):
            code, answer = await ask(Policy(), path, body, content_type)
            assert (code, answer["reason"]) == (400, "BadRequest")


ASKED = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "n"}}
BARE = {ACCESS: {"spec": ASKED}, RULES: {"spec": {"namespace": "n"}}, WHO: {}}


async def answer_to(path: str, body: bytes, **said: str) -> ReviewAnswer:
    reviews = SelfReviews(Authorizer([Link("policy", Policy())], clock=FakeClock()), FakeClock())
    answer = reviews.answer(asked(path), ANN, ReviewRequest(body, **said))
    assert isinstance(answer, ReviewAnswer)
    return answer


async def test_what_the_path_says_need_not_stand_in_the_body(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any]] = [("JSON", json.dumps), ("YAML", yaml.safe_dump)]
    for path in [ACCESS, RULES, WHO]:
        for case, written in cases:
            with subtests.test(case, path=path):
                content_type = "application/json" if written is json.dumps else "application/yaml"
                body = written(BARE[path]).encode()
                assert (await answer_to(path, body, content_type=content_type)).code == 201


async def test_the_answer_is_in_what_the_client_prefers_or_a_406(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/html, */*;q=0.1", "application/json"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/yaml;q=0.1", "application/yaml"),
        ("application/json;q=0.1,application/yaml;q=0.2", "application/yaml"),
        (PROTOBUF, PROTOBUF),
        (f"{PROTOBUF};q=0.9, application/json;q=0.8", PROTOBUF),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", ""),
        ("application/json;as=Foo;v=v1;g=meta.k8s.io", ""),
        ("application/*", ""),
        ("APPLICATION/JSON", ""),
        ("text/html", ""),
        ("application/cbor", ""),
        ("application/json;stream=other", ""),
    ]
    for accept, content_type in cases:
        for path in [ACCESS, RULES, WHO]:
            with subtests.test(accept=accept, content_type=content_type, path=path):
                answer = await answer_to(path, json.dumps(BARE[path]).encode(), accept=accept)
                assert answer.code == (201 if content_type else 406)
                assert answer.content_type == (content_type or "application/json")
                if "Partial" in accept:
                    assert json.loads(answer.body)["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize("path", [ACCESS, RULES, WHO])
async def test_every_encoding_says_the_same(path: str) -> None:
    body = json.dumps(BARE[path]).encode()
    as_json = json.loads((await answer_to(path, body)).body)
    pretty = await answer_to(path, body, query="pretty=true")
    assert (json.loads(pretty.body), pretty.body[:4]) == (as_json, b"{\n  ")
    as_yaml = yaml.safe_load((await answer_to(path, body, accept="application/yaml")).body.replace(b"Timestamp", b"T"))
    assert as_yaml["status"] == as_json["status"]
    decoded = decode((await answer_to(path, body, accept=PROTOBUF)).body, "")
    read = protobuf_view(decoded["status"])
    assert read == protobuf_view(as_json["status"])


def protobuf_view(value: Any) -> Any:
    """Without what protobuf and JSON tell differently: empty fields, and maps, which the reader skips."""
    if isinstance(value, dict):
        return {key: protobuf_view(item) for key, item in value.items() if item and key != "extra"}
    return [protobuf_view(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("content_type", [PROTOBUF, "application/yaml", "application/json"])
async def test_errors_come_in_the_encoding_of_answers(content_type: str) -> None:
    answer = await answer_to(ACCESS, b"{}", accept=content_type)
    assert (answer.code, answer.content_type) == (422, content_type)
    read = {PROTOBUF: lambda data: decode(data, ""), "application/yaml": yaml.safe_load, "application/json": json.loads}
    said = read[content_type](answer.body)
    assert (said["reason"], said["code"], said["details"]["causes"][0]["field"]) == (
        "Invalid",
        422,
        "spec.resourceAttributes",
    )


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, ["spec.resourceAttributes"]),
        ({**ASKED, "nonResourceAttributes": {}}, ["spec.nonResourceAttributes"]),
        ({"resourceAttributes": {"fieldSelector": {}}}, ["spec.resourceAttributes.fieldSelector.requirements"]),
        (
            {"resourceAttributes": {"labelSelector": {"requirements": [{"key": "a", "operator": "In"}]}}},
            ["spec.resourceAttributes.labelSelector.requirements[0].values"],
        ),
        (
            {"resourceAttributes": {"fieldSelector": {"requirements": [{"operator": "Exists", "values": ["x"]}]}}},
            [f"spec.resourceAttributes.fieldSelector.requirements[0].{name}" for name in ("key", "values")],
        ),
    ],
)
async def test_a_question_that_contradicts_itself_is_a_422(spec: dict[str, Any], fields: list[str]) -> None:
    answer = await answer_to(ACCESS, json.dumps({"spec": spec}).encode())
    said = json.loads(answer.body)
    assert (answer.code, said["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in said["details"]["causes"]] == fields


async def test_an_access_review_has_no_name(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 201),
        ({"labels": {}}, 201),
        ({"namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}, 201),
        ({"name": "x"}, 422),
        ({"finalizers": ["x"]}, 422),
        ({"labels": {"a": 5}}, 400),
    ]
    for metadata, code in cases:
        with subtests.test(metadata=metadata, code=code):
            assert (await answer_to(ACCESS, json.dumps({"metadata": metadata, "spec": ASKED}).encode())).code == code


async def test_options_of_a_create_are_obeyed(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int, tuple[str, ...] | None]] = [
        ("", 201, ('duplicate field "spec"', 'unknown field "a"', 'unknown field "spec.resourceAttributes.b"')),
        ("fieldValidation=Ignore", 201, ()),
        ("fieldValidation=Strict", 400, ()),
        ("fieldValidation=Strict&dryRun=All", 400, ()),
        ("fieldValidation=strict", 422, ()),
        ("dryRun=All&dryRun=All", 201, None),
        ("dryRun=All&dryRun=", 422, ()),
        ("fieldManager=" + "x" * 129, 422, ()),
        ("fieldManager=a%0Ab", 422, ()),
    ]
    for query, code, warnings in cases:
        with subtests.test(query=query, code=code, warnings=warnings):
            body = b'{"a":1,"spec":{},"spec":{"resourceAttributes":{"verb":"get","b":null}}}'
            answer = await answer_to(ACCESS, body, query=query)
            assert answer.code == code
            if warnings is not None:
                assert answer.warnings == warnings


HOSTILE = [
    b"[" * 100_000,
    b'{"spec":' * 50_000,
    b'{"spec": NaN}',
    b"\xff\xfe",
    b'{"kind": "\\ud800"}',
    b'{"spec": {"resourceAttributes": {"verb": "\\u0000"}}}',
    b"a: &a [*a]",
    b"? {a: b}\n: c",
    b"!!python/object:os.system {}",
    b"- " * 10_000,
]


async def test_a_hostile_body_is_an_answer_or_a_4xx(subtests: pytest.Subtests) -> None:
    for content_type in ["application/json", "application/yaml", PROTOBUF]:
        for body in HOSTILE:
            for path in [ACCESS, RULES, WHO]:
                with subtests.test(content_type=content_type, body=body, path=path):
                    assert (await answer_to(path, body, content_type=content_type)).code in (201, 400, 422)


@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/yaml", PROTOBUF]))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_an_answer_or_a_4xx(body: bytes, content_type: str) -> None:
    reviews = SelfReviews(Authorizer([Link("policy", Policy())], clock=FakeClock()), FakeClock())
    for path in (ACCESS, RULES, WHO):
        for data in (body, b"k8s\x00" + body):
            answer = reviews.answer(asked(path), ANN, ReviewRequest(data, content_type=content_type))
            assert isinstance(answer, ReviewAnswer)
            assert answer.code in (201, 400, 422)


@pytest.mark.parametrize(
    "body",
    [
        b"spec: {x: [" + b"1, " * 3000 + b"1]}",
        b"\n".join(b"k%d: 1" % number for number in range(3000)),
        b"spec: " + b"[" * 100 + b"]" * 100,
        b"spec: {x: " + b"y" * 70_000 + b"}",
    ],
    ids=["a wide list", "many keys", "a deep list", "a long text"],
)
async def test_yaml_that_would_hold_everybody_up_is_not_read(body: bytes) -> None:
    """The loader takes a minute for a wide list of one megabyte, and nobody else is served meanwhile."""
    answer = await answer_to(ACCESS, body, content_type="application/yaml")
    assert answer.code == 400


async def test_yaml_of_the_size_of_a_real_question_is_read() -> None:
    expressions = [{"key": f"k{number}", "operator": "In", "values": ["a", "b"]} for number in range(100)]
    spec = {"resourceAttributes": {"verb": "list", "labelSelector": {"requirements": expressions}}}
    answer = await answer_to(ACCESS, yaml.safe_dump({"spec": spec}).encode(), content_type="application/yaml")
    assert answer.code == 201
