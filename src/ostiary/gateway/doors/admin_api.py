"""The gateway's own API, below ``/apis/ostiary.dev/v1``: sessions, revocations, decisions and who may do what.

    GET    sessions[?user=..][&group=..]      POST  revocations         GET  decisions/<id>
    DELETE sessions/<id>                      GET   revocations         POST subjectsearches
    DELETE revocations?type=..[&value=..]     takes back the marks of revocations, not what they ended

Served by Starlette behind the listener. Nobody is an administrator by configuration: these are resources like any
other, in the API group ``ostiary.dev``, and the policy says who may list sessions or create a revocation. The engine
has decided before a request gets here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.core.tokens import Tokens, digest_hex
from ostiary.errors import ProviderError
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.doors.operator_json import (
    API_VERSION,
    decided_json,
    ended_json,
    marks_json,
    sessions_json,
    who_can_json,
)
from ostiary.gateway.http1 import asgi
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone
from ostiary.gateway.request.stages import Passage
from ostiary.gateway.siblings.messages import EveryEndedRequest, EveryRefusal
from ostiary.interfaces.attributes import RequestLine
from ostiary.interfaces.token_store import RevocationKind, Session
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary.wire.request import request_info

PREFIX = "/apis/ostiary.dev/v1"
LARGEST_BODY = 64 * 1024
MOST_SESSIONS = 1000
NOW = "now"


class AdminApi:
    """Answers requests to the gateway's own API, for whoever the policy allows it."""

    prefix = PREFIX

    def __init__(
        self, tokens: Tokens, authorizer: Authorizer, refusals: EveryRefusal, ended: EveryEndedRequest | None = None
    ) -> None:
        self._tokens = tokens
        self._authorizer = authorizer
        self._refusals = refusals
        self._ended = ended
        self.mapper = _Mapper()
        self._application = Starlette(
            routes=[
                Route(f"{PREFIX}", self._resources, methods=["GET"]),
                Route(f"{PREFIX}/sessions", self._sessions, methods=["GET"]),
                Route(f"{PREFIX}/sessions/{{id}}", self._end_session, methods=["DELETE"]),
                Route(f"{PREFIX}/revocations", self._revoke, methods=["POST"]),
                Route(f"{PREFIX}/revocations", self._marks, methods=["GET"]),
                Route(f"{PREFIX}/revocations", self._undo, methods=["DELETE"]),
                Route(f"{PREFIX}/decisions/{{id}}", self._decision, methods=["GET"]),
                Route(f"{PREFIX}/subjectsearches", self._who_can, methods=["POST"]),
            ],
            exception_handlers={ProviderError: _could_not_ask},
        )
        # A redirect to the path without its slash would name the host that the client wrote.
        self._application.router.redirect_slashes = False

    async def handle(self, passage: Passage) -> int:
        user, info = passage.plan.user, passage.plan.info
        headers = [(b"Audit-Id", passage.audit_id.encode()), (b"Cache-Control", b"no-store")]
        try:
            return await asgi.serve(
                self._application,
                passage.exchange,
                limit=LARGEST_BODY,
                state={"user": user, "info": info},
                headers=headers,
            )
        except BodyTooLarge:
            passage.exchange.respond(413, headers, b"the request is too large\n")
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
            return _failure(400, "BadRequest", str(error))
        if info.name:
            # It was decided on one session, by its name: no other one may be told.
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
            return _failure(404, "NotFound", "unknown session")
        return JSONResponse({"kind": "Revocation", "apiVersion": API_VERSION, "ended": ended})

    async def _revoke(self, request: Request) -> Response:
        try:
            kind, value, at = _revocation(await _json(request))
            ended = await self._tokens.revoke(kind, value, by=request.state.user.username, at=at)
        except ValueError as error:
            return _failure(400, "BadRequest", str(error))
        answer = {"kind": "Revocation", "apiVersion": API_VERSION, "by": request.state.user.username, "ended": ended}
        return JSONResponse(answer, status_code=201)

    async def _marks(self, request: Request) -> Response:
        return JSONResponse(marks_json(await self._tokens.store.marks()))

    async def _undo(self, request: Request) -> Response:
        try:
            kind, value = _subject(request.query_params)
        except ValueError as error:
            return _failure(400, "BadRequest", str(error))
        undone = await self._tokens.undo(kind, value)
        if not undone:
            return _failure(404, "NotFound", "unknown revocation")
        return JSONResponse({"kind": "Revocation", "apiVersion": API_VERSION, "undone": undone})

    async def _decision(self, request: Request) -> Response:
        named = request.path_params["id"]
        refusal = await self._refusals.recall(named)
        if refusal is None:
            outcome = await self._ended.recall(named) if self._ended is not None else None
            if outcome is not None:
                return JSONResponse(ended_json(outcome))
            return _failure(404, "NotFound", "unknown decision id")
        explanation = await self._authorizer.explain(refusal.attributes)
        return JSONResponse(decided_json(refusal, explanation))

    async def _who_can(self, request: Request) -> Response:
        try:
            info = asked(await _json(request))
        except ValueError as error:
            return _failure(400, "BadRequest", str(error))
        found = self._authorizer.who_can(Attributes(UserInfo(""), info))
        return JSONResponse(who_can_json(found), status_code=201)


