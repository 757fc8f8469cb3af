"""The rbac provider keeps what every authorization provider keeps, also where its policy is that of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ostiary.model import Attributes
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.testing.authorization import AuthorizationContract
from tests.support.rbac_cluster import RbacCluster, binding, role, rule
from tests.unit.ostiary_gateway.providers.rbac.following import Following, following
from tests.unit.ostiary_gateway.providers.rbac.policies import ask


class TestFollowedRbac(AuthorizationContract):
    @pytest.fixture
    async def follower(self) -> AsyncIterator[Following]:
        async with RbacCluster() as cluster:
            cluster.put("ClusterRole", role("view", "", rule(["get"], "pods")))
            cluster.put("RoleBinding", binding("readers", "dev", "view", "alice"))
            async with following(cluster) as follower:
                await follower.until_watching()
                yield follower

    @pytest.fixture
    def provider(self, follower: Following) -> RbacAuthorization:
        return follower.provider

    @pytest.fixture
    def allowed(self) -> Attributes:
        return ask("get", "pods", "dev", "web")

    @pytest.fixture
    def refused(self) -> Attributes:
        return ask("delete", "pods", "dev", "web")

    @pytest.fixture
    def change_policy(self, follower: Following) -> Callable[[], Awaitable[None]]:
        async def change() -> None:
            follower.cluster.put("ClusterRole", role("view", "", rule(["get", "delete"], "pods")))
            await follower.until(lambda: follower.allows("alice", "delete"))

        return change
