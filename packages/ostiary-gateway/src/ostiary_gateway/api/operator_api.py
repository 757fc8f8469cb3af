"""The operator API, below ``/apis/ostiary.dev/v1``.

GET    sessions[?user=..][&group=..]      POST  revocations         GET  decisions/<id>
DELETE sessions/<id>                      GET   revocations         POST subjectsearches
GET    replicas                           GET   quotas
DELETE revocations?type=..[&value=..]     lifts active revocations; ended sessions stay ended
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.errors import ProviderError
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.accounts.api import failure
from ostiary_gateway.api.operator_json import (
    decided_json,
    ended_json,
    marks_json,
    quotas_json,
    replicas_json,
    sessions_json,
    who_can_json,
)
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.http1 import asgi
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone
from ostiary_gateway.interfaces.admission import SubjectUsage
from ostiary_gateway.interfaces.token_store import RevocationKind, Session
from ostiary_gateway.proxy.builtin_endpoints import OwnPathsMapper
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.replicas.cluster_lookup import EveryEndedRequest, EveryRefusal
from ostiary_gateway.replicas.decision_feed import DecisionFeed
from ostiary_gateway.replicas.registry import Replicas
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.wire.ostiary_dev import (
    API_VERSION,
    PREFIX,
    decode_body,
    decode_revocation,
    decode_revocation_subject,
    decode_subject_search,
)

LARGEST_BODY = 64 * 1024
MOST_SESSIONS = 1000


class AdminApi:
    """Serve requests to the operator API with Starlette.

    There is no administrator by configuration: these are resources like any other, in the API group ``ostiary.dev``,
    and the policy decides who may list sessions or create a revocation. The engine has authorized each request.
    *more_routes* are those of service accounts, API tokens and API plugins.
    """

    prefix = PREFIX

    def __init__(
        self,
        tokens: Tokens,
        authorizer: Authorizer,
        refusals: EveryRefusal,
        ended: EveryEndedRequest | None = None,
        replicas: Replicas | None = None,
        more_routes: Sequence[Route] = (),
        quota_usage: Callable[[], Awaitable[list[SubjectUsage]]] | None = None,
        decisions: DecisionFeed | None = None,
    ) -> None:
        self._tokens = tokens
        self._authorizer = authorizer
        self._refusals = refusals
        self._ended = ended
        self._all_replicas = replicas
        self._quota_usage = quota_usage
        self._decisions = decisions
        self.mapper = OwnPathsMapper()
        self._application = Starlette(
            routes=[
                Route(f"{PREFIX}", self._resources, methods=["GET"]),
                Route(f"{PREFIX}/sessions", self._sessions, methods=["GET"]),
                Route(f"{PREFIX}/sessions/{{id}}", self._end_session, methods=["DELETE"]),
                Route(f"{PREFIX}/revocations", self._revoke, methods=["POST"]),
                Route(f"{PREFIX}/revocations", self._marks, methods=["GET"]),
                Route(f"{PREFIX}/revocations", self._undo, methods=["DELETE"]),
                Route(f"{PREFIX}/decisions/{{id}}", self._decision, methods=["GET"]),
                Route(f"{PREFIX}/replicas", self._replicas, methods=["GET"]),
                Route(f"{PREFIX}/quotas", self._quotas, methods=["GET"]),
                Route(f"{PREFIX}/subjectsearches", self._who_can, methods=["POST"]),
                *more_routes,
            ],
            exception_handlers={ProviderError: _could_not_ask},
        )
        # A redirect to the path without its slash would contain the host that the client sent.
        self._application.router.redirect_slashes = False

    async def handle(self, ctx: RequestContext) -> int:
        plan, token = ctx.plan, ctx.token
        headers = [(b"Audit-Id", ctx.audit_id.encode()), (b"Cache-Control", b"no-store")]
        try:
            return await asgi.serve(
                self._application,
                ctx.exchange,
                limit=LARGEST_BODY,
                state={
                    "user": plan.user,
                    "info": plan.info,
                    "session": token.session,
                    "impersonates": plan.actor is not None,
                    "delegation": token.delegation,
                    "address": ctx.exchange.connection.remote_address,
                },
                headers=headers,
            )
        except BodyTooLarge:
            ctx.exchange.respond(413, headers, b"the request is too large\n")
            return 413
        except ClientGone:
            return 0

    async def _resources(self, request: Request) -> Response:
        return JSONResponse(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": []}
        )

    async def _sessions(self, request: Request) -> Response:
        query, info = request.query_params, request.state.info
        try:
            is_selected = _selection(info, query)
        except ValueError as error:
            return failure(400, "BadRequest", str(error))
        if info.name:
            # The decision was about the session of this name, so no other may be shown.
            session = await self._tokens.store.session(info.name)
            sessions = [] if session is None else [session]
        else:
            sessions = list(
                await self._tokens.store.sessions(
                    username=query.get("user"), group=query.get("group"), limit=MOST_SESSIONS
                )
            )
        return JSONResponse(sessions_json(session for session in sessions if is_selected(session)))

    async def _end_session(self, request: Request) -> Response:
        ended = await self._tokens.revoke(
            RevocationKind.SESSION, request.path_params["id"], by=request.state.user.username
        )
        if not ended:
            return failure(404, "NotFound", "unknown session")
        return JSONResponse({"kind": "Revocation", "apiVersion": API_VERSION, "ended": ended})

    async def _revoke(self, request: Request) -> Response:
        try:
            kind, value, at = decode_revocation(decode_body(await request.body()))
            ended = await self._tokens.revoke(kind, value, by=request.state.user.username, at=at)
        except ValueError as error:
            return failure(400, "BadRequest", str(error))
        answer = {"kind": "Revocation", "apiVersion": API_VERSION, "by": request.state.user.username, "ended": ended}
        return JSONResponse(answer, status_code=201)

    async def _marks(self, request: Request) -> Response:
        return JSONResponse(marks_json(await self._tokens.store.marks()))

    async def _undo(self, request: Request) -> Response:
        try:
            kind, value = decode_revocation_subject(request.query_params)
        except ValueError as error:
            return failure(400, "BadRequest", str(error))
        undone = await self._tokens.undo(kind, value)
        if not undone:
            return failure(404, "NotFound", "unknown revocation")
        return JSONResponse({"kind": "Revocation", "apiVersion": API_VERSION, "undone": undone})

    async def _decision(self, request: Request) -> Response:
        decision_id = request.path_params["id"]
        refusal = await self._refusals.recall(decision_id)
        if refusal is None and self._decisions is not None:
            # Allowed decisions are recorded only while an operator watches them.
            decision = await self._decisions.recall(decision_id)
            refusal = None if decision is None else decision.remembered
        if refusal is None:
            outcome = await self._ended.recall(decision_id) if self._ended is not None else None
            if outcome is not None:
                return JSONResponse(ended_json(outcome))
            return failure(404, "NotFound", "unknown decision id")
        explanation = await self._authorizer.explain(refusal.attributes)
        return JSONResponse(decided_json(refusal, explanation))

    async def _replicas(self, request: Request) -> Response:
        query, info = request.query_params, request.state.info
        if info.verb != "list" or query.get("labelSelector") or query.get("fieldSelector"):
            return failure(400, "BadRequest", "replicas can only be listed, all of them: without selector or watch")
        return JSONResponse(replicas_json([] if self._all_replicas is None else await self._all_replicas.all()))

    async def _quotas(self, request: Request) -> Response:
        usage = [] if self._quota_usage is None else await self._quota_usage()
        return JSONResponse(quotas_json(usage))

    async def _who_can(self, request: Request) -> Response:
        try:
            info = decode_subject_search(decode_body(await request.body()))
        except ValueError as error:
            return failure(400, "BadRequest", str(error))
        result = self._authorizer.who_can(Attributes(UserInfo(""), info))
        return JSONResponse(who_can_json(result), status_code=201)


# --- requests and responses ---


def _selection(info: RequestInfo, query: QueryParams) -> Callable[[Session], bool]:
    """Return the filter of a session list, from the authorized request.

    Raises `ValueError` for an unsupported selector.
    """
    if info.verb != "list" or query.get("labelSelector"):
        raise ValueError("sessions can be listed by user, group and metadata.name; they have no labels and no watch")
    requirements = info.field_selector or ()
    unknown = [each for each in requirements if each.key != "metadata.name" or each.operator not in ("In", "NotIn")]
    if unknown or (query.get("fieldSelector") and info.field_selector is None):
        raise ValueError("the field selector of sessions supports only metadata.name")
    user, group = query.get("user"), query.get("group")

    def is_selected(session: Session) -> bool:
        return (
            all((session.id in each.values) == (each.operator == "In") for each in requirements)
            and user in (None, session.user.username)
            and (group is None or group in session.user.groups)
        )

    return is_selected


def _could_not_ask(request: Request, error: Exception) -> Response:
    return failure(503, "ServiceUnavailable", "a provider or the token store is unavailable; try again")
