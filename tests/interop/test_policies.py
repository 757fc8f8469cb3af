"""Random roles and bindings in a real cluster: its SubjectAccessReview and the gateway's say the same about them.

The gateway is given the manifests as they were written, not as the cluster shows them: what the controllers make of
aggregated roles it has to know itself.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.interop.support.cluster import MASTERS, RealCluster
from tests.interop.support.front import ClusterSite
from tests.interop.support.people import RBAC, binding, cluster_role, user
from tests.interop.support.process import wait_until
from tests.support.gateway import ServedGateway

SEEDS = (1, 2, 3)
QUESTIONS = 250
CALLER = "the-api-server"
LABEL, PART, MARKER = {"policy": "random"}, {"part": "yes"}, {"policy-marker": "yes"}

VERBS = ("get", "list", "watch", "create", "update", "delete", "use", "*", "bind", "impersonate", "GET")
GROUPS = ("", "apps", "*", "example.test", "batch")
RESOURCES = (
    "pods",
    "pods/log",
    "*",
    "*/log",
    "pods/*",
    "deployments",
    "deployments/scale",
    "*/scale",
    "things",
    "secrets",
)
NAMES = ("one", "two", "*", "a/b")
URLS = ("/healthz", "/healthz/*", "/metrics", "*", "/logs/*", "/api*", "/x/*/y", "/a/", "/a")
NAMESPACES = ("team", "other", "missing-namespace")
SUBJECTS = (
    {"kind": "User", "name": "alice", "apiGroup": RBAC},
    {"kind": "User", "name": "bob", "apiGroup": RBAC},
    {"kind": "User", "name": "*", "apiGroup": RBAC},
    {"kind": "User", "name": "system:serviceaccount:team:robot", "apiGroup": RBAC},
    {"kind": "Group", "name": "dev", "apiGroup": RBAC},
    {"kind": "Group", "name": "system:authenticated", "apiGroup": RBAC},
    {"kind": "Group", "name": "system:serviceaccounts:team", "apiGroup": RBAC},
    {"kind": "ServiceAccount", "name": "robot", "namespace": "team"},
)


class Policy:
    """One policy: roles, some of which aggregate others, and bindings, some of which name no role that exists."""

    def __init__(self, seed: int) -> None:
        self.random, self.seed = random.Random(seed), seed
        self.cluster_roles = [self._cluster_role(number) for number in range(14)]
        self.roles = [self._role(number) for number in range(5)]
        self.bindings = [self._binding(number) for number in range(16)]

    @property
    def manifests(self) -> list[dict[str, Any]]:
        return [*self.cluster_roles, *self.roles, *self.bindings]

    def question(self) -> dict[str, Any]:
        """A SubjectAccessReview; the users and what they ask about are those of the policy, mostly."""
        who = {"user": self._one(("alice", "bob", "*", "system:serviceaccount:team:robot", "nobody"))}
        groups = self._some(("dev", "ops", "system:serviceaccounts:team"), least=0)
        spec: dict[str, Any] = {**who, "groups": [*groups, "system:authenticated"]}
        verb = self._one(VERBS)
        if self.random.random() < 0.2:
            path = self._one(
                ("/healthz", "/healthz/etcd", "/metrics", "/logs/a/b", "/api/v1", "/x/1/y", "/a", "/a/", "/")
            )
            spec["nonResourceAttributes"] = {"verb": verb, "path": path}
        else:
            resource, _, subresource = self._one(RESOURCES).partition("/")
            attributes = {"verb": verb, "group": self._one(GROUPS), "resource": resource, "subresource": subresource}
            attributes |= {"namespace": self._one((*NAMESPACES, "")), "name": self._one((*NAMES, "", ""))}
            spec["resourceAttributes"] = {key: value for key, value in attributes.items() if value}
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}

    def _cluster_role(self, number: int) -> dict[str, Any]:
        role = cluster_role(self._name("cluster-role", number), *self._rules(paths=True))
        labels = {**LABEL, **PART, "tier": self._one(("low", "high")), "number": str(number % 4)}
        if self.random.random() < 0.4:
            selectors = [self._selector() for _ in range(self.random.randint(1, 2))]
            role["aggregationRule"] = {"clusterRoleSelectors": selectors}
            if self.random.random() < 0.5:
                role["rules"] = []
            else:
                # Two such roles that select each other keep whatever the controller saw first.
                del labels["part"]
        role["metadata"]["labels"] = labels
        return role

    def _selector(self) -> dict[str, Any]:
        selector: dict[str, Any] = self._one(
            (
                {"matchLabels": {**PART, "tier": "low"}},
                {"matchLabels": {**PART, "number": str(self.random.randint(0, 5))}},
                {"matchLabels": {"policy": "of-nobody"}},
                {"matchExpressions": [{"key": "number", "operator": "In", "values": ["1", "2"]}, _is_part()]},
                {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["low"]}, _is_part()]},
                {"matchExpressions": [{"key": "missing", "operator": "DoesNotExist"}, _is_part()]},
                {"matchExpressions": [{"key": "missing", "operator": "Exists"}]},
            )
        )
        return selector

    def _role(self, number: int) -> dict[str, Any]:
        namespace = ("team", "other")[number % 2]
        metadata = {"name": self._name("role", number), "namespace": namespace, "labels": LABEL}
        return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": self._rules(paths=False)}

    def _binding(self, number: int) -> dict[str, Any]:
        kind = self._one(("ClusterRole", "ClusterRole", "Role"))
        namespace = ("team", "other", "")[number % 3] if kind == "ClusterRole" else ("team", "other")[number % 2]
        highest = 15 if kind == "ClusterRole" else 5
        name = self._name("cluster-role" if kind == "ClusterRole" else "role", self.random.randint(0, highest))
        whole = binding(self._name("binding", number), name, {}, namespace=namespace)
        whole["metadata"]["labels"] = LABEL
        whole["roleRef"]["kind"] = kind
        whole["subjects"] = self._some(SUBJECTS)
        return whole

    def _rules(self, *, paths: bool) -> list[dict[str, Any]]:
        return [self._rule(paths=paths) for _ in range(self.random.randint(0, 3))]

    def _rule(self, *, paths: bool) -> dict[str, Any]:
        if paths and self.random.random() < 0.25:
            return {"verbs": self._some(VERBS), "nonResourceURLs": self._some(URLS)}
        rule = {"verbs": self._some(VERBS), "apiGroups": self._some(GROUPS), "resources": self._some(RESOURCES)}
        return rule | ({"resourceNames": self._some(NAMES)} if self.random.random() < 0.3 else {})

    def _name(self, kind: str, number: int) -> str:
        return f"random-{self.seed}-{kind}-{number}"

    def _one(self, choices: Any) -> Any:
        return self.random.choice(choices)

    def _some(self, choices: Any, *, least: int = 1) -> list[Any]:
        return self.random.sample(choices, self.random.randint(least, 3))


def _is_part() -> dict[str, Any]:
    return {"key": "part", "operator": "Exists"}


@pytest.fixture
def policy_cluster(cluster: RealCluster) -> Iterator[RealCluster]:
    """The cluster, without the policy afterwards."""
    yield cluster
    with cluster.http("admin", MASTERS) as http:
        for label in ("policy", "policy-marker"):
            for kind in ("clusterrolebindings", "clusterroles"):
                http.delete(f"/apis/{RBAC}/v1/{kind}", params={"labelSelector": label}).raise_for_status()
            for namespace, kind in product(("team", "other"), ("rolebindings", "roles")):
                path = f"/apis/{RBAC}/v1/namespaces/{namespace}/{kind}"
                http.delete(path, params={"labelSelector": label}).raise_for_status()


def webhook(folder: Path, cluster: RealCluster, manifests: list[dict[str, Any]]) -> ServedGateway:
    """A gateway that answers SubjectAccessReview by *manifests* and the cluster's own roles."""
    site = ClusterSite(folder, cluster)
    site.take_over_roles("!policy,!policy-marker")
    site.policy(manifests, folder="random")
    (folder / "caller-token").write_text(CALLER)
    chain = [{"name": "policy", "type": "rbac", "paths": ["policy", "random"]}]
    webhooks = {"subjectAccessReview": True, "callers": {"tokenFile": "caller-token"}}
    return site.serving(authorization={"chain": chain}, webhooks=webhooks)


