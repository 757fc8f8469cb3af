"""A refusal is never taken for success: what kubectl and controllers hold for "gone" must be gone."""

from __future__ import annotations

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import Front
from tests.interop.support.kubectl import Step, assert_same, step
from tests.interop.support.people import GROUP_OF

SECRET = "{apiVersion: v1, kind: Secret, metadata: {name: hidden}}"

DENIED = [
    step("delete", "secret", "hidden", "-n", "other"),
    step("delete", "secret", "hidden", "-n", "other", "--ignore-not-found"),
    step("delete", "secret/hidden", "configmap/hidden", "-n", "other", "--ignore-not-found"),
    step("delete", "secrets", "--all", "-n", "other", "--ignore-not-found"),
    step("delete", "secrets", "-l", "a!=b", "-n", "other", "--ignore-not-found"),
    step("delete", "-n", "other", "--ignore-not-found", "-f", "-", stdin=SECRET),
    step("delete", "--raw", "/api/v1/namespaces/other/secrets/hidden"),
    step("delete", "--raw", "/api/v1/namespaces/other/secrets"),
    step("wait", "--for=delete", "secret/hidden", "-n", "other", "--timeout=30s"),
    step("wait", "--for=delete", "pod/never-was", "-n", "other", "--timeout=30s"),
    step("get", "secret", "hidden", "-n", "other", "--ignore-not-found"),
    step("patch", "secret", "hidden", "-n", "other", "-p", "{}"),
    step("get", "secrets", "-n", "other", "--watch-only"),
    step("delete", "namespace", "no-such-namespace", "--ignore-not-found"),
    step("get", "configmaps", "-n", "no-such-namespace"),
]  # fmt: skip


@pytest.mark.parametrize("user", ["mallory", "bob"])
@pytest.mark.parametrize("denied", DENIED, ids=lambda denied: " ".join(denied.arguments))
def test_a_denied_command_fails_as_at_the_api_server(
    denied: Step, user: str, front: Front, cluster: RealCluster
) -> None:
    """With the default settings of the gateway: delete, wait and watch say Forbidden, with exit code 1."""
    steps = [denied]
    direct = cluster.kubectl(user, GROUP_OF[user]).outcomes(steps)
    through_gateway = front.kubectl(user).outcomes(steps)
    assert direct[0].code != 0
    assert_same(direct, through_gateway)
    assert cluster.admin.output("get", "secret", "hidden", "-n", "other", "-o", "name") == "secret/hidden\n"
