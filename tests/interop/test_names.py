"""Names with characters that paths make much of: what can be created can be read and deleted."""

from __future__ import annotations

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import Front
from tests.interop.support.kubectl import assert_same, step
from tests.interop.support.people import GROUP_OF

# Roles may have any name without a slash or a percent sign that is not "." or "..".
NAMES = [
    *("semi;colon", "back\\slash", "a;b=c;d", "..;", "\\..\\up", ";", "\\"),
    *(
        "question?mark",
        "hash#tag",
        "a b",
        "ümlaut",
        "system:colon",
        "plus+and&amp",
        "quote'\"",
        "tilde~dot.",
        "{brace}",
    ),
]


@pytest.mark.parametrize("name", NAMES)
def test_an_object_of_any_name_can_be_created_read_and_deleted(name: str, front: Front, cluster: RealCluster) -> None:
    steps = [
        step("create", "clusterrole", name, "--verb=get", "--resource=configmaps", "--dry-run=server", "-o", "name"),
        step("create", "clusterrole", name, "--verb=get", "--non-resource-url=/healthz"),
        step("get", "clusterrole", "--", name),
        step("get", "clusterrole", "-o", "jsonpath={.rules}", "--", name),
        step("patch", "clusterrole", "-p", '{"metadata":{"labels":{"seen":"yes"}}}', "--", name),
        step("delete", "clusterrole", "--", name),
        step("get", "clusterrole", "--", name),
    ]
    try:
        direct = cluster.kubectl("carol", GROUP_OF["carol"]).outcomes(steps)
        assert [outcome.code for outcome in direct] == [0, 0, 0, 0, 0, 0, 1], direct
        through_gateway = front.kubectl("carol").outcomes(steps)
    finally:
        cluster.admin("delete", "clusterrole", "--ignore-not-found", "--", name)
    assert_same(direct, through_gateway)
