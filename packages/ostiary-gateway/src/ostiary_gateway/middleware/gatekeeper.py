"""Authenticate and authorize the requests of an API that runs without the proxy.

    check:  token -> cached, or looked up  ->  plan cached, or request attributes read and authorized  ->  Access
            anything else raises `AccessRefused`, which holds the response to send

The steps and responses are those of the proxy (`ostiary_gateway.proxy.engine`), with the same providers and the same
audit events.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import Delegation
from ostiary.core.yaml import Json
from ostiary.errors import AccessRefused, AuditUnavailable, ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.auditor import AuditIds, Auditor, Prepared
from ostiary_gateway.audit.setup import open_auditor
from ostiary_gateway.authentication.bearer_token import bearer
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED, CachedDecision
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.token_scope import refusal_by_scope
from ostiary_gateway.config.providers import close_all
from ostiary_gateway.interfaces.attributes import AttributesMapper
from ostiary_gateway.middleware import access as refusing
from ostiary_gateway.middleware.access import Access, Admitted, BackendPlan, BackendPlans, question_about
from ostiary_gateway.middleware.authenticator import LONGEST_TOKEN, ActionVerifier, BackendAuthenticator
from ostiary_gateway.middleware.bearer import Bearer, CachedBearer
from ostiary_gateway.middleware.config import BackendConfig, load, loads
from ostiary_gateway.middleware.gateway_client import GatewayQuestions
from ostiary_gateway.middleware.jwt_verifier import JwtVerifier
from ostiary_gateway.middleware.request import BackendQuestions, BackendRequest, PathsWithoutToken
from ostiary_gateway.sessions import digest

log = logging.getLogger("ostiary.backend")


class BackendRecords:
    """Audit events and log lines of one API.

    *auditor* is None without the section ``audit``: only rejected and failed requests are then logged.
    """

    def __init__(self, auditor: Auditor | None, clock: Clock) -> None:
        self._auditor = auditor
        self._monotonic = clock.monotonic
        self.new_id = AuditIds().take if auditor is None else auditor.audit_id

    def prepare(
        self,
        request: BackendRequest,
        info: RequestInfo,
        user: UserInfo | None,
        decision: Decision | None = None,
        delegation: Delegation | None = None,
        *,
        long_running: bool = False,
    ) -> Prepared | None:
        """Return what the audit events of such requests share, or None if auditing is off."""
        if self._auditor is None:
            return None
        return self._auditor.prepare(
            info,
            user,
            request_uri=request.target.decode("latin-1"),
            decision=decision,
            long_running=long_running,
            delegation=delegation,
        )

    def record_receipt(self, audit: Prepared, request: BackendRequest, request_id: str, received_at: float) -> None:
        """Record that a request is admitted. Raises `AuditUnavailable`."""
        if audit.wants_received:
            audit.record_received(request_id, self._origin(request), received_at)

    def record_end(
        self, audit: Prepared, request: BackendRequest, request_id: str, status: int, received_at: float
    ) -> None:
        """Record the response of a request."""
        at = self._monotonic()
        try:
            audit.complete(request_id, self._origin(request), status, received_at=received_at, at=at)
        except AuditUnavailable as error:
            # The response is already being sent. The next request fails before it has any effect.
            log.error("an audit event could not be stored: %s", error.cause)

    def record_panic(self, audit: Prepared, request: BackendRequest, request_id: str, received_at: float) -> None:
        """Record that the application failed while it served the request."""
        try:
            audit.record_panic(request_id, self._origin(request), received_at=received_at, at=self._monotonic())
        except AuditUnavailable as error:
            log.error("an audit event could not be stored: %s", error.cause)

    def record_refusal(
        self,
        request: BackendRequest,
        refusal: AccessRefused,
        request_id: str,
        received_at: float,
        user: UserInfo | None = None,
    ) -> None:
        """Log and record a request that failed before a policy decision.

        *user* is None if the request is unauthenticated.
        """
        self.log_refusal(refusal, request_id, "" if user is None else user.username)
        path = request.target.partition(b"?")[0].decode("latin-1")
        audit = self.prepare(request, RequestInfo(request.method.lower(), request.method, path), user)
        if audit is None:
            return
        try:
            audit.complete_with(
                request_id,
                self._origin(request),
                refusal.status,
                received_at=received_at,
                at=self._monotonic(),
                message=refusal.cause or refusal.summary,
            )
        except AuditUnavailable as error:
            log.error("an audit event could not be stored: %s", error.cause)

    def log_refusal(self, refusal: AccessRefused, request_id: str, username: str = "") -> None:
        """Log a rejected request for the operator. The response has the same request id."""
        level = logging.ERROR if refusal.status >= 500 else logging.INFO
        extra = {"request_id": request_id, "status": refusal.status, "user": username}
        log.log(
            level, "request %s: %s (%d): %s", request_id, refusal.summary, refusal.status, refusal.cause, extra=extra
        )

    def _origin(self, request: BackendRequest) -> str:
        assert self._auditor is not None, "there is an event to write"
        return self._auditor.origin((request.remote,), request.user_agent.decode("latin-1"))

    async def close(self) -> None:
        if self._auditor is not None:
            await self._auditor.close()


class Gatekeeper:
    """Admit requests, or raise `AccessRefused` with the response to send.

    An instance belongs to one event loop; use `SyncGatekeeper` from threads. *mapper* overrides the configured
    ``attributes``. Raises `ConfigurationError` or `TransportError` if the configuration cannot be used, and
    `AuditUnavailable` if events cannot be stored.
    """

    def __init__(
        self, config: BackendConfig, *, mapper: AttributesMapper | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._config = config
        self._upstream = config.upstream
        self._monotonic = clock.monotonic
        self._questions = BackendQuestions(mapper or config.mapper, config.upstream)
        self._open_paths = PathsWithoutToken(config.open_paths)
        self._authorizer = Authorizer.from_settings(config.authorization, clock=clock)
        self._authenticator = BackendAuthenticator(
            GatewayQuestions(config.gateway, clock),
            None if config.jwt is None else JwtVerifier(config.jwt, config.jwt.audiences, config.gateway, clock),
            None if config.actions is None else ActionVerifier(config.actions, config.gateway, clock),
            max_stale=config.gateway.max_stale.total_seconds(),
            clock=clock,
        )
        auditor = None
        if config.audit is not None:
            auditor = open_auditor(config.audit, config.audit_sinks, clock, tells_upstream=bool(config.upstream))
        self._records = BackendRecords(auditor, clock)
        self._plans = BackendPlans()
        self._authorizes = config.authorize_every_request
        # Whether to accept requests that the gateway redirects here: see `BackendRequest.take_action`.
        self.accepts_actions = config.actions is not None
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, mapper: AttributesMapper | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Load the configuration from *path* (``backend.yaml``). Raises `ConfigurationError` with all its errors."""
        return cls(load(path, clock=clock), mapper=mapper, clock=clock)

    @classmethod
    def from_mapping(
        cls,
        settings: Mapping[str, Json],
        *,
        directory: str | os.PathLike[str] = ".",
        mapper: AttributesMapper | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Like `from_file`, but takes the contents of the file. Paths are relative to *directory*."""
        return cls(loads(json.dumps(settings), directory=directory, clock=clock), mapper=mapper, clock=clock)

    def is_open(self, target: bytes) -> bool:
        """Report whether the path needs no token."""
        return self._open_paths.include(target)

    def recall(self, request: BackendRequest) -> Access | None:
        """Return the access if the token and an allowing decision are cached and still valid.

        Returns None otherwise: call `check`.
        """
        presented = request.token
        if presented is None or request.mistake or len(presented) > LONGEST_TOKEN:
            return None
        token = self._authenticator.recall(digest(presented))
        if token is None:
            return None
        plan = self._plans.find(token, request)
        if plan is None or not plan.ruling.allowed or not self._still_holds(plan):
            return None
        access = Access(request, self._records.new_id(), self._monotonic(), token, plan, self._upstream)
        if plan.audit is not None:
            self._record_receipt(access)
        return access.bind(self.require_also)

    async def check(self, request: BackendRequest) -> Access:
        """Authenticate and authorize *request*. Raises `AccessRefused` if it is not admitted."""
        access = self.recall(request)
        if access is not None:
            return access
        self._follow_revocations()
        request_id, received_at = self._records.new_id(), self._monotonic()
        user = None
        try:
            if request.action is not None:
                token, plan = await self._accept_action(request, request_id)
                user = token.bearer.user
            else:
                token = await self._identify(request, request_id)
                user = token.bearer.user
                plan = await self._plan(request, request_id, token)
            if token.is_revoked:
                # The token was revoked while the policy was evaluated.
                raise refusing.unauthorized(request_id, attempted=True)
        except AccessRefused as refusal:
            self._records.record_refusal(request, refusal, request_id, received_at, user)
            raise
        access = Access(request, request_id, received_at, token, plan, self._upstream)
        if not plan.ruling.allowed:
            denied = self._refuse(Attributes(user, plan.info), plan.ruling, request_id)
            self.finish(access, denied.status)
            raise denied
        self._record_receipt(access)
        return access.bind(self.require_also)

    def finish(self, admitted: Admitted, status: int) -> None:
        """Record that the response has *status*."""
        audit = admitted.plan.audit
        if audit is not None:
            self._records.record_end(audit, admitted.request, admitted.request_id, status, admitted.received_at)

    def fail(self, admitted: Admitted) -> None:
        """Record that the application failed and the status of the response is unknown."""
        audit = admitted.plan.audit
        if audit is not None:
            self._records.record_panic(audit, admitted.request, admitted.request_id, admitted.received_at)

    # --- without a request ---

    async def authenticate(self, authorization: str | bytes | None) -> Bearer:
        """Return the user of the token in an ``Authorization`` header. Raises `AccessRefused`."""
        self._follow_revocations()
        header = authorization.encode("latin-1", "replace") if isinstance(authorization, str) else authorization
        request = BackendRequest("", b"", None if header is None else bearer(header))
        request_id = self._records.new_id()
        try:
            return (await self._identify(request, request_id)).bearer
        except AccessRefused as refusal:
            self._records.log_refusal(refusal, request_id)
            raise

    async def require(
        self,
        bearer: Bearer,
        verb: str,
        *,
        resource: str = "",
        subresource: str = "",
        api_group: str = "",
        namespace: str = "",
        name: str = "",
        path: str = "",
    ) -> None:
        """Raise `AccessRefused` unless the policy allows *bearer* this action.

        Without a *resource*, *path* is checked.
        """
        info = question_about(
            self._upstream,
            verb,
            resource=resource,
            subresource=subresource,
            api_group=api_group,
            namespace=namespace,
            name=name,
            path=path,
        )
        await self._require_of(bearer, info, self._records.new_id())

    async def close(self) -> None:
        """Stop following revocations, and close connections and providers."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        await self._authenticator.close()
        await self._records.close()
        sinks = {id(sink.instance) for sink in self._config.audit_sinks}
        await close_all(each for each in self._config.instances if id(each) not in sinks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- authentication ---

    async def _identify(self, request: BackendRequest, request_id: str) -> CachedBearer:
        if request.mistake:
            raise refusing.bad_request(request_id, request.mistake)
        presented = request.token
        if presented is None:
            raise refusing.unauthorized(request_id, attempted=False)
        try:
            token = None if len(presented) > LONGEST_TOKEN else await self._find(presented, request.remote)
        except ProviderError as error:
            raise refusing.unavailable(request_id, _cause(error)) from None
        if token is None:
            raise refusing.unauthorized(request_id, attempted=True)
        return token

    async def _find(self, presented: bytes, address: str) -> CachedBearer | None:
        token_digest = digest(presented)
        token = self._authenticator.recall(token_digest)
        return await self._authenticator.find(presented, token_digest, address) if token is None else token

    async def _accept_action(self, request: BackendRequest, request_id: str) -> tuple[CachedBearer, BackendPlan]:
        """Return the plan of a request that the gateway has allowed and redirected here. No policy is evaluated."""
        if request.mistake:
            raise refusing.bad_request(request_id, request.mistake)
        try:
            proof = await self._authenticator.find_action(request)
        except ProviderError as error:
            raise refusing.unavailable(request_id, _cause(error)) from None
        if proof is None:
            raise refusing.unauthorized(request_id, attempted=True)
        token, id_at_gateway = proof
        required = self._required(request, request_id)
        ruling = CachedDecision(Verdict.ALLOW, f"the gateway allowed it, in request {id_at_gateway}")
        audit = self._records.prepare(request, required[0], token.bearer.user, ruling)
        return token, BackendPlan(required, ruling, audit)

    def _follow_revocations(self) -> None:
        """Start the task that follows revocations, or restart it.

        Without it the cache goes stale and every request waits for the list.
        """
        if self._following is None or self._following.done():
            self._following = asyncio.get_running_loop().create_task(self._authenticator.follower.run())

    # --- authorization ---

    async def _plan(self, request: BackendRequest, request_id: str, token: CachedBearer) -> BackendPlan:
        plan = self._plans.find(token, request)
        if plan is not None and self._still_holds(plan):
            return plan
        required = self._required(request, request_id)
        ruling = await self._ruling(token.bearer, required, request_id, with_policy=self._authorizes)
        audit = self._records.prepare(
            request,
            required[0],
            token.bearer.user,
            ruling,
            token.bearer.delegation,
            long_running=self._questions.is_long_running(required[0]),
        )
        plan = BackendPlan(required, ruling, audit)
        self._plans.keep(token, request, plan)
        return plan

    def _required(self, request: BackendRequest, request_id: str) -> tuple[RequestInfo, ...]:
        try:
            return self._questions.requirements_of(request)
        except ValueError as error:
            raise refusing.bad_request(request_id, str(error)) from None

    def _still_holds(self, plan: BackendPlan) -> bool:
        return not self._authorizes or self._authorizer.is_valid(plan.ruling)

    async def _ruling(
        self, bearer: Bearer, required: Sequence[RequestInfo], request_id: str, *, with_policy: bool = True
    ) -> CachedDecision:
        """Start the task that follows revocations, or restart it.

        Without it, every request would soon look its token up at the gateway.
        """
        beyond = refusal_by_scope(bearer.delegation, required, generation=self._authorizer.generation)
        if beyond is not None or not with_policy:
            return beyond or NOTHING_ASKED
        questions = [Attributes(bearer.user, info) for info in required]
        try:
            ruling = self._authorizer.decide(*questions)
            return await self._authorizer.authorize(*questions) if ruling is None else ruling
        except ProviderError as error:
            raise refusing.undecided(request_id, _cause(error)) from None

    async def require_also(self, admitted: Admitted, info: RequestInfo) -> None:
        """Authorize one more action for an admitted request, on behalf of `Access.require`. Raises `AccessRefused`."""
        if admitted.token.is_revoked:
            raise refusing.unauthorized(admitted.request_id, attempted=True)
        await self._require_of(admitted.bearer, info, admitted.request_id)

    async def _require_of(self, bearer: Bearer, info: RequestInfo, request_id: str) -> None:
        try:
            ruling = await self._ruling(bearer, (info,), request_id)
        except AccessRefused as refusal:
            self._records.log_refusal(refusal, request_id, bearer.user.username)
            raise
        if not ruling.allowed:
            raise self._refuse(Attributes(bearer.user, info), ruling, request_id)

    def _refuse(self, attributes: Attributes, ruling: CachedDecision, request_id: str) -> AccessRefused:
        refusal = refusing.forbidden(request_id, attributes, ruling)
        self._records.log_refusal(refusal, request_id, attributes.user.username)
        return refusal

    # --- audit ---

    def _record_receipt(self, access: Access) -> None:
        audit = access.plan.audit
        if audit is None:
            return
        try:
            self._records.record_receipt(audit, access.request, access.request_id, access.received_at)
        except AuditUnavailable as error:
            refusal = refusing.undecided(access.request_id, _cause(error))
            self._records.log_refusal(refusal, access.request_id, access.user.username)
            raise refusal from None


def _cause(error: ProviderError) -> str:
    return f"{error.summary}: {error.cause}{f' ({error.hint})' if error.hint else ''}" if error.cause else error.summary
