"""Makes the recordings of this folder anew: ``python -m bench.mix.record``, after ``make interop`` built Kubernetes.

kubectl and kube-controller-manager are the real ones, at a real API server. There are no nodes, so that pods stay
pending and a kubelet asks nothing. The dashboard is a script: it asks what the overview, the lists and the details of
Headlamp ask, as a browser asks it, and what k9s asks when it shows tables and refreshes them.
"""

from __future__ import annotations

import ssl
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from bench.mix.recording import FOLDER, Recorded, write
from bench.mix.relay import Relay
from tests.interop.support.cluster import RealCluster, token_for
from tests.interop.support.process import Server
from tests.interop.support.programs import Kubernetes, versions
from tests.support.ports import free_port

NAMESPACE = "team"
# How long the controllers run in peace, besides what kubectl makes them do.
PEACE_SECONDS = 20
REFRESHES = 6
BROWSER = {
    "User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate, br",
    "Accept-Language": "en-GB,en;q=0.9",
    "Sec-Fetch-Dest": "empty",
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "same-origin",
}
TABLE = {
    "User-Agent": "k9s/v0.50.9 (linux/amd64) kubernetes/v1.33.3",
    "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    "Accept-Encoding": "gzip",
}


class RecordedCluster(RealCluster):
    """Whose controllers and users come through a relay."""

    relay: Relay
    relay_url: str

    @contextmanager
    def _controller_manager(self) -> Iterator[None]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        self.relay = Relay(server, urlsplit(self.url).port or 0, self.trust())
        with self.relay.serving() as self.relay_url:
            self.admin.output("create", "serviceaccount", "all", "-n", "kube-system")
            self.admin.output(
                *("create", "clusterrolebinding", "all", "--clusterrole=cluster-admin"),
                "--serviceaccount=kube-system:all",
            )
            with Server(self._command(), log=self.folder / "controllers.log") as manager:
                manager.wait_until(lambda: bool(self.admin("get", "serviceaccount", "default", "-n", "default").stdout))
                yield

    def token(self) -> str:
        return token_for(self.admin, "kube-system", "all")

    def _command(self) -> list[str | Path]:
        return [
            self.kubernetes.program("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig({'token': self.token()}, server=self.relay_url)}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.folder}",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            f"--root-ca-file={self.folder / 'ca.pem'}",
        ]


def main() -> int:
    kubernetes = next((version for version in versions() if _is_built(version)), None)
    if kubernetes is None:
        print("record: there is no kube-apiserver; `make interop` builds it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name, RecordedCluster(Path(name), kubernetes) as cluster:
        cluster.add_namespace(NAMESPACE)
        _work_with_kubectl(cluster)
        _show_dashboard(cluster)
        time.sleep(PEACE_SECONDS)
        requests = list(cluster.relay.requests)
    for client in ("kubectl", "kube-controller-manager", "dashboard"):
        recorded = [request for request in requests if request.client == client]
        write(FOLDER / f"{client}.jsonl", _without_repetitions(recorded))
        print(f"record: {client}: {len(recorded)} requests, {sum(each.watches for each in recorded)} of them watches")
    return 0


def _is_built(version: Kubernetes) -> bool:
    return version.has_servers and version.program("kube-apiserver").exists()


def _without_repetitions(requests: list[Recorded], most: int = 12) -> list[Recorded]:
    """At most so many of the same: who polls would fill the file, and the replay repeats everything anyway."""
    seen: dict[str, int] = {}
    kept = []
    for request in requests:
        key = f"{request.method} {request.target}"
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= most:
            kept.append(request)
    return kept


def _work_with_kubectl(cluster: RecordedCluster) -> None:
    """What somebody does with a deployment on a usual day."""
    kubeconfig = cluster.kubeconfig({"token": cluster.token()}, server=cluster.relay_url)
    kubectl = type(cluster.admin)(cluster.kubernetes.program("kubectl"), kubeconfig)
    manifest = yaml.safe_dump_all(_manifests())
    commands: list[tuple[tuple[str, ...], str | None]] = [
        (("version",), None),
        (("get", "namespaces"), None),
        (("api-resources",), None),
        (("auth", "can-i", "create", "deployments"), None),
        (("auth", "can-i", "--list"), None),
        (("diff", "-f", "-"), manifest),
        (("apply", "-f", "-"), manifest),
        (("get", "deployments,services,configmaps"), None),
        (("rollout", "status", "deployment/web", "--timeout=2s"), None),
        (("get", "pods", "-o", "wide"), None),
        (("get", "pods", "-o", "json"), None),
        (("get", "pods", "-A", "--field-selector=status.phase=Pending"), None),
        (("describe", "deployment", "web"), None),
        (("describe", "pods", "-l", "app=web"), None),
        (("get", "events", "--sort-by=.lastTimestamp"), None),
        (("scale", "deployment/web", "--replicas=5"), None),
        (("get", "pods", "-l", "app=web"), None),
        (("annotate", "deployment/web", "owner=team"), None),
        (("set", "image", "deployment/web", "web=nginx:1.27"), None),
        (("rollout", "history", "deployment/web"), None),
        (("rollout", "undo", "deployment/web"), None),
        (("patch", "configmap", "web", "-p", '{"data":{"level":"debug"}}'), None),
        (("apply", "--server-side", "--force-conflicts", "-f", "-"), manifest),
        (("explain", "deployment.spec"), None),
        (("get", "pods", "--watch", "--request-timeout=1s"), None),
        (("get", "all"), None),
        (("get", "nodes"), None),
        (("get", "clusterroles"), None),
        (("delete", "pods", "-l", "app=web", "--wait=false"), None),
        (("get", "pods"), None),
        (("delete", "-f", "-", "--wait=false"), manifest),
    ]
    for arguments, stdin in commands:
        kubectl(*arguments, stdin=stdin)
    kubectl("apply", "-f", "-", stdin=manifest)


def _manifests() -> list[dict[str, object]]:
    labels = {"app": "web"}
    meta = {"name": "web", "namespace": NAMESPACE, "labels": labels}
    container = {"name": "web", "image": "nginx:1.26", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"level": "info"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec},
    ]


def _show_dashboard(cluster: RecordedCluster) -> None:
    token = {"Authorization": f"Bearer {cluster.token()}"}
    with httpx.Client(base_url=cluster.relay_url, verify=cluster.trust(), trust_env=False, timeout=30) as http:
        _browse(http, BROWSER | token)
        _refresh_tables(http, TABLE | token)


def _browse(http: httpx.Client, headers: dict[str, str]) -> None:
    """As Headlamp: the overview, the lists, and the details of each pod."""
    http.get("/version", headers=headers)
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": NAMESPACE},
    }
    http.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=review, headers=headers)
    overview = ("/api/v1/namespaces", "/api/v1/nodes", "/api/v1/pods", "/api/v1/events?limit=2000")
    metrics = ("/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/pods")
    kinds = ("deployments", "replicasets", "statefulsets", "daemonsets")
    for target in (*overview, *metrics, *(f"/apis/apps/v1/{kind}" for kind in kinds)):
        http.get(target, headers=headers)
    home = f"/api/v1/namespaces/{NAMESPACE}"
    for kind in ("services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"):
        http.get(f"{home}/{kind}?limit=100", headers=headers)
    for pod in http.get(f"{home}/pods", headers=headers).json()["items"]:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        http.get(f"{home}/pods/{name}", headers=headers)
        http.get(f"{home}/events?fieldSelector=involvedObject.uid%3D{uid}&limit=100", headers=headers)
        for verb in ("update", "delete"):
            _may(http, headers, verb, name)


def _may(http: httpx.Client, headers: dict[str, str], verb: str, name: str) -> None:
    asked = {"namespace": NAMESPACE, "resource": "pods", "verb": verb, "name": name}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = {**review, "spec": {"resourceAttributes": asked}}
    http.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json=body, headers=headers)


def _refresh_tables(http: httpx.Client, headers: dict[str, str]) -> None:
    """As k9s: a table is fetched again and again, from what its version was before."""
    version = "0"
    for _ in range(REFRESHES):
        for kind in ("pods", "services", "configmaps"):
            target = (
                f"/api/v1/namespaces/{NAMESPACE}/{kind}?resourceVersion={version}&resourceVersionMatch=NotOlderThan"
            )
            answer = http.get(target if version != "0" else target.partition("&")[0], headers=headers)
            version = answer.json()["metadata"]["resourceVersion"]


if __name__ == "__main__":
    sys.exit(main())