def settle_aggregation(cluster: RealCluster) -> None:
    """Wait until the controller has looked at every role: the rules are the same over two markers, made in turn.

    A marker is an aggregating role whose rules the controller has to fill in.
    """
    before = None
    for number in range(20):
        name = f"marker-{uuid4()}"
        source = cluster_role(f"{name}-source", {"verbs": ["get"], "nonResourceURLs": [f"/{name}"]})
        source["metadata"]["labels"] = {"marker": name, **MARKER}
        marker = cluster_role(name, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"marker": name}}]})
        marker["metadata"]["labels"] = MARKER
        cluster.apply(source, marker)
        wait_until(partial(_has_rules, cluster, name), what=f"aggregation, marker {number}")
        jsonpath = "jsonpath={range .items[*]}{.metadata.name}{.rules}{end}"
        now = cluster.admin.output("get", "clusterroles", "-l", "policy", "-o", jsonpath)
        if now == before:
            return
        before = now
    raise AssertionError("the aggregated roles never came to rest")


def _has_rules(cluster: RealCluster, role: str) -> bool:
    return "nonResourceURLs" in cluster.admin.output("get", "clusterrole", role, "-o", "jsonpath={.rules}")


def ask(http: Any, path: str, question: dict[str, Any]) -> bool:
    answer = http.post(path, json=question)
    assert answer.status_code in (200, 201), answer.text
    allowed: bool = answer.json()["status"]["allowed"]
    return allowed


