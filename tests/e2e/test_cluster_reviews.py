"""The tests' own API server answers access reviews as a real cluster does."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trustme

from ostiary.core.yaml import parse_all
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import read_manifests
from tests.support.cluster import Cluster
from tests.support.cluster.access_reviews import refuse_by
from tests.support.vectors import load

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
NAMES = ("verb", "group", "namespace", "resource", "subresource", "name")


@pytest.fixture
def asker(ca: trustme.CA) -> Iterator[tuple[Cluster, httpx.Client]]:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    with Cluster(ca) as cluster:
        headers = {"Authorization": f"Bearer {cluster.add_token('asker')}"}
        with httpx.Client(base_url=cluster.url, verify=context, headers=headers, trust_env=False, timeout=30) as http:
            yield cluster, http


def review(http: httpx.Client, spec: dict[str, Any]) -> httpx.Response:
    body = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}
    return http.post(REVIEWS, json=body)


@pytest.mark.parametrize("number", range(3))
def test_policies_and_questions_get_the_answers_of_a_real_cluster(
    asker: tuple[Cluster, httpx.Client], number: int
) -> None:
    cluster, http = asker
    vector = load("rbac")[number]
    decide = refuse_by(RbacAuthorization(policy=read_manifests(parse_all(vector["manifests"]))))
    cluster.refuse = lambda user, asked: None if user.username == "asker" else decide(user, asked)
    for question in [each for each in vector["questions"] if each.get("user")][:40]:
        spec: dict[str, Any] = {
            "user": question["user"],
            "groups": [*question.get("groups", ()), "system:authenticated"],
        }
        if "path" in question:
            spec["nonResourceAttributes"] = {"path": question["path"], "verb": question.get("verb", "")}
        else:
            spec["resourceAttributes"] = {name: question.get(name, "") for name in NAMES}
        answer = review(http, spec)
        assert (answer.status_code, answer.json()["status"]["allowed"]) == (201, question["allowed"]), question


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"user": "alice"},
        {"resourceAttributes": {"verb": "get"}},
        {"user": "alice", "resourceAttributes": {}, "nonResourceAttributes": {}},
    ],
)
def test_a_review_that_says_too_little_or_too_much_is_refused(
    asker: tuple[Cluster, httpx.Client], spec: dict[str, Any]
) -> None:
    assert review(asker[1], spec).status_code == 400
