"""One configuration at work: builds the engine and everything that it needs, and closes it.

Called by the worker. Also runs what goes on in the background: following revocations, sweeping the store, watching
files. A reload opens another app beside it; the two share the token store and the tokens in use, so that nobody is
signed out.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.counting.counts import MemoryCounts
from ostiary.gateway.audit.refused_reviews import RefusedReviewRecorder
from ostiary.gateway.audit.sign_ins import SignInRecorder
from ostiary.gateway.authenticate.revocation_file import RevocationFile
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.config.providers import close_all
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.doors.admin_api import AdminApi
from ostiary.gateway.doors.self_review_handler import SelfReviewHandler
from ostiary.gateway.doors.webhooks.handler import WebhookHandler
from ostiary.gateway.http1.headers import HeaderFilter
from ostiary.gateway.login.http_adapter import LoginHandler
from ostiary.gateway.login.routes import Login
from ostiary.gateway.process.app.audit_setup import open_auditor
from ostiary.gateway.process.app.background import BackgroundTasks
from ostiary.gateway.process.app.shared import Shared, open_shared
from ostiary.gateway.request.engine import Engine, EngineParts
from ostiary.gateway.request.stages import OpenPath, OwnApi
from ostiary.gateway.siblings import messages as sibling_news
from ostiary.gateway.upstream.health import watch_credential, watch_health
from ostiary.gateway.upstream.routes import Routes
from ostiary.gateway.upstream.upstreams import Upstream
from ostiary.interfaces.shared_counts import ImmediateCounts


class App:
    """One configuration at work."""

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        shared: Shared | None = None,
        clock: Clock = SYSTEM_CLOCK,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self.config = config
        self._loop = loop
        self._clock = clock
        self._owns_store = shared is None
        self.shared = shared or open_shared(config, clock, counts or MemoryCounts(clock=clock))
        self.auditor = open_auditor(config, clock, self.shared.counts)
        self.authorizer = Authorizer.from_settings(config.authorization, clock=clock, refusals=self.shared.refusals)
        self.routes = Routes([Upstream(upstream, loop, clock) for upstream in config.upstreams])
        self.engine = Engine(self._parts(), loop)
        self._background = BackgroundTasks(loop)
        self._closed = False

    def start(self) -> None:
        """Begin what runs in the background."""
        shared, tokens = self.shared, self.config.tokens
        if self._owns_store:
            self._background.keep_running("following revocations", shared.authenticator.follow_revocations)
            self._background.keep_running("writing the time into the token store", shared.store_health.run)
        self._background.keep_running("sweeping the token store", lambda: self._sweep(tokens.sweep.total_seconds()))
        if tokens.revocation_file is not None:
            file = RevocationFile(tokens.revocation_file, shared.tokens, clock=self._clock)
            self._background.keep_running("watching the revocation file", file.run)
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
        """Take the place of *old*, whose background work has been stopped."""
        self._owns_store = True
        # Decisions of the old policy are made again, for open streams too.
        old.engine.hand_over(self.engine)

    def tick(self, now: float) -> None:
        """About once a second: end what waited too long."""
        self.routes.tick(now)
        self.engine.tick()

    async def stop_background(self) -> None:
        await self._background.stop()

    async def close(self, *, keep_shared: bool = False) -> None:
        """Close everything; with *keep_shared* all but what the next configuration continues to use."""
        if self._closed:
            return
        self._closed = True
        await self.stop_background()
        self.routes.close()
        await self.auditor.close()
        providers = [
            *(provider.instance for provider in self.config.identity),
            *(provider.instance for provider in self.config.groups),
            *(provider.instance for provider in self.config.authorization.chain),
            *(provider.instance for provider in self.config.admission),
        ]
        await close_all(providers)
        if not keep_shared:
            await self.shared.tokens.store.close()

    def answer_sibling(self, question: str, data: object) -> object:
        """Answer what another worker of this gateway asks, or take note of what it tells."""
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
        return None

    # --- building ---

    def _parts(self) -> EngineParts:
        config, shared = self.config, self.shared
        refusals = sibling_news.EveryRefusal(self.authorizer, lambda: shared.siblings)
        ended = sibling_news.EveryEndedRequest(shared.ended, lambda: shared.siblings)
        open_paths = {b"/auth": self._sign_in(refusals, ended)}
        if config.webhooks.enabled:
            open_paths[b"/webhooks"] = self._webhooks()
        admin = AdminApi(shared.tokens, self.authorizer, refusals, ended)
        return EngineParts(
            authenticator=shared.authenticator,
            authorizer=self.authorizer,
            routes=self.routes,
            auditor=self.auditor,
            limits=shared.limits,
            metrics=shared.metrics,
            clock=self._clock,
            headers=HeaderFilter((upstream.headers for upstream in config.upstreams), drop=config.listen.drop_headers),
            admission=[provider.instance for provider in config.admission],
            own_apis=[OwnApi(admin.prefix, admin.mapper, admin.handle)],
            self_reviews=SelfReviewHandler(self.authorizer, self._clock).handle,
            open_paths=open_paths,
            trusted_proxies=config.listen.trusted_proxies,
            ended=shared.ended,
            unconfirmed=config.authorization.unconfirmed.total_seconds(),
        )

    def _sign_in(self, refusals: sibling_news.EveryRefusal, ended: sibling_news.EveryEndedRequest) -> OpenPath:
        config, shared = self.config, self.shared
        login = Login(
            identity=config.identity,
            groups=config.groups,
            relevant_groups=self.authorizer.relevant_groups,
            tokens=shared.tokens,
            external_url=config.external_url,
            authorities_pem=config.authorities_pem,
            unchecked_session=config.tokens.unchecked_session,
            authorizer=self.authorizer,
            ended=ended,
            refusals=refusals,
            counts=shared.counts,
            clock=self._clock,
            on_event=SignInRecorder(self.auditor, shared.metrics, shared.ended, clock=self._clock).record,
        )
        handler = LoginHandler(login, config.listen.trusted_proxies)
        return OpenPath(handler.handle, records_refusals=True)

    def _webhooks(self) -> OpenPath:
        refused = RefusedReviewRecorder(self.auditor, clock=self._clock)
        handler = WebhookHandler(
            self.config.webhooks,
            self.shared.authenticator,
            self.authorizer,
            self._clock,
            on_refused=refused.record,
        )
        return OpenPath(handler.handle, repeats=True)

    async def _sweep(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self.shared.tokens.sweep()
