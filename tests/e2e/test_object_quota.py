"""Admission by object quota, with kubectl, real processes and a cluster: what is counted is what a list says."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary_gateway.cli import main
from tests.support.cluster import Cluster
from tests.support.cluster.http import Record
from tests.support.cluster.resources import Asked
from tests.support.gateway import ServedGateway, Site, role
from tests.support.replicas import ReplicaPair
from tests.support.waiting import until
from tests.support.walkthrough import ROOT

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
CPU = {"name": "requests.cpu", "path": "spec.containers[*].resources.requests.cpu", "limit": "2"}
TWO_CPUS = {"name": "cpus", "resources": ["pods"], "sums": [CPU]}
STORAGE = {"name": "requests.storage", "path": "spec.resources.requests.storage", "limit": "10Gi"}
THREE_PODS = {"name": "three", "resources": ["pods"], "count": 3}
ANYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
# Of the gateway that tests share: each has namespaces of its own.
SHARED_LIMITS: tuple[dict[str, Any], ...] = (
    {**THREE_PODS, "namespaces": ["counted", "counted-too", "dry-run"]},
    {**TWO_CPUS, "namespaces": ["sums", "defaults", "explained", "large"]},
    {"name": "claims", "resources": ["persistentvolumeclaims"], "sums": [STORAGE], "namespaces": ["sums"]},
    {"name": "one", "resources": ["pods"], "count": 1, "namespaces": ["finalizers", "explained", "explained-too"]},
    {"name": "mine", "resources": ["pods"], "per": ["user"], "count": 2, "namespaces": ["personal"]},
)
needs_kubectl = pytest.mark.needs("kubectl")


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@dataclass(frozen=True)
class Shared:
    gateway: ServedGateway
    cluster: Cluster
    alice: str
    bob: str

    def create(self, namespace: str, body: dict[str, Any], token: str = "") -> Any:
        return create(self.gateway, token or self.alice, body, pods_of(namespace))


@pytest.fixture(scope="module")
def shared(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """One gateway with `SHARED_LIMITS`."""
    site = Site(tmp_path_factory.mktemp("shared"), ca)
    site.users("alice", "bob", "root")
    site.policy(role("", ANYTHING, User="alice"), role("", ANYTHING, User="bob"), role("", OURS, User="root"))
    with Cluster(ca) as cluster:
        for namespace in sorted({namespace for limit in SHARED_LIMITS for namespace in limit["namespaces"]}):
            cluster.add_namespace(namespace)
        with serving(site, cluster, *SHARED_LIMITS) as gateway:
            yield Shared(gateway, cluster, gateway.login("alice").token, gateway.login("bob").token)


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob", "root")
    site.policy(
        role("team", ANYTHING, User="alice"),
        role("team", ANYTHING, User="bob"),
        role("", OURS, User="root"),
    )
    return site


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield cluster


def quota(*limits: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"name": "objects", "type": "object_quota", "limits": list(limits), **more}]


def serving(site: Site, cluster: Cluster, *limits: dict[str, Any], workers: int = 1, **more: Any) -> ServedGateway:
    return site.serving(
        listen={"workers": workers}, upstreams=[site.impersonating(cluster)], admission=quota(*limits), **more
    )


def pod(name: str, *, cpu: str = "") -> dict[str, Any]:
    resources = {"resources": {"requests": {"cpu": cpu}}} if cpu else {}
    containers = [{"name": "main", "image": "nginx", **resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}


def create(gateway: ServedGateway, token: str, body: dict[str, Any], path: str = PODS) -> Any:
    with gateway.http(token) as client:
        return client.post(path, json=body)


@needs_kubectl
def test_a_namespace_has_no_more_objects_than_its_quota(shared: Shared) -> None:
    shared.cluster.add_pod("counted", "there-before")
    kubectl = shared.gateway.kubectl(shared.alice, namespace="counted")
    for name in ("one", "two"):
        kubectl.output("run", name, "--image=nginx")
    refused = kubectl("run", "three", "--image=nginx")
    assert refused.returncode == 1
    numbers = "requested: count/pods=1, used: count/pods=3, limited: count/pods=3"
    assert refused.stderr.strip().endswith(f"pods is forbidden: exceeded quota: three, {numbers}")
    kubectl.output("-n", "counted-too", "run", "three", "--image=nginx")
    kubectl.output("delete", "pod", "one", "--wait=false")
    kubectl.output("run", "three", "--image=nginx")
    assert kubectl("run", "four", "--image=nginx").returncode == 1


def test_the_limits_of_the_page_say_what_the_page_says(site: Site, cluster: Cluster) -> None:
    """docs/how-to/limit-what-teams-create.md."""
    page = (ROOT / "docs/how-to/limit-what-teams-create.md").read_text()
    first, for_whom, _ = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    limits = [*yaml.safe_load(first)["admission"][0]["limits"], *yaml.safe_load(for_whom)]
    with serving(site, cluster, *limits) as gateway:
        token = gateway.login("alice").token
        assert create(gateway, token, pod("large", cpu="19")).status_code == 201
        refused = create(gateway, token, pod("web", cpu="2"))
        assert refused.status_code == 403
        assert refused.json()["message"] in page


def creations(gateways: Sequence[ServedGateway], token: str, number: int) -> Counter[int]:
    """So many at once, each on a connection of its own."""
    with ThreadPoolExecutor(number) as threads:
        jobs = [
            threads.submit(create, gateways[each % len(gateways)], token, pod(f"pod-{each}", cpu="100m"))
            for each in range(number)
        ]
        return Counter(job.result().status_code for job in jobs)


def names(gateway: ServedGateway, token: str) -> list[str]:
    return [each["metadata"]["name"] for each in gateway.get(PODS, token).json()["items"]]


def test_workers_together_let_through_exactly_as_many_as_there_is_room_for(site: Site, cluster: Cluster) -> None:
    """S71."""
    limit = {"name": "seven", "resources": ["pods"], "count": 7}
    with serving(site, cluster, limit, workers=2) as gateway:
        until(lambda: gateway.probe("/readyz").status_code == 200)
        token = gateway.login("alice").token
        assert creations([gateway], token, 24) == {201: 7, 403: 17}
        assert len(names(gateway, token)) == 7


def test_replicas_together_let_through_exactly_as_many_as_there_is_room_for(replicas: ReplicaPair) -> None:
    """S71: on PostgreSQL and on Redis; a sum, and a restart of one of them."""
    with replicas.serving(admission=quota({**TWO_CPUS, "count": 9})) as gateways:
        one, other = gateways
        token = one.login("alice").token
        assert creations(gateways, token, 16) == {201: 9, 403: 7}
        assert len(names(one, token)) == 9
        other.stop()
        other.start()
        until(lambda: other.probe("/readyz").status_code == 200)
        assert create(other, token, pod("later")).status_code == 403
        with other.http(token) as client:
            assert client.delete(f"{PODS}/{names(other, token)[0]}").status_code == 200
        # A place that one replica has freed is there for the other.
        until(lambda: create(one, token, pod("next", cpu="1100m")).status_code == 201)
        assert create(other, token, pod("last", cpu="200m")).status_code == 403


@needs_kubectl
def test_sums_of_fields_are_bounded_for_kubectl(shared: Shared) -> None:
    kubectl = shared.gateway.kubectl(shared.alice, namespace="sums")
    kubectl.output("apply", "-f", "-", stdin=json.dumps(pod("one", cpu="1500m")))
    refused = kubectl("apply", "-f", "-", stdin=json.dumps(pod("two", cpu="600m")))
    assert "requested: requests.cpu=600m, used: requests.cpu=1500m, limited: requests.cpu=2" in refused.stderr
    kubectl.output("apply", "--server-side", "-f", "-", stdin=json.dumps(pod("two", cpu="500m")))
    assert kubectl("apply", "-f", "-", stdin=json.dumps(pod("one", cpu="1600m"))).returncode == 1
    # The very bytes of this head came before, and its headers are not parsed again.
    kubectl.output("apply", "-f", "-", stdin=json.dumps(pod("one", cpu="1")))
    kubectl.output("apply", "-f", "-", stdin=json.dumps(pod("three", cpu="500m")))
    # What the API server says, it says: a name that is taken is no matter of quota.
    taken = kubectl("create", "-f", "-", stdin=json.dumps(pod("three", cpu="1")))
    assert "AlreadyExists" in taken.stderr or "already exists" in taken.stderr
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"resources": {"requests": {"storage": "6Gi"}}},
    }
    kubectl.output("create", "-f", "-", stdin=json.dumps(claim))
    claim["metadata"] = {"name": "more"}
    refused = kubectl("create", "-f", "-", stdin=json.dumps(claim))
    assert (
        "requested: requests.storage=6Gi, used: requests.storage=6Gi, limited: requests.storage=10Gi" in refused.stderr
    )


def test_defaults_that_the_api_server_adds_are_counted(shared: Shared) -> None:
    def limit_range(asked: Asked, new: dict[str, Any]) -> dict[str, Any]:
        if (asked.namespace, asked.resource) == ("defaults", "pods"):
            for container in new["spec"]["containers"]:
                container.setdefault("resources", {"requests": {"cpu": "1"}})
        return new

    shared.cluster.admit = limit_range
    assert [shared.create("defaults", pod(name)).status_code for name in "abc"] == [201, 201, 403]


def test_a_dry_run_of_a_client_does_not_count(shared: Shared) -> None:
    for number in range(5):
        tried = create(shared.gateway, shared.alice, pod(f"try-{number}"), f"{pods_of('dry-run')}?dryRun=All")
        assert tried.status_code == 201
    assert [shared.create("dry-run", pod(name)).status_code for name in "abcd"] == [201, 201, 201, 403]


def test_an_object_with_finalizers_counts_until_it_is_gone(shared: Shared) -> None:
    held = pod("held")
    held["metadata"]["finalizers"] = ["example.com/later"]
    assert shared.create("finalizers", held).status_code == 201
    with shared.gateway.http(shared.alice) as client:
        assert client.delete(f"{pods_of('finalizers')}/held").status_code == 200
    assert shared.create("finalizers", pod("next")).status_code == 403
    shared.cluster.remove("pods", "finalizers", "held")
    until(lambda: shared.create("finalizers", pod("next")).status_code == 201)


@pytest.mark.slow
def test_a_killed_gateway_has_counted_right_when_it_is_back(site: Site, cluster: Cluster) -> None:
    """S71: killed after the reservation, before the answer."""

    def is_creation(record: Record) -> bool:
        return record.method == "POST" and record.path == PODS

    with serving(site, cluster, {**THREE_PODS, "count": 2}) as gateway:
        token = gateway.login("alice").token
        assert create(gateway, token, pod("one")).status_code == 201
        assert cluster.wait_for(is_creation)
        gateway.kill()
        cluster.add_pod("team", "two")
        gateway.start()
        assert create(gateway, token, pod("three")).status_code == 403
        cluster.remove("pods", "team", "two")
        until(lambda: create(gateway, token, pod("three")).status_code == 201)
        assert create(gateway, token, pod("four")).status_code == 403


def test_without_the_right_to_list_nothing_is_let_through(site: Site, cluster: Cluster) -> None:
    cluster.refuse = lambda user, asked: "no" if user.username == "gateway" and asked.verb == "list" else None
    with serving(site, cluster, THREE_PODS) as gateway:
        token = gateway.login("alice").token
        answer = create(gateway, token, pod("one"))
        assert answer.status_code == 503
        assert answer.json()["message"] == "the quota of this request could not be counted; try again later"
        assert "a list of pods was answered 403" in gateway.line("a request could not be counted")
        # What no limit covers is not held up.
        assert gateway.get(PODS, token).status_code == 200
        cluster.refuse = None
        assert create(gateway, token, pod("one")).status_code == 201


def test_a_body_that_is_too_large_to_be_counted_is_refused(shared: Shared) -> None:
    large = pod("large")
    large["metadata"]["annotations"] = {"x": "y" * (3 * 1024 * 1024)}
    assert shared.create("large", large).status_code == 413
    posted = [record for record in shared.cluster.requests if record.method == "POST"]
    assert pods_of("large") not in {record.path for record in posted}


def test_each_user_has_a_quota_of_their_own(shared: Shared) -> None:
    generated = pod("x")
    generated["metadata"] = {"generateName": "alice-"}
    assert [shared.create("personal", generated).status_code for _ in range(3)] == [201, 201, 403]
    assert shared.create("personal", pod("bob-1"), shared.bob).status_code == 201


def test_a_refusal_is_explained_and_in_the_audit_log_and_usage_is_shown(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, site = shared.gateway, shared.gateway.site
    shared.cluster.add_pod("explained-too", "there")
    assert shared.create("explained", pod("one", cpu="500m")).status_code == 201
    refused = shared.create("explained", pod("two"))
    audit_id = refused.headers["audit-id"]
    reason = "exceeded quota: one, requested: count/pods=1, used: count/pods=1, limited: count/pods=1"
    (site.folder / "root.token").write_text(gateway.login("root").token)
    options = ["--server", gateway.url(), "--token-file", str(site.folder / "root.token")]
    options += ["--ca", str(site.folder / "ca.pem")]
    assert main(["explain", audit_id, *options]) == 0
    assert reason in capsys.readouterr().out
    until(lambda: any(event["auditID"] == audit_id for event in site.events()))
    (event,) = [event for event in site.events() if event["auditID"] == audit_id]
    assert event["responseStatus"]["message"] == reason

    def usage() -> list[list[str]]:
        assert main(["quota", *options]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    # It is counted anew when it changed elsewhere.
    until(lambda: ["one", "cluster", "namespace", "explained-too", "count/pods", "1", "1"] in usage())
    table = usage()
    assert ["one", "cluster", "namespace", "explained", "count/pods", "1", "1"] in table
    assert ["cpus", "cluster", "namespace", "explained", "requests.cpu", "500m", "2"] in table
    until(lambda: gateway.metric("ostiary_gateway_object_quota_fullest_ratio", limit="one") == 1)


@needs_kubectl
@pytest.mark.slow
def test_each_person_has_a_quota_of_their_own_also_after_a_restart(site: Site, cluster: Cluster) -> None:
    """S71: the token store remembers who made what."""
    limit = {"name": "mine", "resources": ["pods"], "per": ["user"], "count": 2}
    with serving(site, cluster, limit, workers=2) as gateway:
        alice, bob = (gateway.login(user).token for user in ("alice", "bob"))
        generated = pod("x")
        generated["metadata"] = {"generateName": "alice-"}
        assert [create(gateway, alice, generated).status_code for _ in range(3)] == [201, 201, 403]
        assert create(gateway, bob, pod("bob-1")).status_code == 201
        gateway.kill()
        gateway.start()
        assert create(gateway, alice, pod("alice-3")).status_code == 403
        kubectl = gateway.kubectl(bob)
        kubectl.output("apply", "--server-side", "-f", "-", stdin=json.dumps(pod("bob-2")))
        assert "exceeded quota: mine" in kubectl("run", "bob-3", "--image=nginx").stderr
        # Whoever deletes it, it is free for who made it.
        kubectl.output("delete", "pod", next(name for name in names(gateway, alice) if name.startswith("alice-")))
        until(lambda: create(gateway, alice, pod("alice-3")).status_code == 201)
