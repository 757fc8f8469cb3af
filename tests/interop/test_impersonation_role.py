"""The role that ``ostiary-gateway impersonation-role`` prints, applied to a real cluster, from a dump of all its roles.

With the gateway's own token, as somebody has it who broke into the gateway, only the gateway's users can be
impersonated, for what they may do anyway. And what the users need works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import IMPERSONATION, ClusterSite, Front, served
from tests.interop.support.kubectl import assert_same, step
from tests.interop.support.people import GROUP_OF, ROBOT, account, binding
from tests.interop.support.people import user as user_subject

Action = tuple[str, str, object]

NARROW, WIDER = "ostiary/narrow", "ostiary/wider"
WHOM = ("impersonate", "impersonate:user-info", "impersonate:serviceaccount", "impersonate:arbitrary-node")
KUBE_SYSTEM = "/api/v1/namespaces/kube-system"

ACTIONS: dict[str, Action] = {
    "all secrets": ("GET", "/api/v1/secrets", None),
    "the secrets of kube-system": ("GET", f"{KUBE_SYSTEM}/secrets", None),
    "another service account's token": ("POST", f"{KUBE_SYSTEM}/serviceaccounts/default/token", {"spec": {}}),
    "a new administrator": (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?dryRun=All",
        binding("burglar", "cluster-admin", user_subject("burglar")),
    ),
    "all nodes": ("GET", "/api/v1/nodes", None),
}

STRONG = [
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:kube-proxy",
    "system:apiserver",
    "system:admin",
    "system:node:node-1",
    "system:anonymous",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:serviceaccount:kube-system:clusterrole-aggregation-controller",
    "system:serviceaccount:ostiary:narrow",
    "system:serviceaccount:team:robot",
    "kubernetes-admin",
    "carol",
    "somebody-who-is-in-no-list",
]
STRONG_GROUPS = [
    "system:masters",
    "system:nodes",
    "system:serviceaccounts",
    "system:serviceaccounts:kube-system",
    "system:monitoring",
    "system:unauthenticated",
    "system:kube-controller-manager",
    "operators",
]


ORDINARY = ("alice", "bob", "mallory")
"""Users of a gateway at which nobody signs in who may do everything."""


@pytest.fixture(scope="module")
def site(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> ClusterSite:
    """A gateway that does not run, with its role in the cluster and its token."""
    cluster.apply(account("narrow", "ostiary"))
    site = ClusterSite(tmp_path_factory.mktemp("narrow-gateway"), cluster, people=ORDINARY)
    site.write_config(**site.sections())
    site.give_role(NARROW, name="narrow")
    return site


class Burglar:
    """Somebody who has the gateway's token, directly at the API server."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def send(self, action: Action, user: str | None = None, *groups: str) -> httpx.Response:
        method, path, body = action
        headers = [("Impersonate-User", user)] if user is not None else []
        headers += [("Impersonate-Group", group) for group in groups]
        return self._http.request(method, path, json=body, headers=headers)


@contextmanager
def burglar_with(site: ClusterSite, cluster: RealCluster) -> Iterator[Burglar]:
    headers = {"Authorization": f"Bearer {(site.folder / 'cluster-token').read_text()}"}
    with httpx.Client(
        base_url=cluster.url, verify=cluster.trust(), headers=headers, trust_env=False, timeout=30
    ) as http:
        yield Burglar(http)


@pytest.fixture
def burglar(site: ClusterSite, cluster: RealCluster) -> Iterator[Burglar]:
    with burglar_with(site, cluster) as burglar:
        yield burglar


class TestWithTheGatewaysToken:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_the_token_alone_is_good_for_nothing(self, action: str, burglar: Burglar) -> None:
        answer = burglar.send(ACTIONS[action])
        assert answer.status_code == 403, answer.text

    @pytest.mark.parametrize("action", ACTIONS)
    @pytest.mark.parametrize("name", STRONG)
    def test_nobody_can_be_impersonated_who_cannot_sign_in_at_the_gateway(
        self, name: str, action: str, burglar: Burglar
    ) -> None:
        assert_may_not_impersonate(burglar.send(ACTIONS[action], name))

    @pytest.mark.parametrize("name", STRONG_GROUPS)
    @pytest.mark.parametrize("user", ORDINARY)
    def test_nobody_can_be_put_into_a_group_that_the_gateway_never_gives(
        self, user: str, name: str, burglar: Burglar
    ) -> None:
        for action in ACTIONS.values():
            assert_may_not_impersonate(burglar.send(action, user, name))

    @pytest.mark.parametrize("action", ACTIONS)
    def test_being_one_of_the_users_does_not_help(self, action: str, burglar: Burglar) -> None:
        for user in ORDINARY:
            assert burglar.send(ACTIONS[action], user, GROUP_OF[user]).status_code == 403

    def test_what_a_user_may_do_can_be_done_as_them(self, burglar: Burglar) -> None:
        own = ("GET", "/api/v1/namespaces/team/configmaps", None)
        assert burglar.send(own, "alice", "dev").status_code == 200


def assert_may_not_impersonate(answer: httpx.Response, account: str = NARROW) -> None:
    """Refused for the impersonation itself, and not only because that user may not do this."""
    assert answer.status_code == 403, answer.text
    assert f'User "system:serviceaccount:{account.replace("/", ":")}" cannot impersonate' in answer.json()["message"]


