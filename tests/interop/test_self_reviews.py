"""Self reviews: one and the same request to the real API server and to the gateway, and the answers compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import kr8s
import pytest
import yaml
from kubernetes import client

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import Front
from tests.interop.support.people import GROUP_OF

# Its types say "or None" of every field.
official: Any = client

AUTHENTICATION, AUTHORIZATION = "/apis/authentication.k8s.io/v1", "/apis/authorization.k8s.io/v1"
WHO = f"{AUTHENTICATION}/selfsubjectreviews"
ACCESS = f"{AUTHORIZATION}/selfsubjectaccessreviews"
RULES = f"{AUTHORIZATION}/selfsubjectrulesreviews"

PROTOBUF = "application/vnd.kubernetes.protobuf"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PODS = {"namespace": "team", "verb": "list", "resource": "pods"}
SECRETS = {"namespace": "other", "verb": "get", "resource": "secrets", "name": "hidden"}


@dataclass(frozen=True)
class Call:
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"

    def send(self, http: httpx.Client) -> httpx.Response:
        text = self.body if isinstance(self.body, (str, bytes)) else json.dumps(self.body)
        headers = {"Content-Type": "application/json", **self.headers}
        return http.request(self.method, self.path, content=text, headers=headers)


def access(**attributes: Any) -> dict[str, Any]:
    return {"spec": {"resourceAttributes": attributes}}


def typed(kind: str, group: str, **rest: Any) -> dict[str, Any]:
    return {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, **rest}


FULL_ACCESS = typed("SelfSubjectAccessReview", "authorization", **access(**PODS))

BODIES = {
    "access: allowed": Call(ACCESS, FULL_ACCESS),
    "access: denied": Call(ACCESS, typed("SelfSubjectAccessReview", "authorization", **access(**SECRETS))),
    "access: neither kind nor apiVersion": Call(ACCESS, access(**PODS)),
    "access: no kind": Call(ACCESS, {"apiVersion": "authorization.k8s.io/v1", **access(**PODS)}),
    "access: no apiVersion": Call(ACCESS, {"kind": "SelfSubjectAccessReview", **access(**PODS)}),
    "access: another kind": Call(ACCESS, {**FULL_ACCESS, "kind": "SelfSubjectRulesReview"}),
    "access: another version": Call(ACCESS, {**FULL_ACCESS, "apiVersion": "authorization.k8s.io/v1beta1"}),
    "access: another group": Call(ACCESS, {**FULL_ACCESS, "apiVersion": "v1"}),
    "access: a path": Call(ACCESS, {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/healthz"}}}),
    "access: an empty spec": Call(ACCESS, {"spec": {}}),
    "access: no spec": Call(ACCESS, {}),
    "access: both kinds of attributes": Call(
        ACCESS, {"spec": {"resourceAttributes": PODS, "nonResourceAttributes": {"verb": "get", "path": "/"}}}
    ),
    "access: empty attributes": Call(ACCESS, access()),
    "access: wrong type": Call(ACCESS, {"spec": {"resourceAttributes": {"verb": 7}}}),
    "access: not an object": Call(ACCESS, "[]"),
    "access: no JSON": Call(ACCESS, "{"),
    "access: no body": Call(ACCESS, ""),
    "access: null": Call(ACCESS, "null"),
    "access: an unknown field": Call(ACCESS, {**access(**PODS), "colour": "green"}),
    "access: with metadata": Call(ACCESS, {"metadata": {"name": "mine", "labels": {"a": "b"}}, **access(**PODS)}),
    "access: with a namespace in metadata": Call(ACCESS, {"metadata": {"namespace": "team"}, **access(**PODS)}),
    "rules: a namespace": Call(RULES, {"spec": {"namespace": "team"}}),
    "rules: no kind": Call(RULES, {"apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": "other"}}),
    "rules: no namespace": Call(RULES, {"spec": {}}),
    "rules: no spec": Call(RULES, {}),
    "who: nothing": Call(WHO, {}),
    "who: no body": Call(WHO, ""),
    "who: typed": Call(WHO, typed("SelfSubjectReview", "authentication")),
    "who: another kind": Call(WHO, typed("TokenReview", "authentication")),
    "who: by GET": Call(WHO, "", method="GET"),
    "access: by GET": Call(ACCESS, "", method="GET"),
    "access: by PUT": Call(ACCESS, access(**PODS), method="PUT"),
    "access: by name": Call(f"{ACCESS}/mine", access(**PODS)),
    "access: dry run": Call(f"{ACCESS}?dryRun=All", access(**PODS)),
    "access: field validation": Call(f"{ACCESS}?fieldValidation=Strict", {**access(**PODS), "colour": "green"}),
    "access: pretty": Call(f"{ACCESS}?pretty=true", access(**SECRETS)),
    "who: pretty": Call(f"{WHO}?pretty=1", {}),
}

YAML = {"Content-Type": "application/yaml"}
NEGOTIATION = {
    "body in YAML": Call(ACCESS, yaml.safe_dump(access(**PODS)), YAML),
    "body in YAML, answer too": Call(ACCESS, yaml.safe_dump(access(**PODS)), {**YAML, "Accept": "application/yaml"}),
    "JSON called YAML": Call(ACCESS, access(**PODS), YAML),
    "answer in YAML": Call(WHO, {}, {"Accept": "application/yaml"}),
    "no content type": Call(ACCESS, access(**PODS), {"Content-Type": ""}),
    "a content type with a parameter": Call(
        ACCESS, access(**PODS), {"Content-Type": "application/json; charset=utf-8"}
    ),
    "an unknown content type": Call(ACCESS, access(**PODS), {"Content-Type": "text/plain"}),
    "a form": Call(ACCESS, "a=b", {"Content-Type": "application/x-www-form-urlencoded"}),
    "anything": Call(WHO, {}, {"Accept": "*/*"}),
    "any application": Call(WHO, {}, {"Accept": "application/*"}),
    "no Accept": Call(WHO, {}, {"Accept": ""}),
    "protobuf": Call(WHO, {}, {"Accept": PROTOBUF}),
    "protobuf or JSON": Call(ACCESS, access(**SECRETS), {"Accept": f"{PROTOBUF},application/json"}),
    "JSON or protobuf": Call(ACCESS, access(**SECRETS), {"Accept": f"application/json,{PROTOBUF}"}),
    "protobuf with less weight": Call(WHO, {}, {"Accept": f"{PROTOBUF};q=0.5,application/json"}),
    "a table": Call(ACCESS, access(**PODS), {"Accept": TABLE}),
    "a table of rules": Call(RULES, {"spec": {"namespace": "team"}}, {"Accept": TABLE}),
    "a table of oneself": Call(WHO, {}, {"Accept": TABLE}),
    "a table or JSON": Call(ACCESS, access(**PODS), {"Accept": f"{TABLE},application/json"}),
    "partial metadata": Call(WHO, {}, {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}),
    "nothing that there is": Call(WHO, {}, {"Accept": "text/html"}),
    "an image": Call(ACCESS, access(**PODS), {"Accept": "image/png"}),
    "a browser": Call(ACCESS, access(**PODS), {"Accept": "text/html,*/*;q=0.8", "User-Agent": "Mozilla/5.0"}),
}


OF_THE_MOMENT = {"creationTimestamp", "managedFields"}


def comparable(answer: httpx.Response) -> dict[str, Any]:
    """Status, form and meaning. Left out: times, how the caller was known, why something was allowed."""
    kind = answer.headers.get("content-type", "")
    shown: dict[str, Any] = {"status": answer.status_code, "content-type": kind}
    if kind.startswith(PROTOBUF):
        # Texts stand in a message as they are; below is a test of the bytes.
        texts = re.findall(rb"alice|dev|system:authenticated", answer.content)
        return {**shown, "magic": answer.content[:4], "texts": texts}
    body = yaml.safe_load(answer.text) if "yaml" in kind else json.loads(answer.text) if "json" in kind else answer.text
    shape = {} if isinstance(body, dict) and body.get("kind") == "Status" else {"indented": "\n  " in answer.text}
    return {**shown, **shape, "body": _meaning(body)}


def _meaning(body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    if body.get("kind") == "Status":
        # The words and the layout of a mistake are not compared, but that it is one, and of which sort.
        return {key: body.get(key) for key in ("apiVersion", "kind", "status", "reason", "code")}
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in OF_THE_MOMENT}
    status = dict(body.get("status") or {})
    status.pop("reason", None)
    if "userInfo" in status:
        user = dict(status["userInfo"])
        # How the caller was known must differ: here a certificate, there a token.
        extra = {key: value for key, value in user.pop("extra", {}).items() if key != CREDENTIAL_ID}
        status["userInfo"] = {**user, **({"extra": extra} if extra else {})}
    for rules in ("resourceRules", "nonResourceRules"):
        if rules in status:
            # Kubernetes gives them in a random order.
            status[rules] = sorted(json.dumps(rule, sort_keys=True) for rule in status[rules] or [])
    return {**body, "metadata": metadata, "status": status}


@pytest.mark.parametrize("name", [*BODIES, *NEGOTIATION])
def test_the_gateway_answers_as_the_api_server_does(name: str, front: Front, cluster: RealCluster) -> None:
    call = {**BODIES, **NEGOTIATION}[name]
    with cluster.http("alice", GROUP_OF["alice"]) as real, front.http("alice") as gateway:
        expected, answer = call.send(real), call.send(gateway)
    assert comparable(answer) == comparable(expected), f"{expected.text}\n{answer.text}"


def test_a_protobuf_answer_is_the_api_servers_byte_for_byte(front: Front, cluster: RealCluster) -> None:
    """About a refusal: there the API server gives no reason either."""
    call = Call(ACCESS, access(**SECRETS), {"Accept": PROTOBUF})
    with cluster.http("alice", GROUP_OF["alice"]) as real, front.http("alice") as gateway:
        expected, answer = call.send(real), call.send(gateway)
    assert (answer.status_code, answer.headers["content-type"]) == (201, PROTOBUF)
    # From the spec on: before it the API server notes which fields the caller set, and when.
    begin = b"\n\x05other\x12\x03get"
    assert begin in expected.content
    assert answer.content.partition(begin)[2] == expected.content.partition(begin)[2]


# --- programs that ask ---


def api_client(front: Front, user: str) -> Any:
    """The official Python client, as its own documentation sets it up with a token."""
    settings = official.Configuration(host=front.gateway.url(front.host))
    settings.ssl_ca_cert = str(front.site.folder / "ca.pem")
    settings.api_key = {"authorization": f"Bearer {front.token(user)}"}
    return official.ApiClient(settings)


class TestTheOfficialPythonClient:
    """Its models carry neither kind nor apiVersion unless the caller sets them."""

    def test_who_am_i(self, front: Front) -> None:
        with api_client(front, "alice") as api:
            review = official.AuthenticationV1Api(api).create_self_subject_review(official.V1SelfSubjectReview())
        assert review.status.user_info.username == "alice"
        assert set(review.status.user_info.groups) == {"dev", "system:authenticated"}

    def test_may_i(self, front: Front) -> None:
        with api_client(front, "alice") as api:
            reviews = official.AuthorizationV1Api(api)
            answers = []
            for attributes in (PODS, SECRETS):
                spec = official.V1SelfSubjectAccessReviewSpec(
                    resource_attributes=official.V1ResourceAttributes(**attributes)
                )
                body = official.V1SelfSubjectAccessReview(spec=spec)
                answers.append(reviews.create_self_subject_access_review(body).status.allowed)
        assert answers == [True, False]

    def test_what_may_i(self, front: Front) -> None:
        with api_client(front, "alice") as api:
            spec = official.V1SelfSubjectRulesReviewSpec(namespace="team")
            body = official.V1SelfSubjectRulesReview(spec=spec)
            status = official.AuthorizationV1Api(api).create_self_subject_rules_review(body).status
        assert not status.incomplete
        assert any("configmaps" in rule.resources and "create" in rule.verbs for rule in status.resource_rules)

    def test_may_somebody_else(self, front: Front) -> None:
        """Not a self review: it is passed on, and the API server decides."""
        with api_client(front, "carol") as api:
            spec = official.V1SubjectAccessReviewSpec(
                user="bob", groups=["readers"], resource_attributes=official.V1ResourceAttributes(**PODS)
            )
            review = official.AuthorizationV1Api(api).create_subject_access_review(
                official.V1SubjectAccessReview(spec=spec)
            )
        assert review.status.allowed


class TestATokenReviewAboutOnesOwnToken:
    def review(self, front: Front, user: str, token: str, **spec: Any) -> dict[str, Any]:
        body = typed("TokenReview", "authentication", spec={"token": token, **spec})
        with front.http(user) as http:
            answer = http.post(f"{AUTHENTICATION}/tokenreviews", json=body)
        assert answer.status_code == 201, answer.text
        status: dict[str, Any] = answer.json()["status"]
        return status

    def test_the_gateway_knows_the_token_that_the_caller_presents(self, front: Front) -> None:
        status = self.review(front, "alice", front.token("alice"))
        assert status["authenticated"] is True
        assert status["user"]["username"] == "alice"
        assert set(status["user"]["groups"]) == {"dev", "system:authenticated"}

    @pytest.mark.filterwarnings("ignore:Kubernetes version")  # newer than it knows
    def test_whoami_of_kr8s_is_answered(self, front: Front) -> None:
        """It asks for its name by a TokenReview about its own token."""
        kubeconfig = front.kubectl("alice").kubeconfig
        api: Any = kr8s.api(kubeconfig=str(kubeconfig))
        assert api.whoami() == "alice"

    def test_a_token_of_somebody_else_is_no_question_for_the_gateway(self, front: Front) -> None:
        """Else any user who may create TokenReviews could try out others' tokens here."""
        status = self.review(front, "alice", front.token("bob"))
        assert not status.get("authenticated")

    def test_a_token_of_the_cluster_is_still_a_question_for_the_api_server(
        self, front: Front, cluster: RealCluster
    ) -> None:
        token = cluster.admin.output("create", "token", "robot", "-n", "team", "--duration=10m").strip()
        status = self.review(front, "alice", token)
        assert status["authenticated"] is True
        assert status["user"]["username"] == "system:serviceaccount:team:robot"
