"""The client door at the real API server: short-lived credentials are replaced without a restart."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme
from kubernetes import client

from ostiary.client.connection import Connection, connect
from ostiary_gateway.testing import FakeClock
from tests.interop.support.cluster import RealCluster, issue, token_for
from tests.interop.support.kubectl import RealKubectl
from tests.interop.support.people import account
from tests.interop.support.process import wait_until
from tests.interop.support.programs import versions
from tests.support.plugins import PluginScript, exec_credential, exec_user

# Its types say "or None" of every field.
official: Any = client

REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def pem_pair(leaf: trustme.LeafCert) -> dict[str, str]:
    chain = "".join(pem.bytes().decode() for pem in leaf.cert_chain_pems)
    return {"certificate": chain, "key": leaf.private_key_pem.bytes().decode()}


@pytest.fixture
def connection(cluster: RealCluster, plugin: PluginScript, clock: FakeClock) -> Connection:
    kubeconfig = cluster.kubeconfig(exec_user(plugin.path))
    return connect(kubeconfig, clock=clock)


def who(http: Any) -> str:
    answer = http.post(REVIEW, json={})
    assert answer.status_code == 201, answer.text
    name: str = answer.json()["status"]["userInfo"]["username"]
    return name


def test_a_short_lived_certificate_is_replaced_while_the_client_lives(
    cluster: RealCluster, connection: Connection, plugin: PluginScript, clock: FakeClock
) -> None:
    """E1, E3."""
    with connection.httpx() as http:
        for run, user in enumerate(("alice", "bob", "carol"), start=1):
            leaf = cluster.certificate(user, "dev")
            plugin.answer(**pem_pair(leaf), expires_at=clock.now() + timedelta(minutes=5))
            assert [who(http), who(http)] == [user, user]
            assert plugin.runs == run
            clock.advance(minutes=6)


def test_a_short_lived_token_is_replaced_before_it_expires(
    cluster: RealCluster, connection: Connection, plugin: PluginScript, clock: FakeClock
) -> None:
    with connection.httpx() as http:
        for account in ("robot", "default"):
            token = token_for(cluster.admin, "team", account)
            plugin.answer(token=token, expires_at=clock.now() + timedelta(minutes=10))
            assert [who(http), who(http)] == [f"system:serviceaccount:team:{account}"] * 2
            clock.advance(minutes=11)
    assert plugin.runs == 2


def test_a_token_and_a_certificate_take_each_others_place(
    cluster: RealCluster, connection: Connection, plugin: PluginScript, clock: FakeClock
) -> None:
    with connection.httpx() as http:
        plugin.answer(token=token_for(cluster.admin, "team", "robot"), expires_at=clock.now() + timedelta(minutes=1))
        assert who(http) == "system:serviceaccount:team:robot"
        clock.advance(minutes=2)
        plugin.answer(**pem_pair(cluster.certificate("alice", "dev")), expires_at=clock.now() + timedelta(minutes=1))
        assert who(http) == "alice"
        clock.advance(minutes=2)
        plugin.answer(token=token_for(cluster.admin, "team", "robot"), expires_at=clock.now() + timedelta(minutes=1))
        assert who(http) == "system:serviceaccount:team:robot"


def test_a_token_that_the_api_server_refuses_is_replaced_and_the_request_sent_again(
    cluster: RealCluster, connection: Connection, plugin: PluginScript
) -> None:
    """Its service account was deleted and made again: the old token is refused, though it has not expired."""
    cluster.apply(account("reborn", "team"))
    old = token_for(cluster.admin, "team", "reborn")
    plugin.answer(token=old)
    with connection.httpx() as http:
        assert who(http) == "system:serviceaccount:team:reborn"
        cluster.admin.output("delete", "serviceaccount", "reborn", "-n", "team")
        refused = cluster.with_token(old)
        wait_until(lambda: refused("auth", "whoami").returncode == 1, what="the end of the token")
        cluster.apply(account("reborn", "team"))
        plugin.answer(token=token_for(cluster.admin, "team", "reborn"))
        assert who(http) == "system:serviceaccount:team:reborn"
    assert plugin.runs == 2


def test_an_expired_certificate_is_refused_by_the_api_server_and_replaced(
    cluster: RealCluster, connection: Connection, plugin: PluginScript
) -> None:
    """The plugin said nothing about an expiry, so only the API server's 401 tells. E45, E51."""
    past = datetime.now(UTC) - timedelta(minutes=1)
    expired = issue(cluster.ca, "alice", "dev", not_before=past - timedelta(days=1), not_after=past)
    plugin.answer(**pem_pair(expired))
    good = exec_credential(**pem_pair(cluster.certificate("bob", "dev")))
    (plugin.folder / "next").write_text(json.dumps(good))
    plugin.before("if [ $(grep -c . runs) = 2 ]; then mv next answer; fi")
    with connection.httpx() as http:
        assert who(http) == "bob"
    assert plugin.runs == 2


