"""Shadow mode: a real gateway compares its decisions with those of the cluster, and says where they differ."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.core.yaml import parse_all
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import read_manifests
from tests.support.cluster import Cluster
from tests.support.cluster.access_reviews import refuse_by
from tests.support.gateway import ServedGateway, Site, role
from tests.support.metrics import samples
from tests.support.waiting import until

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
ASK = {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]}
READ = {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["get", "list"]}
AS_BOB = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]}
SHADOW = {"share": 1, "perSecond": 1000}
NAME = "ostiary_gateway_shadow_reviews_total"


def rbac(*manifests: list[dict[str, Any]]) -> RbacAuthorization:
    text = yaml.safe_dump_all([document for manifest in manifests for document in manifest])
    return RbacAuthorization(policy=read_manifests(parse_all(text)))


@dataclass
class Shadowed:
    site: Site
    cluster: Cluster
    gateway: ServedGateway
    tokens: dict[str, str]

    def outcomes(self) -> dict[str, float]:
        page = self.gateway.probe("/metrics").content
        return {dict(labels)["outcome"]: value for (name, labels), value in samples(page).items() if name == NAME}

    def ask(self, user: str, *paths: str, **headers: str) -> list[int]:
        with self.gateway.http(self.tokens[user]) as http:
            return [http.get(path, headers=headers).status_code for path in paths]

    def wait_for(self, **outcomes: float) -> None:
        """Until the counters are these; other outcomes may be there too."""
        until(lambda: {**outcomes, **{key: self.outcomes().get(key) for key in outcomes}} == outcomes)

    def events(self, count: int) -> list[dict[str, Any]]:
        """So many events of comparisons: the log is written a moment later."""

        def shown() -> list[dict[str, Any]]:
            return [event for event in self.site.events() if event["stage"] == "ShadowReview"]

        until(lambda: len(shown()) >= count)
        return shown()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "ostiary_gateway", "policy", "shadow", *arguments, str(self.site.audit_log)]
        return subprocess.run(words, capture_output=True, text=True, cwd=self.site.folder, check=False)


@pytest.fixture
def shadowed(ca: trustme.CA, tmp_path: Path) -> Iterator[Shadowed]:
    site = Site(tmp_path, ca)
    site.users("alice", "bob", "carol")
    site.policy(
        role("team", "pods configmaps", User="alice"),
        role("team", READ, User="bob"),
        role("", AS_BOB, User="carol"),
    )
    with Cluster(ca) as cluster:
        for namespace in ("team", "other"):
            cluster.add_namespace(namespace)
            cluster.add_pod(namespace, "web")
        cluster.refuse = refuse_by(
            rbac(
                role("", ASK, User="gateway"),
                role("team", READ, User="alice"),
                role("team", READ, User="bob"),
                role("other", READ, User="bob"),
            )
        )
        with site.serving(upstreams=[site.impersonating(cluster, shadow=SHADOW)]) as gateway:
            tokens = {user: gateway.login(user).token for user in ("alice", "bob", "carol")}
            yield Shadowed(site, cluster, gateway, tokens)


def test_agreement_is_counted_and_both_kinds_of_disagreement_are_told(shadowed: Shadowed) -> None:
    paths = [
        f"/api/v1/namespaces/{namespace}/{kind}"
        for namespace, kind in product(("team", "other"), ("pods", "configmaps"))
    ]
    assert shadowed.ask("alice", *paths) == [200, 200, 403, 403]
    assert shadowed.ask("bob", *paths) == [200, 200, 403, 403]
    with shadowed.gateway.http(shadowed.tokens["alice"]) as http:
        # We allow it, and the cluster does not: its answer is the user's, as without shadow mode.
        assert http.delete("/api/v1/namespaces/team/pods/web").status_code == 403
    shadowed.wait_for(agree=6, only_cluster_allows=2, only_gateway_allows=1)
    shadows = shadowed.events(9)
    requests = {event["auditID"]: event for event in shadowed.site.events() if event["stage"] == "ResponseComplete"}
    for event in shadows:
        request = requests[event["auditID"]]
        assert [event[key] for key in ("user", "verb", "objectRef")] == [
            request[key] for key in ("user", "verb", "objectRef")
        ]
        assert (
            event["annotations"]["authorization.k8s.io/decision"]
            == (request["annotations"]["authorization.k8s.io/decision"])
        )
    (ours,) = [each for each in shadows if each["annotations"]["ostiary.dev/shadow"] == "only_gateway_allows"]
    assert ours["objectRef"]["name"] == "web"

    shown = shadowed.command("--config", "gateway.yaml")
    assert shown.returncode == 1, shown.stderr
    assert 'only the gateway allows User "alice" to delete pods in namespace "team"' in shown.stdout
    assert 'only the cluster allows User "bob" to list pods in namespace "other"' in shown.stdout
    assert "9 decisions compared: 3 differ" in shown.stdout
    assert "rule now" in shown.stdout
    told = json.loads(shadowed.command("--output", "json", "--fail-on", "never").stdout)
    assert (told["agreed"], told["unknown"], [each["count"] for each in told["disagreements"]]) == (6, 0, [1, 1, 1])


def test_requests_that_came_before_are_compared_too_and_a_review_names_the_user_and_groups(shadowed: Shadowed) -> None:
    path = "/api/v1/namespaces/team/pods?labelSelector=app%3Dweb"
    assert shadowed.ask("alice", *[path] * 20) == [200] * 20
    shadowed.wait_for(agree=20)
    reviews = shadowed.cluster.to(REVIEWS)
    assert len(reviews) == 20
    assert {record.authenticated.username for record in reviews if record.authenticated} == {"gateway"}
    spec = json.loads(reviews[0].body)["spec"]
    assert (spec["user"], spec["groups"]) == ("alice", ["system:authenticated"])
    assert spec["resourceAttributes"]["labelSelector"] == {
        "requirements": [{"key": "app", "operator": "In", "values": ["web"]}]
    }


def test_who_is_impersonated_is_compared_and_who_may_not_impersonate_is_left_out(shadowed: Shadowed) -> None:
    path = "/api/v1/namespaces/other/pods"
    assert shadowed.ask("carol", path, **{"Impersonate-User": "bob"}) == [403]
    assert shadowed.ask("carol", path, **{"Impersonate-User": "alice"}) == [403]
    shadowed.wait_for(only_cluster_allows=1)
    (event,) = shadowed.events(1)
    assert (event["user"]["username"], event["impersonatedUser"]["username"]) == ("carol", "bob")
    assert len(shadowed.cluster.to(REVIEWS)) == 1


def test_a_cluster_that_may_not_be_asked_is_unknown_and_nothing_changes_for_users(shadowed: Shadowed) -> None:
    shadowed.cluster.refuse = refuse_by(rbac(role("team", READ, User="alice")))
    assert shadowed.ask("alice", "/api/v1/namespaces/team/pods") == [200]
    shadowed.wait_for(unknown=1)
    assert "create subjectaccessreviews" in shadowed.gateway.line("a cluster could not be asked for its decision")
    shown = shadowed.command()
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "no decisions that were compared" in shown.stderr


@pytest.mark.slow
def test_the_check_tells_whether_the_cluster_may_be_asked_and_the_role_has_it(shadowed: Shadowed) -> None:
    def check() -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--online", "--config", "gateway.yaml"]
        return subprocess.run(words, capture_output=True, text=True, cwd=shadowed.site.folder, check=False)

    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    shadowed.cluster.refuse = refuse_by(rbac())
    done = check()
    assert done.returncode != 0
    assert "may not create subjectaccessreviews" in done.stdout + done.stderr
    words = [sys.executable, "-m", "ostiary_gateway", "impersonation-role", "--config", "gateway.yaml"]
    role_text = subprocess.run(words, capture_output=True, text=True, cwd=shadowed.site.folder, check=True).stdout
    assert any(
        rule["resources"] == ["subjectaccessreviews"] and rule["verbs"] == ["create"]
        for document in yaml.safe_load_all(role_text)
        for rule in document.get("rules", ())
        if "resources" in rule
    )