def disagreements(cluster: RealCluster, gateway: ServedGateway, questions: list[dict[str, Any]]) -> list[str]:
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    lines, allowed = [], 0
    with cluster.http("admin", MASTERS) as real, gateway.http(CALLER) as ours:
        for question in questions:
            expected = ask(real, path, question)
            allowed += expected
            if ask(ours, "/webhooks/subject-access-review", question) != expected:
                lines.append(f"Kubernetes says {expected}: {json.dumps(question['spec'])}")
    assert 0 < allowed < len(questions), "a policy that allows all or nothing tells nothing"
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_policy_means_the_same_to_the_gateway(seed: int, policy_cluster: RealCluster, tmp_path: Path) -> None:
    policy = Policy(seed)
    policy_cluster.apply(*policy.manifests)
    settle_aggregation(policy_cluster)
    with webhook(tmp_path, policy_cluster, policy.manifests) as gateway:
        different = disagreements(policy_cluster, gateway, [policy.question() for _ in range(QUESTIONS)])
    assert not different, "\n".join(different)


AGGREGATING = {
    "with rules of its own and no part that fits": (
        {"matchLabels": {"tier": "of-nobody"}},
        [{"verbs": ["get"], "nonResourceURLs": ["/own"]}],
    ),
    "with rules of its own and a part that fits": (
        {"matchLabels": {"tier": "part"}},
        [{"verbs": ["get"], "nonResourceURLs": ["/own"]}],
    ),
    "with no rules and a part that fits": ({"matchLabels": {"tier": "part"}}, []),
    "with no rules and no part that fits": ({"matchLabels": {"tier": "of-nobody"}}, []),
}


@pytest.mark.parametrize("which", AGGREGATING)
def test_an_aggregating_role_means_what_the_controller_makes_of_it(
    which: str, policy_cluster: RealCluster, tmp_path: Path
) -> None:
    selector, rules = AGGREGATING[which]
    part = cluster_role("part", {"verbs": ["get"], "nonResourceURLs": ["/part"]})
    part["metadata"]["labels"] = {**LABEL, "tier": "part", "number": "0"}
    whole = cluster_role("whole", *rules, aggregationRule={"clusterRoleSelectors": [selector]})
    whole["metadata"]["labels"] = {**LABEL, "number": "0"}
    bound = binding("whole", "whole", user("alice"))
    bound["metadata"]["labels"] = LABEL
    policy_cluster.apply(part, whole, bound)
    settle_aggregation(policy_cluster)
    questions = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "alice", "nonResourceAttributes": {"verb": "get", "path": path}},
        }
        for path in ("/own", "/part")
    ]
    with (
        webhook(tmp_path, policy_cluster, [part, whole, bound]) as gateway,
        policy_cluster.http("admin", MASTERS) as real,
        gateway.http(CALLER) as ours,
    ):
        review = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        expected = [ask(real, review, question) for question in questions]
        assert [ask(ours, "/webhooks/subject-access-review", question) for question in questions] == expected
