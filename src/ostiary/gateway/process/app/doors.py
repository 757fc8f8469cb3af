"""The doors of other proxies: for each of them, and each upstream that it carries requests to, an engine that answers.

Made by the app. These engines share everything with the engine of the listener: tokens, policy, limits, admission,
audit and metrics. They differ in where requests may go, and in that they answer where the other forwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from ostiary.core.clock import Clock
from ostiary.gateway.config.doors import headers_dropped, upstreams_of
from ostiary.gateway.config.settings import DoorSettings, GatewayConfig, ProxyKind
from ostiary.gateway.config.values import Address
from ostiary.gateway.login.clusters import ClusterOffer, offers
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.engine import AnswerAllowed, Engine, EngineParts
from ostiary.gateway.upstream.applications import Applications
from ostiary.gateway.upstream.routes import Routes, RoutesTo
from ostiary.gateway.upstream.upstreams import Upstream

if TYPE_CHECKING:
    # Imported where it is needed: most gateways have no doors, or those of one kind of proxy.
    from ostiary.gateway.doors.check.handler import CheckHandler
    from ostiary.gateway.doors.forward.handler import Door, DoorHandler
    from ostiary.gateway.doors.haproxy.agent import HandleQuestion
    from ostiary.gateway.doors.haproxy.decisions.pusher import DecisionPusher


class _AnswerParts(TypedDict):
    """The `EngineParts` that say how an allowed request is answered."""

    answer_allowed: AnswerAllowed
    answers_identity: bool


class Doors:
    """Those of one configuration; none of them answers before `open`."""

    def __init__(self, config: GatewayConfig, upstreams: Sequence[Upstream], metrics: Metrics, clock: Clock) -> None:
        self._config = config
        self._upstreams = upstreams
        self._metrics = metrics
        self._clock = clock
        self._doors: dict[bytes, Door] = {}
        self._doors_by_grpc: dict[bytes, Door] = {}
        self._engines: dict[tuple[str, bytes], Engine] = {}
        self._cleans_cookies = any(upstream.is_application for upstream in config.upstreams)
        # By the name of the door; the sign-in routes serve the visitors of all of them.
        self.applications = {
            door.name: Applications(Routes(self._carried_by(door)), config.external_url, port=door.port)
            for door in config.doors
        }
        # Of the doors of HAProxies, by the address where each asks.
        self.agents: dict[Address, tuple[DoorSettings, HandleQuestion]] = {}
        self.pushers: dict[str, DecisionPusher] = {}

    def clusters(self) -> Iterator[ClusterOffer]:
        """The clusters that kubectl reaches through the proxies of the doors."""
        for door in self._config.doors:
            yield from offers(Routes(self._carried_by(door)), self._config.external_url, port=door.port)

    def _carried_by(self, door: DoorSettings) -> list[Upstream]:
        names = {each.name for each in upstreams_of(door, self._config.upstreams)}
        return [upstream for upstream in self._upstreams if upstream.name in names]

    def handler_before(self, engine: Engine) -> DoorHandler | None:
        """What answers the questions that come to the listener, and gives all else to *engine*; None without doors."""
        if not self._doors:
            return None
        from ostiary.gateway.doors.forward.handler import DoorHandler

        return DoorHandler(self._doors, engine.handle, engine.pass_on, self._metrics, self._clock)

    def check_handler(self) -> CheckHandler:
        """What answers the calls of the gRPC listener."""
        from ostiary.gateway.doors.check.handler import CheckHandler

        return CheckHandler(self._doors_by_grpc, self._config.listen.limits, self._metrics, self._clock)

    def open(self, parts: EngineParts, make: Callable[[EngineParts], Engine]) -> None:
        """Make the engines, of the *parts* of the listener's engine."""
        for door in self._config.doors:
            self._open_pusher(door, parts)
            engines = self._engines_of(door, parts, make)
            self._engines |= {(door.name, upstream): engine for upstream, engine in engines.items()}
            self._add(door, engines)

    def _add(self, door: DoorSettings, engines: dict[bytes, Engine]) -> None:
        from ostiary.gateway.doors.forward.handler import Door

        applications = frozenset(
            upstream.name.encode() for upstream in self._carried_by(door) if upstream.settings.is_application
        )
        made = Door(door, engines, self._clock, applications)
        if door.agent is None:
            doors = self._doors_by_grpc if door.proxy.asks_by_grpc else self._doors
            doors[door.name.encode()] = made
            return
        pusher = self.pushers.get(door.name)
        if pusher is not None:
            pusher.engines = {name.decode(): engine for name, engine in engines.items()}
        from ostiary.gateway.doors.haproxy.handler import HaproxyHandler

        handler = HaproxyHandler(made, self._metrics, self._clock, makes_keys=pusher is not None)
        self.agents[door.agent.address] = (door, handler.handle)

    def _open_pusher(self, door: DoorSettings, parts: EngineParts) -> None:
        """Where HAProxy is given decisions to use again, somebody must tell it of them."""
        if door.decisions is not None:
            from ostiary.gateway.doors.haproxy.decisions.pusher import DecisionPusher

            self.pushers[door.name] = DecisionPusher(
                door.name,
                door.decisions,
                parts.authenticator,
                lambda: parts.authorizer.generation,
                self._metrics,
                self._clock,
            )

    def _engines_of(
        self, door: DoorSettings, parts: EngineParts, make: Callable[[EngineParts], Engine]
    ) -> dict[bytes, Engine]:
        upstreams = self._carried_by(door)
        common = replace(
            parts,
            # What we answer ourselves is at our own address; here it is one of the upstream's paths.
            own_apis=(),
            self_reviews=None,
            api_groups=None,
            open_paths={},
            leads_to_sign_in=False,
            applications=None if parts.pages is None else self.applications[door.name],
        )
        return {
            upstream.name.encode(): make(self._parts_for(door, upstream, replace(common, routes=routes)))
            for upstream, routes in ((each, RoutesTo(upstreams, each)) for each in upstreams)
        }

    def _parts_for(self, door: DoorSettings, upstream: Upstream, common: EngineParts) -> EngineParts:
        from ostiary.gateway.doors.forward.claims import CarriedHeaders, ClaimsRefused
        from ostiary.gateway.doors.forward.dialects import DIALECTS
        from ostiary.gateway.doors.forward.identity import answer_names

        dialect, drop = DIALECTS[door.proxy], headers_dropped(self._config)
        told = answer_names(door.extra, assertion=upstream.assertions is not None)
        return replace(
            common,
            headers=ClaimsRefused(told, drop=drop) if dialect.shows_claims else CarriedHeaders(drop=drop),
            **self._answers_of(door, upstream),
        )

    def _answers_of(self, door: DoorSettings, upstream: Upstream) -> _AnswerParts:
        if door.proxy is ProxyKind.HAPROXY:
            from ostiary.gateway.doors.haproxy.answers import HaproxyAnswers

            pusher = self.pushers.get(door.name)
            by_spoe = HaproxyAnswers(door.extra, None if pusher is None else pusher.offer)
            return {"answer_allowed": by_spoe.answer, "answers_identity": False}
        from ostiary.gateway.doors.forward.carried import AllowedAnswers
        from ostiary.gateway.doors.forward.dialects import DIALECTS

        dialect = DIALECTS[door.proxy]
        allowed = AllowedAnswers(dialect, door.extra, upstream, cleans_cookies=self._cleans_cookies)
        return {"answer_allowed": allowed.answer, "answers_identity": allowed.is_identity}

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self._engines.values())

    def hand_over(self, successor: Doors, engine: Engine) -> None:
        """Another configuration has taken over: what still waits here is decided by its policy.

        *engine* is that of its listener, which stands in for a door that is gone.
        """
        for key, old in self._engines.items():
            old.hand_over(successor._engines.get(key, engine))
