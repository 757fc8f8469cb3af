"""The configuration, opened: everything of one worker that lives and dies with it.

Called by the worker. Builds the engine and what it is made of, runs what goes on in the background (following
revocations, sweeping the store, watching files), and closes it all. A reload opens another one beside it; the two share
the token store and the tokens in use, so that nobody is signed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from ostiary import __version__
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.counting.counts import MachineCounts, MemoryCounts
from ostiary.core.tokens import Tokens
from ostiary.errors import AuditUnavailable, OstiaryError
from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.audit.auditor import Auditor
from ostiary.gateway.audit.ended_requests import EndedRequest, EndedRequests
from ostiary.gateway.audit.sinks.file import FileSink
from ostiary.gateway.audit.sinks.sink import Sink
from ostiary.gateway.audit.sinks.stdout import StdoutSink
from ostiary.gateway.audit.sinks.webhook import WebhookSink
from ostiary.gateway.authenticate.authenticator import Authenticator
from ostiary.gateway.authenticate.revocation_file import RevocationFile
from ostiary.gateway.authenticate.store_health import StoreHealth
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.authorize.refusals import Refusals
from ostiary.gateway.config import settings
from ostiary.gateway.config.providers import close_all
from ostiary.gateway.config.rules import is_open_to_all
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.doors.admin_api import AdminApi
from ostiary.gateway.doors.self_review_handler import SelfReviewHandler
from ostiary.gateway.doors.webhooks.handler import WebhookHandler
from ostiary.gateway.http1.headers import HeaderFilter
from ostiary.gateway.login.door import Login, LoginEvent, LoginEventKind, log_event
from ostiary.gateway.login.http_adapter import LoginHandler
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.request.engine import Engine, EngineParts
from ostiary.gateway.request.stages import OpenPath, OwnApi
from ostiary.gateway.siblings import messages as sibling_news
from ostiary.gateway.siblings.channel import NoSiblings, Siblings
from ostiary.gateway.upstream.health import watch_credential, watch_health
from ostiary.gateway.upstream.upstreams import Routes, Upstream, client_context
from ostiary.interfaces.shared_counts import ImmediateCounts
from ostiary.interfaces.token_store import Revocation, RevocationKind
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary.wire.audit import DEFAULT_POLICY, Policy, load_policy

log = logging.getLogger("ostiary.gateway")

# How long to wait before something that runs in the background is tried again after it failed.
RETRY_SECONDS = 1.0


@dataclass(slots=True)
class Shared:
    """What outlives a reload: who is signed in, what was counted, and what the ids that people were told stand for."""

    tokens: Tokens
    authenticator: Authenticator
    limits: Limits
    metrics: Metrics
    store_health: StoreHealth
    counts: ImmediateCounts
    refusals: Refusals
    ended: EndedRequests
    siblings: Siblings = field(default_factory=NoSiblings)


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
        self.shared = shared or _shared(config, clock, counts or MemoryCounts(clock=clock))
        self.auditor = Auditor(
            _audit_policy(config.audit),
            _sinks(config.audit, clock, self.shared.counts),
            clock=clock,
            blocking=config.audit.blocking,
            tells_upstream=len(config.upstreams) > 1,
        )
        self.authorizer = Authorizer.from_settings(config.authorization, clock=clock, refusals=self.shared.refusals)
        self.routes = Routes([Upstream(upstream, loop, clock) for upstream in config.upstreams])
        self.engine = Engine(self._parts(), loop)
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def start(self) -> None:
        """Begin what runs in the background."""
        shared, tokens = self.shared, self.config.tokens
        if self._owns_store:
            self._keep_running("following revocations", shared.authenticator.follow_revocations)
            self._keep_running("writing the time into the token store", shared.store_health.run)
        self._keep_running("sweeping the token store", lambda: self._sweep(tokens.sweep.total_seconds()))
        if tokens.revocation_file is not None:
            file = RevocationFile(tokens.revocation_file, shared.tokens, clock=self._clock)
            self._keep_running("watching the revocation file", file.run)
        for upstream in self.routes.upstreams:
            if upstream.settings.health is not None:
                work = partial(watch_health, upstream, upstream.settings.health)
                self._keep_running(f"checking the health of the upstream {upstream.name}", work)
            if upstream.knows_us:
                work = partial(watch_credential, upstream)
                self._keep_running(f"checking the gateway's credential at the upstream {upstream.name}", work)

    def adopt(self, old: App) -> None:
        """Go on in the place of *old*, whose background work has been stopped."""
        self._owns_store = True
        # What was worked out with the old policy is worked out anew, also for what is open.
        old.engine.hand_over(self.engine)

    def tick(self, now: float) -> None:
        """About once a second: end what waited too long."""
        self.routes.tick(now)
        self.engine.tick()

    async def stop_background(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, *, keep_shared: bool = False) -> None:
        """Let go of everything; with *keep_shared* of all but what the next configuration goes on with."""
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

    def answer_sibling(self, question: str, data: Any) -> Any:
        """What another worker of this gateway asks or tells."""
        match question:
            case sibling_news.UNSAVED:
                revocation = sibling_news.unsaved_from_json(data)
                self.shared.tokens.unsaved.add(revocation)
                self.shared.authenticator.end_at_once(revocation)
            case sibling_news.REFUSAL:
                refusal = self.authorizer.recall(data)
                return None if refusal is None else sibling_news.refusal_json(refusal)
            case sibling_news.REFUSALS:
                return [sibling_news.refusal_json(refusal) for refusal in self.authorizer.recent_refusals(data)]
            case sibling_news.ENDED:
                request = self.shared.ended.recall(data)
                return None if request is None else sibling_news.ended_json(request)
        return None

    def hand_over(self) -> Shared:
        """What outlives a reload, for the next configuration."""
        return self.shared

    # --- building ---

    def _parts(self) -> EngineParts:
        config, shared = self.config, self.shared
        refusals = sibling_news.EveryRefusal(self.authorizer, lambda: shared.siblings)
        every_ended = sibling_news.EveryEndedRequest(shared.ended, lambda: shared.siblings)
        login = Login(
            identity=config.identity,
            groups=config.groups,
            relevant_groups=self.authorizer.relevant_groups,
            tokens=shared.tokens,
            external_url=config.external_url,
            authorities_pem=config.authorities_pem,
            unchecked_session=config.tokens.unchecked_session,
            authorizer=self.authorizer,
            ended=every_ended,
            refusals=refusals,
            counts=shared.counts,
            clock=self._clock,
            on_event=self._on_login,
        )
        sign_in = LoginHandler(login, config.listen.trusted_proxies)
        open_paths = {b"/auth": OpenPath(sign_in.handle, records_refusals=True)}
        if config.webhooks.enabled:
            webhooks = WebhookHandler(
                config.webhooks, shared.authenticator, self.authorizer, self._clock, on_refused=self._on_refused
            )
            open_paths[b"/webhooks"] = OpenPath(webhooks.handle, repeats=True)
        admin = AdminApi(shared.tokens, self.authorizer, refusals, every_ended)
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

    def _on_refused(self, attributes: Attributes, decision: Decision, decision_id: str) -> None:
        """A cluster records its requests itself; what we refuse is recorded here, so that its id can be explained."""
        uri = attributes.request.path or "/webhooks/subject-access-review"
        prepared = self.auditor.prepare(attributes.request, attributes.user, request_uri=uri, decision=decision)
        if prepared is None:
            return
        now = self._clock.monotonic()
        try:
            prepared.complete(decision_id, self.auditor.origin(()), 403, received_at=now, at=now)
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    def _on_login(self, event: LoginEvent) -> None:
        """Every sign-in, and every one that came to nothing, is logged, counted and recorded."""
        log_event(event)
        self.shared.metrics.logins.inc(event.provider, event.kind.value)
        user = UserInfo(event.username) if event.username else None
        if event.status >= 400 or event.kind is LoginEventKind.REFUSED:
            self.shared.ended.record(ended_login(event, self._clock.now()))
        info = RequestInfo(event.method.lower() or "post", event.method or "POST", event.path or "/auth")
        # Without the query: there may be a code in it.
        prepared = self.auditor.prepare(info, user, request_uri=info.path)
        if prepared is None:
            return
        now = self._clock.monotonic()
        notes = {
            "login": event.kind.value,
            "provider": event.provider,
            "session": event.session,
            "claimed-user": event.claimed,
        }
        try:
            prepared.complete_with(
                event.id or self.auditor.audit_id(),
                self.auditor.origin((event.remote_address,)),
                event.status,
                received_at=now,
                at=now,
                message=event.reason,
                annotations={f"ostiary.dev/{key}": value for key, value in notes.items() if value},
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored", extra={"cause": error.cause})

    # --- in the background ---

    def _keep_running(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(self._loop.create_task(_again_and_again(what, work)))

    async def _sweep(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self.shared.tokens.sweep()


def ended_login(event: LoginEvent, at: datetime) -> EndedRequest:
    return EndedRequest(
        event.id,
        at,
        event.status,
        event.reason,
        event.method,
        event.path,
        event.remote_address,
        event.username or event.claimed,
        event.kind.value,
        event.provider,
    )


async def _again_and_again(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Background work must not end because it failed once: a store may be back in a moment."""
    while True:
        try:
            await work()
        except Exception as error:
            cause = error.cause or error.summary if isinstance(error, OstiaryError) else type(error).__name__
            log.error("%s failed; retrying", what, extra={"cause": cause})
        await asyncio.sleep(RETRY_SECONDS)


