"""Optional features of a configuration, built by the app.

API groups, the issuer, quota metrics, shadow comparison, machine identities, tracing, web applications and external
authorization.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict

from starlette.routing import Route

from ostiary import __version__
from ostiary.core.clock import Clock
from ostiary_gateway.accounts.api import AccountsApi, ApiTokensApi
from ostiary_gateway.accounts.api_tokens import ApiTokens
from ostiary_gateway.accounts.owner_revalidation import OwnerRevalidation, TokenUse
from ostiary_gateway.accounts.service_accounts import ServiceAccounts
from ostiary_gateway.api.plugin_registrations import ApiPluginsApi, Registrations
from ostiary_gateway.api.plugin_routing import GroupRoutes, Merging
from ostiary_gateway.api.provider_resources import ProviderResources
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.audit.source_ips import is_trusted
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.accounts import DeclaredAccount
from ostiary_gateway.config.api_groups import providers_with_resources
from ostiary_gateway.config.extauth import DoorSettings, ProxyKind
from ostiary_gateway.config.extauth_loading import headers_dropped, upstreams_of
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.issuer import IssuerKeys
from ostiary_gateway.config.refresh_check import renewal_check
from ostiary_gateway.config.tracing import Parents, Tracing
from ostiary_gateway.config.values import Address
from ostiary_gateway.interfaces.admission import CountsObjects, SubjectUsage, UpstreamApi
from ostiary_gateway.interfaces.identity import RenewalCheck
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.interfaces.token_store import Found, Session
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login.clusters import ClusterOffer, offers
from ostiary_gateway.login.routes import Login
from ostiary_gateway.login.web_app_endpoints import STARTS_PER_MINUTE, ApplicationChecks, ApplicationPages
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.api_plugin_registry import ApiPlugins
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.engine import AnswerAllowed, Engine, EngineServices
from ostiary_gateway.proxy.routes import Routes, RoutesTo
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.server.process_state import Shared
from ostiary_gateway.sessions import Attested
from ostiary_gateway.settings.outgoing import client_context

if TYPE_CHECKING:
    from ostiary_gateway.extauth.ext_authz import CheckHandler
    from ostiary_gateway.extauth.forward_auth import Door, DoorHandler
    from ostiary_gateway.extauth.haproxy.agent import HandleQuestion
    from ostiary_gateway.extauth.haproxy.decision_push import DecisionPusher
    from ostiary_gateway.http1.headers import HeaderFilter
    from ostiary_gateway.issuer.issuer import JwtIssuer, SigningKeySource
    from ostiary_gateway.observability.otlp import SpanExporter
    from ostiary_gateway.policy.shadow import ShadowComparison
    from ostiary_gateway.proxy.shadow_sampling import ShadowQuestion, ShadowSampler

KeepRunning = Callable[[str, Callable[[], Awaitable[None]]], None]


class ApiGroupsSetup:
    """API groups served by plugins and providers, and the endpoints that register plugins."""

    def __init__(
        self,
        config: GatewayConfig,
        upstreams: Mapping[str, Upstream],
        requests: UpstreamClient,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        own = [ProviderResources(provider) for provider in providers_with_resources(config)]
        self.own_apis = [each.own_api for each in own]
        groups = [each.group for each in own]
        self.plugins = ApiPlugins(
            config.api_plugins,
            upstreams,
            requests.objects,
            loop=loop,
            clock=clock,
            reserved=[group.name for group in groups],
        )
        # Requests for the objects of a plugin's group go to the plugin.
        requests.find_plugin = self.plugins.find_place
        asking = UpstreamClient(upstreams)
        self.routes = GroupRoutes(self.plugins, Merging(self.plugins, asking, groups), groups)
        self.api_routes = ApiPluginsApi(Registrations(self.plugins, asking, clock)).routes

    def start(self, keep_running: KeepRunning) -> None:
        self.plugins.start()
        if self.plugins.accepts_registrations:
            keep_running("reading the API plugins in the token store", self.plugins.follow_store)


def open_issuer(config: GatewayConfig, shared: Shared, clock: Clock) -> JwtIssuer | None:
    """Return the issuer with its keys from files or from the token store; None if no JWTs are to be signed.

    Reads nothing yet.
    """
    settings = config.issuer
    if settings is None:
        return None
    from ostiary_gateway.issuer.issuer import JwtIssuer

    return JwtIssuer(
        config.issuer_url,
        settings.audiences,
        settings.lifetime,
        _key_source(settings.keys, shared, clock),
        shared.tokens,
        clock=clock,
        metrics=shared.metrics,
        counts=shared.counts,
    )


def _key_source(keys: IssuerKeys, shared: Shared, clock: Clock) -> SigningKeySource:
    from ostiary_gateway.issuer.key_files import KeyFiles
    from ostiary_gateway.issuer.stored_keys import StoredKeys

    if keys.secret_file is None:
        return KeyFiles(keys.files, clock)
    objects = ability(shared.tokens.store, ObjectStore)
    assert objects is not None, "the configuration was checked"
    return StoredKeys(objects, str(keys.secret_file), keys.life, clock)


# Admission providers that count objects: metrics, and usage per subject.


def show_figures(providers: Collection[CountsObjects], metrics: Metrics) -> None:
    corrections = 0
    for provider in providers:
        figures = provider.figures()
        corrections += figures.corrections
        for limit, fullness in figures.fullest.items():
            metrics.quota_fullest.set(fullness, limit)
    metrics.quota_corrections.read_from(lambda: corrections)


async def quota_usage(providers: Collection[CountsObjects], api: UpstreamApi) -> list[SubjectUsage]:
    """Return the current usage by limit and subject. Raises `ProviderError`."""
    return [row for provider in providers for row in await provider.usage(api)]


@dataclass(frozen=True, slots=True)
class ShadowParts:
    """The shadow comparison of a configuration.

    `sampler` is for the engines. `comparisons`, by upstream name, run in the background.
    """

    sampler: ShadowSampler
    comparisons: Mapping[str, ShadowComparison]


def open_shadow(upstreams: Sequence[Upstream], auditor: Auditor, metrics: Metrics, clock: Clock) -> ShadowParts | None:
    """Return None if no upstream has `shadow`."""
    chosen = [upstream for upstream in upstreams if upstream.settings.shadow is not None]
    if not chosen:
        return None
    from ostiary_gateway.policy.shadow import ShadowComparison, ShadowRecorder
    from ostiary_gateway.proxy.shadow_sampling import ShadowSampler

    recorder = ShadowRecorder(auditor, clock=clock, tells_upstream=len(upstreams) > 1)
    comparisons = {upstream.name: ShadowComparison(recorder, metrics, clock) for upstream in chosen}

    def enqueue(question: ShadowQuestion) -> bool:
        return comparisons[question.upstream.name].enqueue(question)

    return ShadowParts(ShadowSampler(chosen, enqueue, metrics, clock), comparisons)


# Machine identities: service accounts, API tokens, and the checks of their owners.

# How often the owners of tokens with open streams are checked, if their check is due.
STREAM_CHECK_SECONDS = 60.0


class Programs:
    """Machine identities: service accounts and API tokens.

    A reload revokes the tokens of accounts that the new configuration no longer declares.
    """

    # Set before the first request: the login is built from this object.
    login: Login

    def __init__(self, config: GatewayConfig, shared: Shared, clock: Clock) -> None:
        tokens = shared.tokens
        self._declared = config.service_accounts.declared
        # Accounts of earlier configurations whose tokens may have to be revoked.
        self._earlier: tuple[DeclaredAccount, ...] = ()
        self._authenticator = shared.authenticator
        self._clock = clock
        self.accounts = ServiceAccounts(tokens, config.service_accounts, clock=clock)
        checked = {
            identity.name
            for identity in config.identity
            if renewal_check(identity, config.groups) is RenewalCheck.ASKED
        }
        self.api_tokens = ApiTokens(tokens, config.api_tokens, is_checked=checked.__contains__)
        self._use = TokenUse(tokens, clock)
        self._checks = OwnerRevalidation(
            tokens, self.accounts, self._recheck, self._use, interval=config.tokens.lifetime, clock=clock
        )
        self._interval = config.tokens.lifetime
        self._enabled = config.api_tokens.enabled

    @property
    def routes(self) -> list[Route]:
        return [*AccountsApi(self.accounts, self.api_tokens).routes, *ApiTokensApi(self.api_tokens).routes]

    async def find_token(self, token: str) -> Found | None:
        """Return the session of *token* if its owner is still valid."""
        return await self._checks.find(token)

    def adopt(self, old: Programs) -> None:
        self._earlier = tuple({*old._earlier, *old._declared})

    def start(self, keep_running: KeepRunning) -> None:
        self._authenticator.check_holder = self._checks.check
        keep_running("writing down the use of API tokens", self._use.run)
        keep_running("checking the owners of API tokens with open requests", self._check_streams)
        if self._earlier:
            keep_running("ending the tokens of removed service accounts", self._end_removed)

    async def _recheck(self, session: Session) -> Attested:
        return await self.login.recheck(session)

    async def _check_streams(self) -> None:
        """Check the owners of API tokens with open streams.

        A stream lives as long as its session, and that of an API token is long.
        """
        while True:
            await asyncio.sleep(STREAM_CHECK_SECONDS)
            await self._authenticator.check_streams()

    async def _end_removed(self) -> None:
        await self.accounts.end_removed(self._earlier, by="ostiary: no longer declared in the configuration")
        self._earlier = ()
        # Runs once. Never return, because a background task that ends is started again.
        await asyncio.Event().wait()


# Tracing: the tracer, the exporter and the collector. Imported only if tracing is configured.

# Number of peers whose trust is cached. The check matches networks, for every request.
MOST_PEERS = 4096


class RequestTracing:
    """Tracing of one configuration."""

    def __init__(self, settings: Tracing, config: GatewayConfig, clock: Clock, metrics: Metrics) -> None:
        from ostiary_gateway.observability.tracer import Tracer
        from ostiary_gateway.proxy.traced_engine import RequestTraces

        self._config = config
        self.exporter = _exporter(settings, clock, metrics)
        tracer = Tracer(self.exporter.put, clock, ratio=settings.ratio, trusts=_trusts(settings, config))
        self._traces = RequestTraces(tracer, config.listen.trusted_proxies, settings.user_names)

    def header_filter(self) -> HeaderFilter:
        from ostiary_gateway.proxy.traced_engine import TracedHeaderFilter

        config = self._config
        return TracedHeaderFilter((each.headers for each in config.upstreams), drop=config.listen.drop_headers)

    def engine(self, parts: EngineServices, loop: asyncio.AbstractEventLoop) -> Engine:
        from ostiary_gateway.proxy.traced_engine import TracedEngine

        return TracedEngine(parts, loop, self._traces)


def open_tracing(config: GatewayConfig, clock: Clock, metrics: Metrics) -> RequestTracing | None:
    """Return None if tracing is off. Raises `TransportError` if a TLS file cannot be used."""
    return None if config.tracing is None else RequestTracing(config.tracing, config, clock, metrics)


def _trusts(settings: Tracing, config: GatewayConfig) -> Callable[[str], bool]:
    match settings.parents:
        case Parents.ALWAYS:
            return lambda address: True
        case Parents.NEVER:
            return lambda address: False
        case Parents.TRUSTED_PROXIES:
            return lru_cache(MOST_PEERS)(lambda address: is_trusted(address, config.listen.trusted_proxies))


def _exporter(settings: Tracing, clock: Clock, metrics: Metrics) -> SpanExporter:
    import httpx2

    from ostiary_gateway.observability.otlp import OtlpCollector, OtlpEncoder, SpanExporter, rejected_spans

    resource: dict[str, str | int | bool] = {
        "service.name": settings.service_name,
        "service.version": __version__,
        # One per worker: each counts and drops spans separately.
        "service.instance.id": os.urandom(16).hex(),
        "process.pid": os.getpid(),
    }
    context = client_context(settings.tls) if settings.endpoint.startswith("https:") else True
    collector = OtlpCollector(
        settings.endpoint,
        client=httpx2.AsyncClient(verify=context, trust_env=False),
        encoder=OtlpEncoder(resource, scope="ostiary.gateway", version=__version__),
        rejected_spans=rejected_spans,
        seconds=settings.timeout.total_seconds(),
        headers_file=settings.headers_file,
    )
    return SpanExporter(
        collector,
        clock,
        sent=metrics.spans_sent,
        dropped=metrics.spans_dropped,
        buffer=settings.buffer,
        batch=settings.batch,
        wait=settings.wait.total_seconds(),
    )


# Web applications: browser sign-in and the checks of application sessions.


class Visitors:
    """The users of web applications and public paths.

    `pages` is None if no request is treated as a browser's.
    """

    def __init__(
        self, config: GatewayConfig, shared: Shared, applications: Applications, login: Login, clock: Clock
    ) -> None:
        self._authenticator = shared.authenticator
        self._checks = ApplicationChecks(
            shared.tokens, login.recheck_visitor, interval=config.tokens.lifetime, clock=clock
        )
        self.pages: ApplicationPages | None = None
        if any(upstream.is_application or upstream.public for upstream in config.upstreams):
            starts = Buckets(
                STARTS_PER_MINUTE / 60,
                STARTS_PER_MINUTE,
                clock=clock,
                counts=shared.counts,
                name="sign-ins of web applications",
            )
            self.pages = ApplicationPages(
                applications, login.applications, starts, config.listen.trusted_proxies, look=config.look
            )

    def start(self) -> None:
        self._authenticator.check_visitor = self._checks.check


# External authorization: an engine for each endpoint and each upstream that its proxy forwards to.


class _AnswerParts(TypedDict):
    """The `EngineServices` that determine the response to an allowed request."""

    answer_allowed: AnswerAllowed
    answers_identity: bool


class Doors:
    """The external authorization endpoints of one configuration. None of them responds before `open`.

    Their engines share everything with the engine of the listener: tokens, policy, limits, admission, audit and
    metrics. They differ in the routes, and they respond where the listener's engine forwards.
    """

    def __init__(self, config: GatewayConfig, upstreams: Sequence[Upstream], metrics: Metrics, clock: Clock) -> None:
        self._config = config
        self._upstreams = upstreams
        self._metrics = metrics
        self._clock = clock
        self._doors: dict[bytes, Door] = {}
        self._doors_by_grpc: dict[bytes, Door] = {}
        self._engines: dict[tuple[str, bytes], Engine] = {}
        self._cleans_cookies = any(upstream.is_application for upstream in config.upstreams)
        # By the name of the endpoint. The sign-in routes serve the users of all of them.
        self.applications = {
            door.name: Applications(Routes(self._carried_by(door)), config.external_url, port=door.port)
            for door in config.doors
        }
        # The endpoints for HAProxy, by the address that it connects to.
        self.agents: dict[Address, tuple[DoorSettings, HandleQuestion]] = {}
        self.pushers: dict[str, DecisionPusher] = {}

    def clusters(self) -> Iterator[ClusterOffer]:
        """Return the clusters that kubectl reaches through the other proxies."""
        for door in self._config.doors:
            yield from offers(Routes(self._carried_by(door)), self._config.external_url, port=door.port)

    def _carried_by(self, door: DoorSettings) -> list[Upstream]:
        names = {each.name for each in upstreams_of(door, self._config.upstreams)}
        return [upstream for upstream in self._upstreams if upstream.name in names]

    def handler_before(self, engine: Engine) -> DoorHandler | None:
        """Return the handler of forward-auth requests on the listener, which passes all others to *engine*.

        None if there are no endpoints.
        """
        if not self._doors:
            return None
        from ostiary_gateway.extauth.forward_auth import DoorHandler

        return DoorHandler(self._doors, engine.handle, engine.pass_on, self._metrics, self._clock)

    def check_handler(self) -> CheckHandler:
        """Return the handler for the calls of the gRPC listener."""
        from ostiary_gateway.extauth.ext_authz import CheckHandler

        return CheckHandler(self._doors_by_grpc, self._config.listen.limits, self._metrics, self._clock)

    def open(self, parts: EngineServices, make: Callable[[EngineServices], Engine]) -> None:
        """Build the engines from *parts*, the services of the listener's engine."""
        for door in self._config.doors:
            self._open_pusher(door, parts)
            engines = self._engines_of(door, parts, make)
            self._engines |= {(door.name, upstream): engine for upstream, engine in engines.items()}
            self._add(door, engines)

    def _add(self, door: DoorSettings, engines: dict[bytes, Engine]) -> None:
        from ostiary_gateway.extauth.forward_auth import Door

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
        from ostiary_gateway.extauth.haproxy.handler import HaproxyHandler

        handler = HaproxyHandler(made, self._metrics, self._clock, makes_keys=pusher is not None)
        self.agents[door.agent.address] = (door, handler.handle)

    def _open_pusher(self, door: DoorSettings, parts: EngineServices) -> None:
        """Create a pusher if HAProxy caches decisions: it must be notified when they end."""
        if door.decisions is not None:
            from ostiary_gateway.extauth.haproxy.decision_push import DecisionPusher

            self.pushers[door.name] = DecisionPusher(
                door.name,
                door.decisions,
                parts.authenticator,
                lambda: parts.authorizer.generation,
                self._metrics,
                self._clock,
            )

    def _engines_of(
        self, door: DoorSettings, parts: EngineServices, make: Callable[[EngineServices], Engine]
    ) -> dict[bytes, Engine]:
        upstreams = self._carried_by(door)
        common = replace(
            parts,
            # The built-in endpoints exist only on the gateway's own host. Here their paths belong to the upstream.
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

    def _parts_for(self, door: DoorSettings, upstream: Upstream, common: EngineServices) -> EngineServices:
        from ostiary_gateway.extauth.claims import CarriedHeaders, ClaimsRefused
        from ostiary_gateway.extauth.dialects import DIALECTS
        from ostiary_gateway.extauth.identity_headers import answer_names

        dialect, drop = DIALECTS[door.proxy], headers_dropped(self._config)
        told = answer_names(door.extra, assertion=upstream.assertions is not None)
        return replace(
            common,
            headers=ClaimsRefused(told, drop=drop) if dialect.shows_claims else CarriedHeaders(drop=drop),
            **self._answers_of(door, upstream),
        )

    def _answers_of(self, door: DoorSettings, upstream: Upstream) -> _AnswerParts:
        if door.proxy is ProxyKind.HAPROXY:
            from ostiary_gateway.extauth.haproxy.handler import HaproxyAnswers

            pusher = self.pushers.get(door.name)
            by_spoe = HaproxyAnswers(door.extra, None if pusher is None else pusher.offer)
            return {"answer_allowed": by_spoe.answer, "answers_identity": False}
        from ostiary_gateway.extauth.dialects import DIALECTS
        from ostiary_gateway.extauth.forwarded_request import AllowedAnswers

        dialect = DIALECTS[door.proxy]
        allowed = AllowedAnswers(dialect, door.extra, upstream, cleans_cookies=self._cleans_cookies)
        return {"answer_allowed": allowed.answer, "answers_identity": allowed.is_identity}

    @property
    def busy(self) -> bool:
        return any(engine.busy for engine in self._engines.values())

    def hand_over(self, successor: Doors, engine: Engine) -> None:
        """Re-authorize what is still in flight here with the policy of *successor*.

        *engine*, that of the successor's listener, is used for an endpoint that no longer exists.
        """
        for key, old in self._engines.items():
            old.hand_over(successor._engines.get(key, engine))