def test_a_watch_goes_on_while_the_credential_is_replaced(
    cluster: RealCluster, connection: Connection, plugin: PluginScript, clock: FakeClock
) -> None:
    """E46."""
    watch = {"watch": "1", "fieldSelector": "metadata.name=rotating", "resourceVersion": "0"}
    plugin.answer(**pem_pair(cluster.certificate("alice", "dev")), expires_at=clock.now() + timedelta(minutes=5))
    with (
        connection.httpx() as http,
        http.stream("GET", "/api/v1/namespaces/team/configmaps", params=watch, timeout=30) as events,
    ):
        assert events.status_code == 200
        clock.advance(minutes=6)
        plugin.answer(**pem_pair(cluster.certificate("carol", "dev")), expires_at=clock.now() + timedelta(minutes=5))
        assert who(http) == "carol"
        cluster.admin.output("create", "configmap", "rotating", "-n", "team")
        assert '"ADDED"' in next(events.iter_lines())
    cluster.admin.output("delete", "configmap", "rotating", "-n", "team")


def _get_with(session: Any) -> str:
    with session as http:
        prefix = http.base_url if hasattr(http, "base_url") and isinstance(http.base_url, str) else ""
        answer = http.post(f"{prefix.rstrip('/')}{REVIEW}", json={})
        name: str = answer.json()["status"]["userInfo"]["username"]
        return name


def _get_official(connection: Connection) -> str:
    reviews = official.AuthenticationV1Api(connection.kubernetes())
    name: str = reviews.create_self_subject_review(official.V1SelfSubjectReview()).status.user_info.username
    return name


async def _get_async(connection: Connection) -> str:
    async with connection.httpx_async() as http:
        answer = await http.post(REVIEW, json={})
        name: str = answer.json()["status"]["userInfo"]["username"]
        return name


LIBRARIES: dict[str, Callable[[Connection], str]] = {
    "httpx": lambda connection: _get_with(connection.httpx()),
    "requests": lambda connection: _get_with(connection.requests()),
    "kubernetes": _get_official,
    "httpx_async": lambda connection: asyncio.run(_get_async(connection)),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["token", "certificate"])
def test_each_library_is_signed_in_at_the_real_api_server(
    library: str, kind: str, cluster: RealCluster, connection: Connection, plugin: PluginScript, clock: FakeClock
) -> None:
    if kind == "token":
        plugin.answer(token=token_for(cluster.admin, "team", "robot"))
    else:
        plugin.answer(**pem_pair(cluster.certificate("alice", "dev")))
    expected = "system:serviceaccount:team:robot" if kind == "token" else "alice"
    assert LIBRARIES[library](connection) == expected


def test_kubectl_and_ostiary_are_the_same_user_with_one_kubeconfig(cluster: RealCluster, plugin: PluginScript) -> None:
    plugin.answer(token=token_for(cluster.admin, "team", "robot"))
    kubeconfig = cluster.kubeconfig(exec_user(plugin.path))
    with connect(kubeconfig).httpx() as http:
        expected = who(http)
    for version in versions():
        shown = RealKubectl(version.program("kubectl"), kubeconfig).output("auth", "whoami", "-o", "yaml")
        assert f"username: {expected}\n" in shown


def test_a_certificate_in_base64_in_the_kubeconfig_works_as_with_kubectl(cluster: RealCluster) -> None:
    pair = pem_pair(cluster.certificate("alice", "dev"))
    user = {
        "client-certificate-data": b64encode(pair["certificate"].encode()).decode(),
        "client-key-data": b64encode(pair["key"].encode()).decode(),
    }
    with connect(cluster.kubeconfig(user)).httpx() as http:
        assert who(http) == "alice"