def _shared(config: GatewayConfig, clock: Clock, counts: ImmediateCounts) -> Shared:
    tokens = Tokens(
        config.store.instance,
        clock=clock,
        lifetime=config.tokens.lifetime,
        session_lifetime=config.tokens.session,
        sessions_per_user=config.tokens.sessions_per_user,
    )
    limits, metrics = Limits(config.limits, clock=clock, counts=counts), Metrics(version=__version__)

    def revoked(revocation: Revocation, cut: int) -> None:
        metrics.revocations.inc(revocation.kind.value)
        recorded_at = revocation.recorded_at or clock.now()
        metrics.revocation_lag.observe(max(0.0, (clock.now() - recorded_at).total_seconds()))
        extra = {"kind": revocation.kind.value, **_revoked(revocation), "by": revocation.by, "streams": cut}
        log.info("a revocation took effect", extra=extra)

    authenticator = Authenticator(
        tokens,
        clock,
        limits=limits,
        on_revoked=revoked,
        max_stale=config.tokens.max_stale.total_seconds(),
    )
    store_health = StoreHealth(tokens, clock)
    metrics.default_configuration.set(1 if is_open_to_all(config) else 0)
    metrics.open_streams.read_from(lambda: limits.streams.open_in_all)
    metrics.tokens_live.read_from(lambda: authenticator.size)
    metrics.queued.read_from(lambda: limits.seats.queued)
    metrics.in_flight.read_from(lambda: limits.seats.in_flight)
    metrics.revocations_age.read_from(lambda: authenticator.feed.age)
    metrics.store_failing.read_from(lambda: 1 if store_health.trouble else 0)
    refusals, ended = Refusals(clock=clock), EndedRequests(clock=clock)
    shared = Shared(tokens, authenticator, limits, metrics, store_health, counts, refusals, ended)

    def unsaved(revocation: Revocation) -> None:
        log.error(
            "a revocation could not be stored: it is in effect in this gateway; retrying",
            extra={"kind": revocation.kind.value, **_revoked(revocation), "by": revocation.by},
        )
        authenticator.end_at_once(revocation)
        store_health.hurry()
        shared.siblings.tell(sibling_news.UNSAVED, sibling_news.unsaved_json(revocation))

    tokens.on_unsaved = unsaved
    return shared


