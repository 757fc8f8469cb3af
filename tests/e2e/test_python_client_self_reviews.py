"""The official Python client asks about itself through a gateway. It leaves out what the path says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.client as k8s
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import InProcessGateway, Site, role


@pytest.fixture
def gateway(tmp_path: Path, ca: trustme.CA) -> Iterator[InProcessGateway]:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice")
    site.policy(role("team", "pods", User="alice"))
    with Cluster(ca) as cluster, site.in_process(upstreams=[site.impersonating(cluster)]) as gateway:
        yield gateway


@pytest.fixture
def api(gateway: InProcessGateway) -> Any:
    configuration = k8s.Configuration()
    configuration.host = gateway.url()
    configuration.ssl_ca_cert = str(gateway.site.folder / "ca.pem")
    configuration.api_key = {"authorization": f"Bearer {gateway.login('alice').token}"}
    with k8s.ApiClient(configuration) as client:
        yield client


def test_access_reviews(api: Any) -> None:
    authorization: Any = k8s.AuthorizationV1Api(api)
    asked = k8s.V1ResourceAttributes(namespace="team", verb="delete", resource="pods")
    body = k8s.V1SelfSubjectAccessReview(spec=k8s.V1SelfSubjectAccessReviewSpec(resource_attributes=asked))
    assert authorization.create_self_subject_access_review(body).status.allowed
    path = k8s.V1NonResourceAttributes(path="/metrics", verb="get")
    body = k8s.V1SelfSubjectAccessReview(spec=k8s.V1SelfSubjectAccessReviewSpec(non_resource_attributes=path))
    assert not authorization.create_self_subject_access_review(body).status.allowed


def test_rules_reviews(api: Any) -> None:
    body = k8s.V1SelfSubjectRulesReview(spec=k8s.V1SelfSubjectRulesReviewSpec(namespace="team"))
    authorization: Any = k8s.AuthorizationV1Api(api)
    rules = authorization.create_self_subject_rules_review(body).status.resource_rules
    assert ["pods"] in [rule.resources for rule in rules]


def test_whoami(api: Any) -> None:
    authentication: Any = k8s.AuthenticationV1Api(api)
    user = authentication.create_self_subject_review(k8s.V1SelfSubjectReview()).status.user_info
    assert (user.username, user.groups) == ("alice", ["system:authenticated"])


def test_a_review_of_the_clients_own_token(api: Any) -> None:
    token = api.configuration.api_key["authorization"].removeprefix("Bearer ")
    body = k8s.V1TokenReview(spec=k8s.V1TokenReviewSpec(token=token))
    authentication: Any = k8s.AuthenticationV1Api(api)
    reviewed = authentication.create_token_review(body).status
    assert (reviewed.authenticated, reviewed.user.username) == (True, "alice")