class TestWhatTheRoleSays:
    def test_no_rule_about_whom_is_without_names(self, site: ClusterSite, cluster: RealCluster) -> None:
        """Users and groups are named wherever the set of names is known, as with htpasswd and a file of groups."""
        rules = json.loads(cluster.admin.output("get", "clusterrole", "narrow", "-o", "json"))["rules"]
        whom = [rule for rule in rules if any(verb in WHOM for verb in rule["verbs"])]
        names: dict[str, set[str]] = {"users": set(), "groups": set(), "serviceaccounts": set(), "nodes": set()}
        for rule in whom:
            for resource in names.keys() & set(rule["resources"]):
                names[resource] |= set(rule.get("resourceNames", ["*"]))
        groups = {GROUP_OF[user] for user in ORDINARY}
        assert names["users"] == set(ORDINARY)
        assert groups <= names["groups"] <= groups | {"system:authenticated"}
        assert not names["serviceaccounts"] | names["nodes"]

    def test_applying_it_a_second_time_changes_nothing(self, site: ClusterSite, cluster: RealCluster) -> None:
        role = site.impersonation_role(NARROW, "--name", "narrow")
        assert "configured" not in cluster.admin.output("apply", "-f", "-", stdin=role)


class TestWhatUsersNeed:
    def test_each_user_can_do_what_the_cluster_allows_them(
        self, fronts: dict[str, Front], cluster: RealCluster
    ) -> None:
        steps = [
            step("get", "configmaps", "-n", "team", "-o", "name"),
            step("get", "configmaps", "-A", "-o", "name"),
            step("get", "secrets", "-n", "other", "-o", "name"),
            step("create", "configmap", "mine", "-n", "team", "--dry-run=server", "-o", "name"),
            step("get", "--raw", "/healthz"),
            step("get", "clusterrole", "view", "-o", "name"),
            step("auth", "whoami"),
        ]
        for user, group in GROUP_OF.items():
            direct = cluster.kubectl(user, group).outcomes(steps)
            through_gateway = fronts[IMPERSONATION].kubectl(user).outcomes(steps)
            assert_same(direct, through_gateway)

    def test_a_group_that_everybody_is_in_may_be_asked_for(self, front: Front, cluster: RealCluster) -> None:
        """``--as-group system:authenticated``: the API server adds that group, so it need not be sent."""
        steps = [
            step("auth", "whoami", "--as=bob", "--as-group=system:authenticated"),
            step("auth", "can-i", "get", "/healthz", "--as=bob", "--as-group=system:authenticated"),
            step("get", "configmaps", "-o", "name", "--as=bob", "--as-group=system:authenticated"),
            step("get", "--raw", "/version", "--as=bob", "--as-group=system:authenticated"),
            step(
                "get", "configmaps", "-o", "name", "--as=bob", "--as-group=readers", "--as-group=system:authenticated"
            ),
        ]
        direct = cluster.kubectl("alice", GROUP_OF["alice"]).outcomes(steps)
        through_gateway = front.kubectl("alice").outcomes(steps)
        assert_same(direct, through_gateway)
        assert [outcome.code for outcome in direct] == [0, 0, 1, 0, 0]


@pytest.fixture(scope="module")
def asked(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    cluster.apply(account("wider", "ostiary"))
    site = ClusterSite(tmp_path_factory.mktemp("wider-gateway"), cluster)
    site.write_config(**site.sections())
    site.give_role(WIDER, "--as-service-account", "team/robot", name="wider")
    with served(site) as gateway:
        yield Front(site, gateway, IMPERSONATION)


class TestServiceAccountsWhenAskedFor:
    """``--as system:serviceaccount:...`` has verbs of its own in Kubernetes; the role covers whom it is told to."""

    def test_kubectl_can_stand_in_for_the_service_account(self, asked: Front, cluster: RealCluster) -> None:
        steps = [
            step("auth", "whoami", f"--as={ROBOT}"),
            step("get", "configmaps", "-n", "team", "-o", "name", f"--as={ROBOT}"),
            step("delete", "configmap", "kube-root-ca.crt", "-n", "team", f"--as={ROBOT}"),
            step("get", "secrets", "-n", "other", f"--as={ROBOT}"),
            step("auth", "can-i", "--list", "-n", "team", f"--as={ROBOT}", unordered=True),
        ]
        direct = cluster.kubectl("alice", GROUP_OF["alice"]).outcomes(steps)
        through_gateway = asked.kubectl("alice").outcomes(steps)
        assert_same(direct, through_gateway)
        assert [outcome.code for outcome in direct] == [0, 0, 1, 1, 0]

    def test_no_other_service_account_comes_with_it(self, asked: Front, cluster: RealCluster) -> None:
        own = ("GET", "/api/v1/namespaces/team/configmaps", None)
        with burglar_with(asked.site, cluster) as burglar:
            assert burglar.send(own, ROBOT).status_code == 200
            for name in ("team:default", "kube-system:default", "ostiary:wider"):
                assert_may_not_impersonate(burglar.send(own, f"system:serviceaccount:{name}"), WIDER)
