"""The application of one configuration: the engine, everything it needs, and the background tasks.

A reload opens a new app next to the old one. Both share the token store and the cached tokens, so no user is signed
out.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, cast

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary_gateway.api.operator_api import AdminApi
from ostiary_gateway.api.self_reviews import SelfReviewHandler
from ostiary_gateway.audit.setup import open_auditor
from ostiary_gateway.audit.sign_ins import SignInRecorder
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.providers import close_all
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.http1.headers import HeaderFilter
from ostiary_gateway.interfaces.admission import CountsObjects
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.limits.counts import MemoryCounts
from ostiary_gateway.limits.replicated_counts import ReplicatedCounts
from ostiary_gateway.login.admin.area import AdminSources
from ostiary_gateway.login.clusters import Clusters, offers
from ostiary_gateway.login.http_adapter import LoginHandler
from ostiary_gateway.login.routes import Login
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.context import BuiltinApi, UnauthenticatedRoute
from ostiary_gateway.proxy.engine import Engine, EngineServices
from ostiary_gateway.proxy.following import Followers
from ostiary_gateway.proxy.health import watch_credential, watch_health
from ostiary_gateway.proxy.identity_headers import Assertions
from ostiary_gateway.proxy.redirects import Redirects
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.step_up_gate import open_step_up
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.replicas import worker_messages as sibling_news
from ostiary_gateway.replicas.cluster_lookup import EveryEndedRequest, EveryRefusal
from ostiary_gateway.replicas.decision_feed import DecisionFeed
from ostiary_gateway.replicas.owner import CONFIRMING_OWNER
from ostiary_gateway.replicas.registry import Replicas
from ostiary_gateway.server.background import BackgroundTasks
from ostiary_gateway.server.features import (
    ApiGroupsSetup,
    Doors,
    Programs,
    Visitors,
    open_issuer,
    open_shadow,
    open_tracing,
    quota_usage,
    show_figures,
)
from ostiary_gateway.server.process_state import Shared, open_shared

if TYPE_CHECKING:
    from ostiary_gateway.api.revocations import RevokedCredentialList, RevokedCredentialReviews


class App:
    """One configuration in use.

    If *shortcuts* is false, every request is parsed, planned and recorded without caches: for tests, and to find out
    whether a cache causes an error.
    """

    # Set while the sign-in routes are built, before the engine.
    visitors: Visitors

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        shared: Shared | None = None,
        clock: Clock = SYSTEM_CLOCK,
        counts: ReplicatedCounts | None = None,
        shortcuts: bool = True,
    ) -> None:
        self.config = config
        self._shortcuts = shortcuts
        self._loop = loop
        self._clock = clock
        self._owns_store = shared is None
        counts = counts or ReplicatedCounts(MemoryCounts(clock=clock), clock=clock)
        self.shared = shared or open_shared(config, clock, counts)
        tells_upstream = len(config.upstreams) > 1
        self.auditor = open_auditor(config.audit, config.audit_sinks, clock, tells_upstream=tells_upstream)
        self.authorizer = Authorizer.from_settings(config.authorization, clock=clock, refusals=self.shared.refusals)
        self._step_up_rules = StepUpRules(config.step_up.rules)
        on_handshake = self.shared.metrics.upstream_handshake
        self._upstreams = [
            Upstream(upstream, loop, clock, on_handshake, shortcuts=shortcuts) for upstream in config.upstreams
        ]
        self.routes = Routes([upstream for upstream in self._upstreams if upstream.settings.server])
        upstreams = {upstream.name: upstream for upstream in self.routes.upstreams}
        self.own_requests = UpstreamClient(upstreams, ability(self.shared.tokens.store, ObjectStore))
        self.api_groups = ApiGroupsSetup(config, upstreams, self.own_requests, loop, clock)
        self.followers = Followers(config.authorization.chain, config.upstreams, loop, clock)
        self.programs = Programs(config, self.shared, clock)
        instances = {provider.name: ability(provider.instance, CountsObjects) for provider in config.admission}
        self._counting = {name: each for name, each in instances.items() if each is not None}
        self.decisions = DecisionFeed(self.shared.recent, lambda: self.shared.siblings)
        self._replicas = Replicas(self.shared.tokens.store, self.shared.replica)
        self.tracing = open_tracing(config, clock, self.shared.metrics)
        self.issuer = open_issuer(config, self.shared, clock)
        for upstream in self._upstreams:
            if self.issuer is not None and upstream.settings.identity is IdentityMode.ASSERTION:
                upstream.assertions = Assertions(upstream.name, self.issuer.sign_assertion, clock)
            if self.issuer is not None and upstream.settings.redirect is not None:
                upstream.redirects = Redirects(upstream.settings.redirect, self.issuer.sign_action)
        self.doors = Doors(config, self._upstreams, self.shared.metrics, clock)
        self.applications = Applications(self.routes, config.external_url)
        self._all_applications = self.applications.with_others(self.doors.applications.values())
        self._shadow = open_shadow(self._upstreams, self.auditor, self.shared.metrics, clock)
        parts = self._parts()
        self.doors.open(parts, self._engine)
        self.engine = self._engine(parts)
        self.api_groups.plugins.on_change = self.engine.forget_routes
        self.api_groups.plugins.on_removed = self.engine.withdraw
        questions = self.doors.handler_before(self.engine)
        self.handle = self.engine.handle if questions is None else questions.handle
        self.answer_known = None if questions is None else questions.answer_known
        self.pass_on = self.engine.pass_on if questions is None else questions.pass_on
        self._background = BackgroundTasks(loop, clock=clock)
        self._closed = False

    def start(self) -> None:
        """Start the background tasks."""
        shared, tokens = self.shared, self.config.tokens
        if self._owns_store:
            self._background.keep_running("following revocations", shared.authenticator.follow_revocations)
            self._background.keep_running("writing the time into the token store", shared.store_health.run)
            if shared.owner is not None:
                self._background.keep_running(CONFIRMING_OWNER, shared.owner.run)
            if shared.count_exchange is not None:
                self._background.keep_running("counting with other replicas", shared.count_exchange.run)
            for writer in shared.note_writers:
                self._background.keep_running("writing refusals for other replicas", writer.run)
        self.programs.start(self._background.keep_running)
        self.visitors.start()
        self.api_groups.start(self._background.keep_running)
        self.followers.start(self._background.keep_running)
        self._background.keep_running("sweeping the token store", lambda: self._sweep(tokens.sweep.total_seconds()))
        if tokens.revocation_file is not None:
            from ostiary_gateway.authentication.revocation_file import RevocationFile

            file = RevocationFile(tokens.revocation_file, shared.tokens, clock=self._clock)
            self._background.keep_running("watching the revocation file", file.run)
        if self._shadow is not None:
            for name, comparison in self._shadow.comparisons.items():
                self._background.keep_running(f"comparing decisions with upstream {name}", comparison.run)
        if self.tracing is not None:
            self._background.keep_running("sending traces", self.tracing.exporter.run)
        if self.issuer is not None:
            self._background.keep_running("rotating the issuer's keys", self.issuer.run)
        for name, pusher in self.doors.pushers.items():
            self._background.keep_running(f"telling decisions to the HAProxy of the door {name}", pusher.run)
        for name, counting in self._counting.items():
            work = partial(counting.reconcile, self.own_requests)
            self._background.keep_running(f"comparing the quota {name} with its upstream", work)
        for upstream in self.routes.upstreams:
            if upstream.settings.health is not None:
                work = partial(watch_health, upstream, upstream.settings.health)
                self._background.keep_running(f"checking the health of the upstream {upstream.name}", work)
            if upstream.knows_us:
                work = partial(watch_credential, upstream)
                self._background.keep_running(
                    f"checking the gateway's credential at the upstream {upstream.name}", work
                )

    def adopt(self, old: App) -> None:
        """Replace *old*, whose background tasks have been stopped."""
        self._owns_store = True
        self.api_groups.plugins.adopt(old.api_groups.plugins)
        self.followers.adopt(old.followers)
        # Evaluate decisions of the old policy again, for open streams too.
        old.engine.hand_over(self.engine)
        old.decisions.close()
        old.doors.hand_over(self.doors, self.engine)
        self.programs.adopt(old.programs)
        if old.tracing is not None and self.tracing is not None:
            old.tracing.exporter.hand_over(self.tracing.exporter)
        if old.issuer is not None and self.issuer is not None:
            self.issuer.adopt(old.issuer)

    def tick(self, now: float) -> None:
        """Expire what has waited too long. Runs about once a second."""
        self.routes.tick(now)
        self.api_groups.plugins.tick(now)
        self.followers.tick(now)
        self.followers.show_figures(self.shared.metrics)
        self.engine.tick()
        if self._counting:
            show_figures(self._counting.values(), self.shared.metrics)

    async def stop_background(self) -> None:
        await self._background.stop()
        await self.api_groups.plugins.stop()

    async def close(self, *, keep_shared: bool = False) -> None:
        """Close everything; with *keep_shared* everything except what the next configuration continues to use."""
        if self._closed:
            return
        self._closed = True
        await self.stop_background()
        self.routes.close()
        self.api_groups.plugins.close()
        self.followers.close()
        await self.auditor.close()
        if self.tracing is not None:
            await self.tracing.exporter.close()
        providers = [
            *(provider.instance for provider in self.config.identity),
            *(provider.instance for provider in self.config.groups),
            *(provider.instance for provider in self.config.authorization.chain),
            *(provider.instance for provider in self.config.admission),
        ]
        await close_all(providers)
        if not keep_shared:
            if self.shared.count_exchange is not None:
                await self.shared.count_exchange.finish()
            await asyncio.gather(*(writer.finish() for writer in self.shared.note_writers))
            await self.shared.tokens.store.close()

    def answer_sibling(self, question: str, data: object) -> object:
        """Handle a request or notification from another worker of this gateway."""
        match question:
            case sibling_news.UNSAVED:
                revocation = sibling_news.unsaved_from_json(cast("sibling_news.RevocationJson", data))
                self.shared.tokens.unsaved.add(revocation)
                self.shared.authenticator.end_at_once(revocation)
            case sibling_news.REFUSAL:
                refusal = self.authorizer.recall(cast(str, data))
                return None if refusal is None else sibling_news.refusal_json(refusal)
            case sibling_news.REFUSALS:
                return [
                    sibling_news.refusal_json(refusal) for refusal in self.authorizer.recent_refusals(cast(int, data))
                ]
            case sibling_news.ENDED:
                request = self.shared.ended.recall(cast(str, data))
                return None if request is None else sibling_news.ended_json(request)
            case sibling_news.DECISION:
                decision = self.shared.recent.recall(cast(str, data))
                return None if decision is None else sibling_news.decision_json(decision)
            case sibling_news.DECISIONS:
                asked = cast("sibling_news.DecisionQuestionJson", data)
                return sibling_news.batch_json(self.shared.recent, str(os.getpid()), asked)
        return None

    @property
    def busy(self) -> bool:
        """Whether a request that this app accepted is still in flight."""
        return self.engine.busy or self.doors.busy

    # --- construction ---

    def _engine(self, parts: EngineServices) -> Engine:
        return Engine(parts, self._loop) if self.tracing is None else self.tracing.engine(parts, self._loop)

    def _parts(self) -> EngineServices:
        config, shared = self.config, self.shared
        store = shared.tokens.store
        refusals = EveryRefusal(self.authorizer, lambda: shared.siblings, store)
        ended = EveryEndedRequest(shared.ended, lambda: shared.siblings, store)
        open_paths = {b"/auth": self._sign_in(refusals, ended)}
        visitors = self.visitors
        if config.webhooks.enabled:
            open_paths[b"/webhooks"] = self._webhooks()
        if self.issuer is not None and config.issuer is not None:
            from ostiary_gateway.api.issuer_endpoints import IssuerDocuments

            documents = IssuerDocuments(self.issuer, config.issuer.path)
            path = UnauthenticatedRoute(documents.handle, repeats=False, records_refusals=False)
            open_paths[documents.first_segment] = path
        programs = self.programs
        usage = partial(quota_usage, self._counting.values(), self.own_requests)
        admin = AdminApi(
            shared.tokens,
            self.authorizer,
            refusals,
            ended,
            self._replicas,
            more_routes=[*programs.routes, *self.api_groups.api_routes],
            quota_usage=usage,
            decisions=self.decisions,
        )
        return EngineServices(
            authenticator=shared.authenticator,
            authorizer=self.authorizer,
            routes=self.routes,
            auditor=self.auditor,
            limits=shared.limits,
            metrics=shared.metrics,
            clock=self._clock,
            headers=self._header_filter(),
            admission=[provider.instance for provider in config.admission],
            upstream_api=self.own_requests,
            own_apis=[BuiltinApi(admin.prefix, admin.mapper, admin.handle), *self.api_groups.own_apis],
            self_reviews=SelfReviewHandler(self.authorizer, self._clock).handle,
            api_groups=self.api_groups.routes,
            open_paths=open_paths,
            trusted_proxies=config.listen.trusted_proxies,
            ended=shared.ended,
            recent=shared.recent,
            unconfirmed=config.authorization.unconfirmed.total_seconds(),
            applications=self.applications if visitors.pages is not None else None,
            pages=visitors.pages,
            shadow=None if self._shadow is None else self._shadow.sampler,
            step_up=open_step_up(config.step_up, self._step_up_rules, programs.login.step_up_demands, shared.metrics),
            shortcuts=self._shortcuts,
        )

    def _header_filter(self) -> HeaderFilter:
        if self.tracing is not None:
            return self.tracing.header_filter()
        config = self.config
        return HeaderFilter((each.headers for each in config.upstreams), drop=config.listen.drop_headers)

    def _sign_in(self, refusals: EveryRefusal, ended: EveryEndedRequest) -> UnauthenticatedRoute:
        config, shared = self.config, self.shared
        login = self.programs.login = Login(
            identity=config.identity,
            groups=config.groups,
            relevant_groups=self.authorizer.relevant_groups,
            tokens=shared.tokens,
            external_url=config.external_url,
            authorities_pem=config.authorities_pem,
            look=config.look,
            unchecked_session=config.tokens.unchecked_session,
            issuer=self.issuer,
            authorizer=self.authorizer,
            admin=AdminSources(
                shared.tokens,
                self.authorizer,
                refusals,
                ended,
                self._replicas,
                self.decisions,
                self.programs.accounts,
                self._clock,
            ),
            api_tokens=self.programs.api_tokens,
            find_token=self.programs.find_token,
            counts=shared.counts,
            applications=self._all_applications,
            clusters=Clusters([*offers(self.routes, config.external_url), *self.doors.clusters()], self.authorizer),
            step_up=self._step_up_rules,
            clock=self._clock,
            on_event=SignInRecorder(self.auditor, shared.metrics, shared.ended, clock=self._clock).record,
        )
        self.visitors = Visitors(config, shared, self._all_applications, login, self._clock)
        handler = LoginHandler(login, config.listen.trusted_proxies)
        return UnauthenticatedRoute(handler.handle, repeats=False, records_refusals=True)

    def _webhooks(self) -> UnauthenticatedRoute:
        from ostiary_gateway.api.webhooks import WebhookHandler
        from ostiary_gateway.audit.denied_reviews import RefusedReviewRecorder

        refused = RefusedReviewRecorder(self.auditor, clock=self._clock)
        handler = WebhookHandler(
            self.config.webhooks,
            self.shared.authenticator,
            self.authorizer,
            self._clock,
            on_refused=refused.record,
            failures=self.shared.limits.failures,
            step_up=self._step_up_rules,
            deny_revoked=self._revocations_for_clusters(),
            revoked_list=self._revoked_list(),
        )
        return UnauthenticatedRoute(handler.handle, repeats=True, records_refusals=False)

    def _revocations_for_clusters(self) -> RevokedCredentialReviews | None:
        if self.issuer is None or not self.config.webhooks.revocations:
            return None
        from ostiary_gateway.api.revocations import RevokedCredentialReviews

        return RevokedCredentialReviews(self.shared.authenticator, self.issuer.url, self.shared.metrics)

    def _revoked_list(self) -> RevokedCredentialList | None:
        shared = self.shared
        if not self.config.webhooks.lists_revocations:
            return None
        from ostiary_gateway.api.revocations import RevokedCredentialList

        return RevokedCredentialList(
            self.issuer, shared.authenticator, shared.tokens, clock=self._clock, metrics=shared.metrics
        )

    async def _sweep(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self.shared.tokens.sweep()
