"""A gateway whose policy is that of the cluster behind it: it follows roles and bindings, and asks nobody."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from ostiary.model import UserInfo
from tests.support.cluster import Asked, Cluster
from tests.support.gateway import SECONDS, Site

pytest_plugins = ["tests.support.cluster.fixtures"]

GROUP = "rbac.authorization.k8s.io"
FROM_CLUSTER = {"chain": [{"name": "rbac", "type": "rbac", "from": {"upstream": "cluster"}}]}
RULE = {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]}
VIEW = {"metadata": {"name": "view"}, "rules": [RULE]}
PODS = "/api/v1/namespaces/team/pods"


def readers(*users: str) -> dict[str, Any]:
    subjects = [{"kind": "User", "apiGroup": GROUP, "name": user} for user in users]
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}
    return {"metadata": {"name": "readers"}, "subjects": subjects, "roleRef": role}


def until(condition: Callable[[], bool]) -> float:
    """How long it took; only a failure takes long."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS
        time.sleep(0.005)
    return time.monotonic() - began


def may_not_read_policy(user: UserInfo, asked: Asked) -> str | None:
    return "not for you" if asked.group == GROUP and user.username == "gateway" else None


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA, cluster: Cluster) -> Site:
    made = Site(tmp_path / "site", ca)
    made.users("alice", "bob")
    cluster.add_namespace("team")
    cluster.add("clusterroles", "", VIEW)
    return made


def test_what_changes_in_the_cluster_decides_here(site: Site, cluster: Cluster) -> None:
    cluster.add("rolebindings", "team", readers("bob"))
    upstreams = [site.impersonating(cluster)]
    with site.serving(upstreams=upstreams, authorization=FROM_CLUSTER, listen={"workers": 2}) as gateway:
        until(lambda: gateway.probe("/readyz").status_code == 200)
        alice, bob = gateway.login("alice").token, gateway.login("bob").token
        with gateway.http(alice) as http, gateway.http(bob) as bobs:
            assert http.get(PODS).status_code == 403
            assert bobs.get(PODS).status_code == 200
            cluster.update("rolebindings", "team", readers("alice"))
            until(lambda: http.get(PODS).status_code == 200 and bobs.get(PODS).status_code == 403)
            with http.stream("GET", f"{PODS}?watch=true") as stream:
                assert stream.status_code == 200
                cluster.remove("rolebindings", "team", "readers")
                # Who loses the right loses what is open.
                with pytest.raises(httpx.RemoteProtocolError):
                    list(stream.iter_lines())
            until(lambda: http.get(PODS).status_code == 403)
        # Each worker follows the policy; this is what the slower one has.
        until(lambda: 'followed_policy_objects{provider="rbac"} 1' in gateway.probe("/metrics").text)
        metrics = gateway.probe("/metrics").text
        assert 'followed_policy_unreadable_total{provider="rbac"} 0' in metrics
        assert 'followed_policy_age_seconds{provider="rbac"}' in metrics
        # Each worker watches for itself: four kinds.
        lists = cluster.to(f"/apis/{GROUP}/v1/rolebindings")
        assert len([record for record in lists if b"watch=true" in record.target]) == 2
        asked = [record for record in cluster.requests if record.path.endswith("reviews")]
        assert asked == [], "nobody is asked per request"


def test_a_gateway_without_a_policy_is_not_ready_and_lets_nobody_in(site: Site, cluster: Cluster) -> None:
    cluster.refuse = may_not_read_policy
    with site.serving(upstreams=[site.impersonating(cluster)], authorization=FROM_CLUSTER) as gateway:
        gateway.line("may not list")
        unready = gateway.probe("/readyz")
        assert (unready.status_code, "policy rbac: its policy has not been read yet" in unready.text) == (503, True)
        # Signing in needs the groups that the policy mentions.
        answer = gateway.get("/auth", auth=("alice", "password-of-alice"))
        assert answer.status_code >= 500
        cluster.refuse = None
        until(lambda: gateway.probe("/readyz").status_code == 200)
        assert "[+] policy rbac, confirmed " in gateway.probe("/readyz").text
        assert gateway.get(PODS, gateway.login("alice").token).status_code == 403


@pytest.mark.slow
def test_a_reload_goes_on_with_the_policy_though_the_cluster_cannot_be_asked(site: Site, cluster: Cluster) -> None:
    cluster.add("rolebindings", "team", readers("alice"))
    upstream = site.impersonating(cluster)
    with site.serving(upstreams=[upstream], authorization=FROM_CLUSTER) as gateway:
        until(lambda: gateway.probe("/readyz").status_code == 200)
        token = gateway.login("alice").token
        assert gateway.get(PODS, token).status_code == 200
        cluster.refuse = may_not_read_policy
        cluster.end_watches()
        gateway.line("may not list")
        site.write_config(upstreams=[upstream], authorization={**FROM_CLUSTER, "cacheTTL": "1s"})
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded")
        assert gateway.get(PODS, token).status_code == 200
        # Another upstream has no policy that could be kept: without one there, the configuration is not taken up.
        other = {**upstream, "server": cluster.url.replace("localhost", "127.0.0.1")}
        site.write_config(upstreams=[other], authorization=FROM_CLUSTER)
        gateway.signal(signal.SIGHUP)
        assert "not reloaded" in gateway.line("cannot be read from")
        assert gateway.get(PODS, token).status_code == 200
        cluster.refuse = None
        cluster.remove("rolebindings", "team", "readers")
        until(lambda: gateway.get(PODS, token).status_code == 403)


def run(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ostiary_gateway", *arguments]
    return subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_commands_read_the_policy_from_the_cluster(site: Site, cluster: Cluster) -> None:
    cluster.add("rolebindings", "team", readers("alice"))
    site.write_config(upstreams=[site.impersonating(cluster)], authorization=FROM_CLUSTER)
    question = ("get", "pods", "--namespace", "team")
    assert run(site, "can-i", *question, "--user", "alice").stdout == "yes\n"
    assert run(site, "can-i", *question, "--user", "bob").stdout == "no\n"
    assert "alice" in run(site, "who-can", *question).stdout
    checked = run(site, "serve", "--check", "--online")
    assert "can be listed and watched" in checked.stdout + checked.stderr
    role = run(site, "impersonation-role")
    assert role.returncode == 0, role.stderr
    assert "rolebindings" in role.stdout
    assert "alice" in role.stdout


@pytest.mark.slow
def test_the_commands_say_what_they_may_not_read(site: Site, cluster: Cluster) -> None:
    cluster.refuse = may_not_read_policy
    site.write_config(upstreams=[site.impersonating(cluster)], authorization=FROM_CLUSTER)
    answer = run(site, "can-i", "get", "pods", "--user", "alice")
    assert (answer.returncode, answer.stdout) == (1, ""), "no answer is not a no"
    assert "may not list roles" in answer.stderr
    checked = run(site, "serve", "--check", "--online")
    assert checked.returncode != 0
    assert "may not list roles" in checked.stdout + checked.stderr
    # What it needs first, so that it can read what else it needs.
    role = run(site, "impersonation-role")
    assert role.returncode == 0
    assert "apply this, and run the command again" in role.stderr
    assert "rolebindings" in role.stdout
    assert "impersonate" not in role.stdout