def _revoked(revocation: Revocation) -> dict[str, str]:
    """What was revoked, as a field of the log."""
    match revocation.kind:
        case RevocationKind.TOKEN:
            # Enough to find it in the store by; the whole digest is nobody's business.
            return {"digest": revocation.value[:8]}
        case RevocationKind.SESSION:
            return {"session_id": revocation.value}
        case RevocationKind.BEFORE:
            return {"before": "now" if revocation.at is None else revocation.at.isoformat()}
        case kind:
            return {kind.value: revocation.value}


def _audit_policy(configured: settings.Audit) -> Policy:
    return DEFAULT_POLICY if configured.policy is None else load_policy(configured.policy)


def _sinks(configured: settings.Audit, clock: Clock, counts: ImmediateCounts) -> list[Sink]:
    sinks: list[Sink] = []
    if configured.log is not None:
        file = FileSink(configured.log.path, blocking=configured.blocking, fsync=configured.log.fsync, clock=clock)
        file.open()
        sinks.append(file)
    if configured.stdout:
        # With several workers, what they count in is what they share.
        guard = counts.line_guard() if isinstance(counts, MachineCounts) else None
        sinks.append(StdoutSink(blocking=configured.blocking, guard=guard))
    if configured.webhook is not None:
        sinks.append(_webhook_sink(configured.webhook, blocking=configured.blocking, clock=clock))
    return sinks


def _webhook_sink(hook: settings.AuditWebhook, *, blocking: bool, clock: Clock) -> WebhookSink:
    # Imported only by those who use it: it is as large as the rest of the gateway.
    import httpx2

    context = client_context(hook.tls) if hook.url.startswith("https:") else True
    return WebhookSink(
        hook.url,
        client=httpx2.AsyncClient(verify=context, trust_env=False),
        token_file=hook.token_file,
        blocking=blocking,
        buffer_events=hook.buffer,
        batch_events=hook.batch,
        batch_seconds=hook.wait.total_seconds(),
        requests_per_second=hook.requests_per_second,
        burst=hook.burst,
        clock=clock,
    )