class _Mapper:
    """Our own paths are spelled as Kubernetes spells its own."""

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info.request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return False


# --- what is asked ---


def _selection(info: RequestInfo, query: QueryParams) -> Callable[[Session], bool]:
    """Which sessions a list is about, by what was decided on; raises `ValueError` for a selector that we have not."""
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


async def _json(request: Request) -> Any:
    """The body as JSON; raises `ValueError`, also for what no text of ours can hold."""
    try:
        return json.loads(await request.body(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValueError("the body is not valid JSON") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(constant)


def asked(value: Any) -> RequestInfo:
    """What a question names: verb, and a resource or a path. Raises `ValueError`."""
    fields = _object(value)
    text = {
        key: _text(fields, key)
        for key in ("verb", "group", "resource", "subresource", "namespace", "name", "path", "upstream")
    }
    if not text["verb"] or bool(text["resource"]) == bool(text["path"]):
        raise ValueError("a request needs a verb, and either a resource or a path")
    if text["path"]:
        return RequestInfo(text["verb"], "", text["path"], upstream=text["upstream"])
    return RequestInfo(
        text["verb"],
        "",
        "",
        is_resource=True,
        api_group=text["group"],
        namespace=text["namespace"],
        resource=text["resource"],
        subresource=text["subresource"],
        name=text["name"],
        upstream=text["upstream"],
    )


def _revocation(value: Any) -> tuple[RevocationKind, str, datetime | None]:
    fields = _object(value)
    moment = _text(fields, "before")
    if fields.get("type") == RevocationKind.BEFORE.value and not moment:
        raise ValueError('before needs a time, or "now"')
    # By number, and not by a clock that may be another than ours.
    return *_subject(fields), _time(moment) if moment and moment != NOW else None


def _subject(fields: Mapping[str, Any]) -> tuple[RevocationKind, str]:
    """What a revocation is about."""
    try:
        kind = RevocationKind(_text(fields, "type"))
    except ValueError:
        names = ", ".join(kind.value for kind in RevocationKind)
        raise ValueError(f"the type must be one of {names}") from None
    name = _text(fields, "value")
    if (kind is RevocationKind.BEFORE) == bool(name):
        raise ValueError("before has no value" if name else "a value is missing")
    return kind, digest_hex(name) if kind is RevocationKind.TOKEN else name


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("the time is not RFC 3339") from None
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("the time is out of range") from None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("the body is not a JSON object")
    return value


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not a string")
    if any(character < " " or "\x7f" <= character < "\xa0" or "\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{key} contains a character that is not allowed in a name")
    return value


def _failure(code: int, reason: str, message: str) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return JSONResponse({**body, "message": message, "reason": reason, "code": code}, status_code=code)


def _could_not_ask(request: Request, error: Exception) -> Response:
    return _failure(503, "ServiceUnavailable", "a provider or the token store is unavailable; try again")
