"""An rbac provider that follows a cluster of the test, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.config import loads
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac.followed_kind import Pauses
from ostiary_gateway.providers.rbac.followed_policy import FollowedPolicy
from ostiary_gateway.providers.rbac.index import ObjectKey
from ostiary_gateway.providers.rbac.settings import FromSettings
from ostiary_gateway.proxy.following import FollowedUpstream
from tests.support.rbac_cluster import RbacCluster, binding, role, rule
from tests.unit.ostiary_gateway.providers.rbac.policies import ask

SECONDS = 60.0
_CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
identity: [{name: me, type: single_user}]
authorization: {chain: [{name: everything, type: allow_all}]}
upstreams: [{name: here, server: URL, attributes: kubernetes}]
"""


class Following:
    """`provider` decides by the policy of `cluster` as long as `start` is not followed by `stop`."""

    def __init__(
        self,
        cluster: RbacCluster,
        *,
        clock: Clock = SYSTEM_CLOCK,
        max_stale: float = 600.0,
        max_entries: int = 1_000_000,
        relist: float = 21600.0,
    ) -> None:
        settings = FromSettings("here", timedelta(seconds=max_stale), max_entries, timedelta(seconds=relist))
        self.cluster = cluster
        self.policy = FollowedPolicy(settings, clock=clock, make_pauses=lambda: Pauses(share=lambda: 0.001))
        self.provider = RbacAuthorization(following=self.policy)
        self.reader = reader_of(cluster, clock)
        self._task: asyncio.Task[None] | None = None
        self._settled = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self.policy.follow(self.reader))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._task = None

    def allows(self, user: str, verb: str = "get", resource: str = "pods", namespace: str = "dev") -> bool:
        return self.provider.decide(ask(verb, resource, namespace, "web", user=user)).allowed

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the event loop run until it holds; only a failure takes long."""
        async with asyncio.timeout(SECONDS):
            while not condition():  # what happens is in other tasks, and tells nobody
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        """Until everything has come into force that has changed so far.

        Changes of a kind come in order, so a last one of each kind is waited for. They are taken away again.
        """
        self._settled += 1
        user, where = f"sentinel-{self._settled}", f"sentinel-{self._settled}"
        last = rule(["get"], "pods")
        sentinels = [
            ("Role", role(user, where, last)),
            ("RoleBinding", binding(user, where, user, user, role_kind="Role")),
            ("ClusterRole", role(user, "", last)),
            ("ClusterRoleBinding", binding(user, "", user, f"{user}-everywhere")),
        ]
        # By the objects and not by a decision: the policy of a test may allow everybody everything.
        keys = [ObjectKey(kind, item["metadata"].get("namespace", ""), user) for kind, item in sentinels]
        for kind, item in sentinels:
            self.cluster.put(kind, item)
        await self.until(lambda: not self.policy.trouble() and all(map(self._is_in_force, keys)))
        for kind, namespace, name in keys:
            self.cluster.delete(kind, name, namespace)
        await self.until(lambda: not any(map(self._is_in_force, keys)))

    def _is_in_force(self, key: ObjectKey) -> bool:
        return key in self.policy.index.policy.objects

    async def until_watching(self) -> None:
        await self.until(lambda: not self.policy.trouble() and self.cluster.watches == 4)


def reader_of(cluster: RbacCluster, clock: Clock = SYSTEM_CLOCK, *, seconds: float = 30.0) -> FollowedUpstream:
    config = loads(_CONFIG.replace("URL", cluster.url), name="test")
    return FollowedUpstream(config.upstreams[0], asyncio.get_running_loop(), clock, seconds=seconds)


@asynccontextmanager
async def following(
    cluster: RbacCluster, *, clock: Clock = SYSTEM_CLOCK, **settings: float
) -> AsyncIterator[Following]:
    made = Following(cluster, clock=clock, **settings)  # type: ignore[arg-type]  # numbers of either kind
    made.start()
    try:
        yield made
    finally:
        await made.stop()
        made.reader.close()
