"""The API server refuses the gateway's own credential: an outage for the user, and never their 401."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.support import people
from tests.interop.support.cluster import RealCluster, token_for
from tests.interop.support.front import POLICY, ClusterSite, Front
from tests.interop.support.people import binding, cluster_role, rule, service_account
from tests.interop.support.process import wait_until
from tests.support.gateway import ServedGateway
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

ACCOUNT = people.account("short-lived", "ostiary")


@pytest.fixture
def account(cluster: RealCluster) -> Iterator[str]:
    """The token of a service account that may impersonate, and that a test may delete."""
    verbs = "impersonate"
    cluster.apply(
        ACCOUNT,
        cluster_role(
            "short-lived", rule("users groups", verbs), rule("uids userextras/*", verbs, group="authentication.k8s.io")
        ),
        binding("short-lived", "short-lived", service_account("short-lived", "ostiary")),
    )
    yield token_for(cluster.admin, "ostiary", "short-lived")
    cluster.admin.output("delete", "serviceaccount", "short-lived", "-n", "ostiary", "--ignore-not-found")


@pytest.fixture
def front(cluster: RealCluster, account: str, tmp_path: Path) -> Iterator[Front]:
    site = ClusterSite(tmp_path, cluster)
    site.token(account)
    upstream = site.by_impersonation(health="/readyz")
    with site.serving(**site.sections(upstreams=[upstream], authorization=POLICY)) as gateway:
        yield Front(site, gateway, "localhost")


def withdraw(cluster: RealCluster, token: str) -> None:
    """The account is gone; the API server remembers for some seconds that its token was good."""
    cluster.admin.output("delete", "serviceaccount", "short-lived", "-n", "ostiary")
    kubectl = cluster.with_token(token)
    wait_until(lambda: "Unauthorized" in kubectl("auth", "whoami").stderr, what="the end of the token")


def is_ready(gateway: ServedGateway) -> bool:
    return gateway.probe("/readyz").status_code == 200


def test_the_user_is_told_of_an_outage_and_not_to_sign_in(front: Front, cluster: RealCluster, account: str) -> None:
    kubectl = front.kubectl("alice")
    assert kubectl.output("get", "configmap", "kube-root-ca.crt", "-o", "name")
    assert is_ready(front.gateway)
    withdraw(cluster, account)

    with front.http("alice") as http:
        answer = http.get("/api/v1/namespaces/team/configmaps")
    assert answer.status_code in (502, 503), answer.text
    status = answer.json()
    assert (status["kind"], status["code"]) == ("Status", answer.status_code)
    assert "www-authenticate" not in answer.headers
    done = kubectl("get", "configmaps")
    assert done.returncode == 1
    assert "logged in" not in done.stderr
    assert "Unauthorized" not in done.stderr

    wait_until(lambda: not is_ready(front.gateway), what="/readyz", seconds=30)
    assert "401" in front.gateway.stderr or "credential" in front.gateway.stderr
    assert account not in front.gateway.stderr


def test_a_new_token_in_the_file_is_used_at_once(front: Front, cluster: RealCluster, account: str) -> None:
    kubectl = front.kubectl("alice")
    assert kubectl.output("get", "configmap", "kube-root-ca.crt", "-o", "name")
    withdraw(cluster, account)
    assert kubectl("get", "configmaps").returncode == 1
    cluster.apply(ACCOUNT)
    front.site.token(token_for(cluster.admin, "ostiary", "short-lived"))
    assert kubectl.output("get", "configmap", "kube-root-ca.crt", "-o", "name")
    wait_until(lambda: is_ready(front.gateway), what="/readyz", seconds=30)


def test_a_401_about_the_gateway_does_not_run_the_users_plugin_again(
    front: Front, cluster: RealCluster, account: str, tmp_path: Path
) -> None:
    """kubectl runs an exec plugin again after a 401; after an outage it does not."""
    plugin = PluginScript(tmp_path / "plugin").answer(token=front.token("alice"))
    kubectl = front.kubectl("alice")
    authority = {"certificate-authority": str(front.site.folder / "ca.pem")}
    write_kubeconfig(
        kubectl.kubeconfig, server=front.gateway.url(), user=exec_user(plugin.path), cluster=authority, namespace="team"
    )
    assert kubectl.output("get", "configmap", "kube-root-ca.crt", "-o", "name")
    withdraw(cluster, account)
    before = plugin.runs
    for _ in range(2):
        assert kubectl("get", "--raw", "/api/v1/namespaces/team/configmaps").returncode == 1
    assert plugin.runs == before + 2
