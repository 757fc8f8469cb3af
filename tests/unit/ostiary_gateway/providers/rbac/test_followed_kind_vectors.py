"""A policy that is followed decides as the cluster's RBAC does: policies and answers of a real one, told by watches."""

from __future__ import annotations

from ostiary.core.yaml import parse_all
from ostiary_gateway.wire.rbac import read_manifests
from tests.support.rbac_cluster import RbacCluster
from tests.support.vectors import load
from tests.unit.ostiary_gateway.providers.rbac.following import following
from tests.unit.ostiary_gateway.providers.rbac.served_objects import change_to, cluster_of
from tests.unit.ostiary_gateway.providers.rbac.test_vectors import answer


async def test_every_question_gets_the_answer_of_a_cluster() -> None:
    """All vectors, one after the other in one cluster: what the one before had is taken away by deltas."""
    asked = 0
    async with RbacCluster() as cluster, following(cluster) as follower:
        await follower.until_watching()
        for number, vector in enumerate(load("rbac"), start=1):
            change_to(cluster, cluster_of(read_manifests(parse_all(vector["manifests"]))))
            await follower.settle()
            index = follower.policy.index
            wrong = [each for each in vector["questions"] if answer(index, each) != each["allowed"]]
            assert not wrong, f"line {number}: {len(wrong)} questions, such as {wrong[0]}"
            asked += len(vector["questions"])
        assert follower.policy.figures().lists == 4, "all of it came by the watches"
    assert asked > 500
