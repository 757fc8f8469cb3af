"""The gateway as the webhooks of a real kube-apiserver, and the API server as the gateway's own authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import GROUPS, ClusterSite, Front
from tests.interop.support.kubectl import RealKubectl, assert_same, step
from tests.interop.support.people import GROUP_OF, account, binding, cluster_role, rule, service_account
from tests.interop.support.process import wait_until
from tests.support.gateway import ServedGateway, role
from tests.support.plugins import write_kubeconfig

CALLER = "token-of-the-api-server"
HOOK_POLICY = [
    *role("other", "configmaps", User="mallory"),
    *role("team", {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]}, Group="outsiders"),
]


@dataclass
class Hooked:
    """An API server that asks the gateway who somebody is, and whether they may."""

    cluster: RealCluster
    url: str
    site: ClusterSite
    gateway: ServedGateway

    def kubectl(self, token: str) -> RealKubectl:
        kubeconfig = self.cluster.kubeconfig({"token": token}, server=self.url)
        return RealKubectl(self.cluster.kubernetes.program("kubectl"), kubeconfig)


@pytest.fixture(scope="module", params=["v1", "v1beta1"])
def hooked(
    cluster: RealCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hooked]:
    folder = tmp_path_factory.mktemp("webhook-gateway")
    site = ClusterSite(folder, cluster)
    site.policy(HOOK_POLICY, folder="hook-policy")
    (folder / "caller-token").write_text(CALLER)
    webhooks = {"tokenReview": True, "subjectAccessReview": True, "callers": {"tokenFile": "caller-token"}}
    # The cluster's own roles make the groups known; what only the webhook allows is in the other folder.
    chain = [{"name": "policy", "type": "rbac", "paths": ["hook-policy"]}]
    sections: dict[str, Any] = {"groups": GROUPS, "authorization": {"chain": chain}, "webhooks": webhooks}
    with site.serving(**sections) as gateway:
        configs = {}
        for hook in ("token-review", "subject-access-review"):
            configs[hook] = write_kubeconfig(
                folder / f"{hook}.kubeconfig",
                server=f"{gateway.url()}/webhooks/{hook}",
                user={"token": CALLER},
                cluster={"certificate-authority": str(folder / "ca.pem")},
            )
        flags = (
            f"--authentication-token-webhook-config-file={configs['token-review']}",
            f"--authentication-token-webhook-version={request.param}",
            "--authentication-token-webhook-cache-ttl=1s",
            f"--authorization-webhook-config-file={configs['subject-access-review']}",
            f"--authorization-webhook-version={request.param}",
            "--authorization-webhook-cache-authorized-ttl=1s",
            "--authorization-webhook-cache-unauthorized-ttl=1s",
        )
        with cluster.api_server(*flags, modes="Node,RBAC,Webhook") as url:
            yield Hooked(cluster, url, site, gateway)


class TestTheGatewayAsWebhooks:
    def test_a_token_of_the_gateway_signs_in_at_the_api_server(self, hooked: Hooked) -> None:
        kubectl = hooked.kubectl(hooked.gateway.login("mallory").token)
        shown = json.loads(kubectl.output("auth", "whoami", "-o", "json"))["status"]["userInfo"]
        assert shown["username"] == "mallory"
        assert set(shown["groups"]) == {"outsiders", "system:authenticated"}
        assert shown["extra"]["authentication.kubernetes.io/credential-id"][0].startswith("OSTIARY=")

    def test_what_only_the_gateways_policy_allows_is_allowed(self, hooked: Hooked) -> None:
        kubectl = hooked.kubectl(hooked.gateway.login("mallory").token)
        assert kubectl.output("get", "configmap", "hidden", "-n", "other", "-o", "name") == "configmap/hidden\n"
        assert kubectl("get", "deployments", "-n", "team").returncode == 0
        assert kubectl.output("auth", "can-i", "create", "configmaps", "-n", "other") == "yes\n"
        for denied in (("get", "secrets", "-n", "other"), ("get", "configmaps", "-n", "team"), ("get", "nodes")):
            done = kubectl(*denied)
            assert (done.returncode, "Forbidden" in done.stderr) == (1, True), done.stderr

    def test_a_strange_token_is_nobodys(self, hooked: Hooked) -> None:
        done = hooked.kubectl("ost_" + "a" * 50)("get", "configmaps")
        assert done.returncode == 1
        assert "logged in" in done.stderr or "Unauthorized" in done.stderr

    def test_a_token_that_was_revoked_is_refused_when_the_cache_forgot_it(self, hooked: Hooked) -> None:
        login = hooked.gateway.login("mallory")
        kubectl = hooked.kubectl(login.token)
        assert kubectl("auth", "whoami").returncode == 0
        with hooked.gateway.http(login.token) as http:
            assert http.post("/auth/logout").status_code in (200, 204)
        wait_until(lambda: kubectl("auth", "whoami").returncode == 1, what="the revocation", seconds=30)


@pytest.fixture(scope="module")
def asking(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    cluster.apply(
        account("asking", "ostiary"),
        cluster_role("asking", rule("subjectaccessreviews", "create", group="authorization.k8s.io")),
        binding("asking", "asking", service_account("asking", "ostiary")),
    )
    site = ClusterSite(tmp_path_factory.mktemp("asking-gateway"), cluster)
    token = cluster.admin.output("create", "token", "asking", "-n", "ostiary", "--duration=30m")
    (site.folder / "asking-token").write_text(token.strip())
    review: dict[str, Any] = {"name": "cluster", "type": "subject_access_review", "server": cluster.url}
    review |= {"ca": "cluster-ca.pem", "tokenFile": "asking-token", "groups": [*GROUP_OF.values()]}
    upstream = site.by_front_proxy()
    with site.serving(**site.sections(upstreams=[upstream], authorization={"chain": [review]})) as gateway:
        yield Front(site, gateway, "localhost")


class TestTheApiServerAsAuthorizer:
    """``subject_access_review`` in the gateway's chain: the cluster decides what the gateway passes on."""

    @pytest.mark.parametrize("user", GROUP_OF)
    def test_kubectl_works_from_the_first_command_on(self, user: str, asking: Front, cluster: RealCluster) -> None:
        """Discovery is for ``system:authenticated``: that group is part of the question, though no token names it."""
        steps = [
            step("get", "configmaps", "-o", "name"),
            step("api-versions"),
            step("version"),
            step("get", "--raw", "/api"),
            step("get", "--raw", "/apis/apps/v1"),
            step("get", "secrets", "-n", "other"),
            step("delete", "secret", "hidden", "-n", "other", "--dry-run=server", "--ignore-not-found"),
            step("create", "configmap", "x", "--dry-run=server", "-o", "name"),
            step("auth", "can-i", "list", "configmaps"),
            step("auth", "can-i", "get", "/healthz"),
            step("auth", "can-i", "get", "nodes"),
            step("auth", "whoami"),
        ]
        direct = cluster.kubectl(user, GROUP_OF[user]).outcomes(steps)
        through_gateway = asking.kubectl(user).outcomes(steps)
        assert_same(direct, through_gateway)
