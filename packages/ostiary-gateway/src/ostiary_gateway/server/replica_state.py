"""The state that a worker reports to its replica. A worker without a supervisor also publishes the replica's state.

With several workers the supervisor queries each for its state, publishes for all of them, and sends them the number of
replicas it has seen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

from ostiary.core.clock import Clock
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.replicas.drift import Configuration, SeenReplica
from ostiary_gateway.replicas.registry import ConfigurationDigest, ReplicaRegistry
from ostiary_gateway.replicas.replica import ReplicaIdentity
from ostiary_gateway.replicas.workers import WorkerState
from ostiary_gateway.server.background import BackgroundTasks

if TYPE_CHECKING:
    from ostiary_gateway.server.process_state import Shared

# Messages between the supervisor and a worker: the state of a worker, the replicas seen, the state of the replica.
STATE = "replica state"
SEEN = "replicas seen"
OWN = "own replica"
PUBLISHING = "telling the other replicas of this one"


class SeenJson(TypedDict):
    replicas: int
    other_configuration: int


def seen_json(seen: Sequence[SeenReplica]) -> SeenJson:
    """Return the values of the metrics. A silent replica is not counted."""
    present = [each for each in seen if not each.silent_seconds]
    others = [each for each in present if each.configuration is Configuration.OTHER]
    return {"replicas": len(present), "other_configuration": len(others)}


class ReplicaState:
    """The state of one worker. *checks* returns the worker's readiness checks without querying other systems."""

    def __init__(
        self,
        config: GatewayConfig,
        shared: Shared,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        checks: Callable[[], list[tuple[str, str]]],
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._checks = checks
        self._background = BackgroundTasks(loop, clock=clock)
        self._configuration = ConfigurationDigest(config, clock)
        self._known: tuple[str, float] = ("", clock.monotonic())
        self._registry: ReplicaRegistry | None = None

    def start_alone(self, config: GatewayConfig) -> None:
        """Publish the state of the replica: there is no supervisor to do it."""
        registry = ReplicaRegistry(
            ReplicaIdentity.of_this_process(),
            self._shared.tokens.store,
            self._states,
            clock=self._clock,
            max_stale=config.tokens.max_stale.total_seconds(),
            on_seen=lambda seen: self.take_seen(seen_json(seen)),
        )
        self._registry = registry
        self._shared.own_replica = registry.own
        self._background.keep_running(PUBLISHING, registry.run)

    def reload(self, config: GatewayConfig) -> None:
        self._configuration = ConfigurationDigest(config, self._clock)

    async def stop(self) -> None:
        await self._background.stop()
        if self._registry is not None:
            await self._registry.leave()

    async def publish(self) -> None:
        """Publish immediately, instead of within a few seconds."""
        if self._registry is not None:
            await self._registry.publish()

    def take_seen(self, data: object) -> None:
        """Update the metrics of the number of replicas."""
        counts, metrics = cast(SeenJson, data), self._shared.metrics
        metrics.replicas.set(counts["replicas"])
        metrics.other_configuration.set(counts["other_configuration"])

    async def state(self) -> WorkerState:
        shared = self._shared
        # In a thread: policies may consist of many files.
        digest = (await asyncio.to_thread(self._configuration.current)).hex()
        now = self._clock.monotonic()
        if digest != self._known[0]:
            self._known = digest, now
        return {
            "pid": os.getpid(),
            "configuration": digest,
            "configured_seconds": now - self._known[1],
            "requests": shared.metrics.requests.total,
            "in_flight": shared.limits.seats.in_flight,
            "open_streams": shared.limits.streams.open_in_all,
            "tokens": shared.authenticator.size,
            "revocation": shared.authenticator.feed.applied,
            "confirmed_seconds": shared.authenticator.feed.age,
            "checks": self._checks(),
        }

    async def _states(self) -> list[WorkerState | None]:
        return [await self.state()]
