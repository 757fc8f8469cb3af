"""What people do with kubectl all day, at the real API server and through the gateway: the same in every word.

Each scenario is a list of commands that leaves nothing behind. It is run once with a client certificate directly at
the API server, and then through the gateway, with each of the three versions of kubectl.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import yaml

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import REQUEST_HEADER, Front
from tests.interop.support.kubectl import Outcome, RealKubectl, Step, assert_same, step
from tests.interop.support.people import GROUP_OF, ROBOT
from tests.interop.support.programs import Kubernetes, versions


def document(kind: str, name: str, *, api: str = "v1", **fields: object) -> str:
    return json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields})


SETTINGS = document("ConfigMap", "settings", data={"colour": "green", "size": "1"})
BLUE = document("ConfigMap", "settings", data={"colour": "blue"})
POD_TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "web", "image": "example.test/web:1"}]},
}
# No replicas: what a controller writes at some time of its own could not be compared.
WEB = document(
    "Deployment",
    "web",
    api="apps/v1",
    spec={"replicas": 0, "selector": {"matchLabels": {"app": "web"}}, "template": POD_TEMPLATE},
)
SEVERAL = "---\n".join(
    yaml.safe_dump(json.loads(document("ConfigMap", f"many-{n}", data={"n": str(n)}))) for n in "123"
)
LISTED = "custom-columns=NAME:.metadata.name,DATA:.data"

SCENARIOS: dict[str, Sequence[Step]] = {
    "create, read and delete": [
        step("create", "configmap", "settings", "--from-literal=colour=green"),
        step("create", "configmap", "settings", "--from-literal=colour=green"),
        step("get", "configmap", "settings"),
        step("get", "configmap", "settings", "-o", "yaml"),
        step("get", "configmap", "settings", "-o", "json", "--show-managed-fields"),
        step("get", "configmap", "settings", "-o", "jsonpath={.data.colour}"),
        step("get", "configmap", "settings", "-o", "wide", "--show-labels"),
        step("get", "configmaps", "--field-selector", "metadata.name=settings", "-o", LISTED),
        step("describe", "configmap", "settings"),
        step("get", "configmap", "settings", "missing"),
        step("get", "configmap", "missing", "--ignore-not-found"),
        step("delete", "configmap", "settings"),
        step("delete", "configmap", "settings"),
        step("delete", "configmap", "settings", "--ignore-not-found"),
        step("wait", "--for=delete", "configmap/settings", "--timeout=20s"),
    ],
    "apply and change": [
        step("apply", "-f", "-", stdin=SETTINGS),
        step("apply", "-f", "-", stdin=SETTINGS),
        step("diff", "-f", "-", stdin=SETTINGS),
        step("apply", "-f", "-", stdin=BLUE),
        step("apply", "--server-side", "-f", "-", stdin=SETTINGS),
        step("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=SETTINGS),
        step("apply", "--dry-run=server", "-f", "-", stdin=BLUE),
        step("get", "configmap", "settings", "-o", "yaml"),
        step("replace", "-f", "-", stdin=BLUE),
        step("patch", "configmap", "settings", "-p", '{"data":{"colour":"red"}}'),
        step("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"size":null,"shape":"round"}}'),
        step("patch", "configmap", "settings", "--type=json", "-p", '[{"op":"remove","path":"/data/shape"}]'),
        step("patch", "configmap", "settings", "--type=json", "-p", '[{"op":"remove","path":"/data/nothing"}]'),
        step("edit", "configmap", "settings"),
        step("label", "configmap", "settings", "tier=back"),
        step("label", "configmap", "settings", "tier=front"),
        step("label", "configmap", "settings", "tier=front", "--overwrite"),
        step("annotate", "configmap", "settings", "note=seen"),
        step("get", "configmaps", "-l", "tier=front", "-o", "name"),
        step("get", "configmap", "settings", "-o", "jsonpath={.data} {.metadata.labels} {.metadata.annotations.note}"),
        step("delete", "-f", "-", stdin=SETTINGS),
    ],
    "many at once": [
        step("create", "-f", "-", stdin=SEVERAL),
        step("get", "configmaps", "-o", LISTED),
        step("get", "configmaps", "--sort-by=.metadata.name", "--chunk-size=2", "-o", "name"),
        step("get", "configmaps,serviceaccounts", "-o", "name"),
        step("label", "configmaps", "--all", "of=many"),
        step("delete", "configmaps", "-l", "of=many", "--field-selector", "metadata.name!=kube-root-ca.crt"),
        step("label", "configmaps", "--all", "of-"),
    ],
    "a deployment": [
        step("apply", "-f", "-", stdin=WEB),
        step("get", "deployment", "web", "-o", "jsonpath={.spec.replicas} {.spec.template.spec.containers[*].image}"),
        step("set", "image", "deployment/web", "web=example.test/web:2"),
        step("scale", "deployment/web", "--replicas=0"),
        step("get", "--raw", "/apis/apps/v1/namespaces/team/deployments/web/scale?x=1"),
        step("expose", "deployment", "web", "--port=80", "--dry-run=server", "-o", "name"),
        step("wait", "--for=jsonpath={.spec.replicas}=0", "deployment/web", "--timeout=20s"),
        step("delete", "deployment", "web", "--cascade=foreground", "--wait=true", "--timeout=20s"),
        step("get", "deployment", "web"),
    ],
    "a pod that waits for a node": [
        step("run", "web", "--image=example.test/web:1"),
        step("get", "pod", "web", "-o", "jsonpath={.status.phase}"),
        step("logs", "web"),
        step("set", "env", "pod/web", "--list"),
        step("delete", "pod", "web", "--grace-period=0", "--force"),
    ],
    "namespaces": [
        step("create", "namespace", "daily"),
        step("get", "namespace", "daily", "-o", "jsonpath={.metadata.name}"),
        step("get", "configmaps", "-n", "daily"),
        step("delete", "namespace", "daily", "--wait=false"),
        step("wait", "--for=delete", "namespace/daily", "--timeout=25s"),
    ],
    "service accounts": [
        step("create", "serviceaccount", "builder"),
        step("create", "token", "builder", "--duration=10m"),
        step("create", "token", "missing"),
        step("get", "serviceaccount", "builder", "-o", "name"),
        step("delete", "serviceaccount", "builder"),
    ],
    "what there is": [
        step("version"),
        step("api-versions"),
        step("api-resources", "--sort-by=name"),
        step("api-resources", "--api-group=apps", "-o", "wide"),
        step("explain", "deployment.spec.strategy"),
        step("explain", "configmap", "--recursive"),
        step("explain", "nonsense"),
        step("get", "nonsense"),
        step("cluster-info"),
        step("get", "--raw", "/healthz"),
        step("get", "--raw", "/version"),
        step("get", "--raw", "/api/v1/namespaces/team/configmaps?limit=0&fieldSelector=metadata.name%3Dnothing"),
        step("get", "--raw", "/no/such/path"),
    ],
    "who am I, and what may I do": [
        step("auth", "whoami"),
        step("auth", "whoami", "-o", "jsonpath={.kind} {.status.userInfo.username} {.status.userInfo.groups}"),
        step("auth", "can-i", "get", "pods"),
        step("auth", "can-i", "create", "serviceaccounts/token"),
        step("auth", "can-i", "get", "pods", "-n", "other"),
        step("auth", "can-i", "get", "secrets", "-A"),
        step("auth", "can-i", "get", "/healthz"),
        step("auth", "can-i", "get", "/metrics"),
        step("auth", "can-i", "delete", "nodes"),
        step("auth", "can-i", "*", "*"),
        step("auth", "can-i", "list", "configmaps", "--subresource=nothing"),
        step("auth", "can-i", "--list", unordered=True),
        step("auth", "can-i", "--list", "-n", "other", unordered=True),
    ],
    "in place of somebody else": [
        step("auth", "whoami", "--as=bob", "--as-group=readers"),
        step("get", "configmaps", "-o", "name", "--as=bob", "--as-group=readers"),
        step("delete", "configmap", "kube-root-ca.crt", "--as=bob", "--as-group=readers"),
        step("auth", "can-i", "--list", "--as=bob", "--as-group=readers", unordered=True),
        step("auth", "whoami", "--as=carol"),
        step("get", "configmaps", "--as=carol"),
        step("get", "configmaps", "--as=bob", "--as-group=operators"),
        step("get", "configmaps", "--as=bob", "--as-uid=7"),
    ],
    "refusals": [
        step("get", "secrets", "-n", "other"),
        step("get", "secret", "hidden", "-n", "other"),
        step("get", "configmaps", "-A"),
        step("get", "nodes"),
        step("get", "configmap", "hidden", "-n", "other", "--ignore-not-found"),
        step("create", "configmap", "x", "-n", "other"),
        step("apply", "-n", "other", "-f", "-", stdin=SETTINGS),
        step("patch", "configmap", "hidden", "-n", "other", "-p", "{}"),
        step("label", "configmap", "hidden", "-n", "other", "a=b"),
        step("create", "token", "default", "-n", "other"),
        step("get", "--raw", "/metrics"),
        step("get", "--raw", "/logs/"),
        step("create", "clusterrole", "greedy", "--verb=*", "--resource=secrets"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module", params=versions(), ids=lambda version: f"kubectl-{version}")
def kubectl_version(request: pytest.FixtureRequest) -> Kubernetes:
    version: Kubernetes = request.param
    return version


@pytest.fixture(scope="module")
def direct(cluster: RealCluster, kubectl_version: Kubernetes) -> DirectRuns:
    return DirectRuns(cluster, kubectl_version)


class DirectRuns:
    """What the scenarios come to without a gateway; each is run once."""

    def __init__(self, cluster: RealCluster, version: Kubernetes) -> None:
        newest = cluster.kubectl("alice", GROUP_OF["alice"])
        self.kubectl = RealKubectl(version.program("kubectl"), newest.kubeconfig, **EDITOR)
        self._outcomes: dict[str, list[Outcome]] = {}

    def outcomes(self, scenario: str) -> list[Outcome]:
        if scenario not in self._outcomes:
            self._outcomes[scenario] = self.kubectl.outcomes(SCENARIOS[scenario])
        return self._outcomes[scenario]


EDITOR = {"KUBE_EDITOR": "sed -i s/red/yellow/"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kubectl_does_the_same_through_the_gateway(
    scenario: str, front: Front, direct: DirectRuns, kubectl_version: Kubernetes
) -> None:
    kubectl = front.kubectl("alice", program=kubectl_version.program("kubectl"), **EDITOR)
    assert_same(direct.outcomes(scenario), kubectl.outcomes(SCENARIOS[scenario]))


def test_the_scenarios_do_what_they_are_named_after(direct: DirectRuns) -> None:
    """A comparison of two failures would prove little: directly at the API server nearly every command succeeds."""
    for scenario in ("create, read and delete", "apply and change", "many at once", "a deployment", "what there is"):
        outcomes = direct.outcomes(scenario)
        assert sum(outcome.code == 0 for outcome in outcomes) > len(outcomes) / 2, outcomes
    assert all(outcome.code for outcome in direct.outcomes("refusals"))


def test_a_watch_shows_each_change_as_it_happens(
    front: Front, kubectl_version: Kubernetes, cluster: RealCluster
) -> None:
    kubectl = front.kubectl("alice", program=kubectl_version.program("kubectl"))
    name = f"watched-{kubectl_version.number}-{front.impersonates}".lower()
    watch = ("get", "configmaps", "--watch", "-o", "name", "--field-selector")
    cluster.admin.output("create", "configmap", name, "-n", "team")
    with kubectl.running(*watch, f"metadata.name={name}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"configmap/{name}\n"
        cluster.admin.output("label", "configmap", name, "-n", "team", "seen=yes")
        assert process.stdout.readline() == f"configmap/{name}\n"
        cluster.admin.output("delete", "configmap", name, "-n", "team")
        assert process.stdout.readline() == f"configmap/{name}\n"


def test_a_service_account_can_be_stood_in_for(
    fronts: dict[str, Front], direct: DirectRuns, kubectl_version: Kubernetes
) -> None:
    """By X-Remote-*. An impersonating gateway needs a role that covers it: `test_impersonation_role`."""
    front = fronts[REQUEST_HEADER]
    steps = [
        step("auth", "whoami", f"--as={ROBOT}"),
        step("get", "configmaps", "-o", "name", f"--as={ROBOT}"),
        step("delete", "configmap", "kube-root-ca.crt", f"--as={ROBOT}"),
    ]
    kubectl = front.kubectl("alice", program=kubectl_version.program("kubectl"))
    assert_same(direct.kubectl.outcomes(steps), kubectl.outcomes(steps))
