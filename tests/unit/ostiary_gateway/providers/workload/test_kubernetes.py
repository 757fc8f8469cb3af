"""Service accounts: their own names where the operator has bound the issuer to the cluster, other names elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.providers.workload.kubernetes import kubernetes
from tests.support.cluster import Cluster
from tests.support.workloads import GATEWAY, SERVICE_ACCOUNT
from tests.unit.ostiary_gateway.providers.workload.conftest import Make

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


@pytest.fixture
def reader(cluster: Cluster, tmp_path: Path) -> Path:
    """The token with which the gateway reads the cluster's keys."""
    (tmp_path / "reader").write_text(cluster.add_token("system:serviceaccount:gateway:ostiary"))
    return tmp_path / "reader"


def of_cluster(cluster: Cluster, more: str = "") -> str:
    return f"platform: kubernetes\nserver: {cluster.url}\nca: ca.pem\ntokenFile: reader\n{more}\n"


async def user_of(make: Make, settings: str, token: str) -> UserInfo:
    return (await make(settings).verify_token(Secret(token))).user


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("review", ["", "tokenReview: true"])
async def test_a_service_account_of_the_bound_cluster_keeps_its_name(make: Make, cluster: Cluster, review: str) -> None:
    """S72."""
    account = cluster.add("serviceaccounts", "default", {"metadata": {"name": "deployer"}})
    pod = cluster.add_pod("default", "web")
    token = cluster.request_token("default", "deployer", audiences=[GATEWAY], pod="web")
    user = await user_of(make, of_cluster(cluster, f"cluster: main\n{review}"), token)
    assert user.username == "system:serviceaccount:default:deployer"
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:default")
    assert user.uid == account["metadata"]["uid"]
    extra = dict(user.extra)
    assert extra.pop(CREDENTIAL_ID)[0].startswith("JTI=")
    assert extra == {
        "authentication.kubernetes.io/node-name": ("node-1",),
        "authentication.kubernetes.io/node-uid": ("uid-of-node-1",),
        "authentication.kubernetes.io/pod-name": ("web",),
        "authentication.kubernetes.io/pod-uid": (pod["metadata"]["uid"],),
    }


@pytest.mark.usefixtures("reader")
async def test_elsewhere_it_has_another_name_and_the_pod_is_nobody_elses(make: Make, cluster: Cluster) -> None:
    cluster.add_pod("default", "web")
    token = cluster.request_token("default", "deployer", audiences=[GATEWAY], pod="web")
    user = await user_of(make, of_cluster(cluster), token)
    assert user.username == "serviceaccount:default:deployer"
    assert user.groups == ("serviceaccounts", "serviceaccounts:default")
    assert user.uid == ""
    assert [key for key, _ in user.extra if key != CREDENTIAL_ID] == [
        f"ostiary.dev/{kind}-{what}" for kind in ("node", "pod") for what in ("name", "uid")
    ]


@pytest.mark.usefixtures("reader")
async def test_rules_say_which_accounts_may_come_and_may_name_them(make: Make, cluster: Cluster) -> None:
    cluster.add_namespace("shop")
    settings = of_cluster(
        cluster,
        """
cluster: main
rules:
- {match: {namespace: shop, serviceaccount: robot}, username: robot, groups: [robots]}
- {match: {namespace: shop}, groups: [shop]}
""",
    )
    for name, username, groups in (
        ("robot", "robot", ("robots",)),
        ("web", "system:serviceaccount:shop:web", ("system:serviceaccounts", "system:serviceaccounts:shop", "shop")),
    ):
        user = await user_of(make, settings, cluster.request_token("shop", name, audiences=[GATEWAY]))
        assert (user.username, user.groups) == (username, groups)
    with pytest.raises(LoginRefused):
        await user_of(make, settings, cluster.request_token("default", "web", audiences=[GATEWAY]))


@pytest.mark.usefixtures("reader")
async def test_a_token_for_the_api_server_is_not_one_for_us(make: Make, cluster: Cluster) -> None:
    for review in ("", "tokenReview: true"):
        with pytest.raises(LoginRefused):
            await user_of(make, of_cluster(cluster, review), cluster.request_token("default", "deployer"))


@pytest.mark.usefixtures("reader")
async def test_a_token_of_another_cluster_with_the_same_names_is_refused(
    make: Make, cluster: Cluster, ca: trustme.CA
) -> None:
    with Cluster(ca) as other:
        other.accounts.now = cluster.accounts.now
        token = other.request_token("default", "deployer", audiences=[GATEWAY])
        assert other.accounts.issuer == cluster.accounts.issuer
        for review in ("", "tokenReview: true"):
            provider = make(of_cluster(cluster, f"cluster: main\n{review}"))
            assert provider.recognizes_token(token), "by its issuer it looks like one of ours"
            with pytest.raises(LoginRefused):
                await provider.verify_token(Secret(token))


@pytest.mark.usefixtures("reader")
async def test_keys_of_a_cluster_are_rotated_with_no_refusal(make: Make, cluster: Cluster) -> None:
    provider = make(of_cluster(cluster))
    old = cluster.request_token("default", "deployer", audiences=[GATEWAY])
    assert await provider.verify_token(Secret(old))
    cluster.accounts.rotate()
    for token in (old, cluster.request_token("default", "deployer", audiences=[GATEWAY])):
        assert await provider.verify_token(Secret(token))


def test_claims_that_do_not_agree_name_nobody(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"sub": "system:serviceaccount:shop:other"},
        {"sub": "system:serviceaccount:kube-system:deployer"},
        {"sub": "system:masters"},
        {"sub": "deployer"},
        {"sub": 7},
        {"sub": "system:serviceaccount:shop:Deployer"},
        {"kubernetes.io": None},
        {"kubernetes.io": {"namespace": "shop"}},
        {"kubernetes.io": {"namespace": "shop", "serviceaccount": "deployer"}},
        {"kubernetes.io": {"namespace": ["shop"], "serviceaccount": {"name": "deployer"}}},
    ]
    for changed in cases:
        for bound in [True, False]:
            with subtests.test(changed=changed, bound=bound), pytest.raises(LoginRefused):
                kubernetes(bound=bound).read({**SERVICE_ACCOUNT, **changed})


def test_what_a_token_is_bound_to_is_told_as_far_as_it_says() -> None:
    claims = {**SERVICE_ACCOUNT, "kubernetes.io": {**SERVICE_ACCOUNT["kubernetes.io"], "pod": {"name": 7}, "node": "n"}}
    assert kubernetes(bound=True).read(claims).extra == ()
