"""Forward the requests of one listener to its cluster, signed as the user of the kubeconfig.

head -> is it for this listener, and does the client have the token?
     -> the client's credential is replaced by the user's (`cluster`)
     -> the bytes go both ways (`ProxiedRequest`): bodies, watches, WebSocket and SPDY
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary.wire.status import failure
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import BadHeader, FilteredHeaders, HeaderFilter
from ostiary_gateway.http1.request_head import RequestHead, framing_lines
from ostiary_gateway.http1.response import FailureKind, UpstreamLost
from ostiary_gateway.local_proxy.cluster import ConnectedCluster, SignedRequest
from ostiary_gateway.local_proxy.loopback_tokens import LoopbackTokens
from ostiary_gateway.local_proxy.record import ConnectRecord
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.proxy.proxied_request import ProxiedRequest

# A loopback port is open to every user of the machine, and to every page in every browser. The token keeps them out.
# Host and origin are checked too, so that a browser does not even get a response: with DNS rebinding a page reaches the
# port under a name of its own, and simple requests (CORS) are sent without a preflight.

_BEARER = b"bearer "


class RequestRefusal(NamedTuple):
    """A rejected request. `message` is sent to the client, and contains no secret."""

    status: int
    reason: str
    message: str


WRONG_HOST = RequestRefusal(421, "Forbidden", "this is the proxy of ostiary connect, and no other server")
BROWSER = RequestRefusal(403, "Forbidden", "the proxy of ostiary connect serves no web pages and no browsers")
UNAUTHORIZED = RequestRefusal(401, "Unauthorized", "Unauthorized")
NOT_A_PATH = RequestRefusal(400, "BadRequest", "the target of the request is not a path")


def refusal_for(
    request: RequestHead, authorization: bytes | None, *, host: bytes, tokens: LoopbackTokens
) -> RequestRefusal | None:
    """Return why *request* is rejected at the listener *host* (address and port), or None if it is accepted."""
    if request.host.lower() != host:
        return WRONG_HOST
    if _is_from_page(request, b"https://" + host):
        return BROWSER
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return UNAUTHORIZED
    if not tokens.accepts(authorization[len(_BEARER) :].strip(b" \t")):
        return UNAUTHORIZED
    return None if request.target.startswith(b"/") else NOT_A_PATH


def _is_from_page(request: RequestHead, own_origin: bytes) -> bool:
    """Report whether a web page sent the request.

    Browsers set these two headers, and pages cannot change them (RFC 6454; Fetch Metadata, W3C). Some WebSocket
    libraries send the server's own origin with every handshake. No page of that origin exists.
    """
    for name, value in request.headers:
        lower = name.lower()
        if lower == b"sec-fetch-site" or (lower == b"origin" and value.strip(b" \t").lower() != own_origin):
            return True
    return False


log = logging.getLogger("ostiary.connect")

_JSON = [(b"Content-Type", b"application/json")]
# The impersonation headers of kube-apiserver.
_IMPERSONATE_USER = b"impersonate-user"
_IMPERSONATE = (_IMPERSONATE_USER, b"impersonate-group", b"impersonate-uid")
_IMPERSONATE_EXTRA = b"impersonate-extra-"
# No timeout: the request lasts as long as the client's connection.
_NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True)
class Sent:
    """A forwarded request, and the exchange with the client."""

    exchange: Exchange
    signed: SignedRequest


class Forwarding:
    """Forward the requests of one listener. *note_use* is called for each request with a valid token."""

    def __init__(
        self,
        record: ConnectRecord,
        cluster: ConnectedCluster,
        tokens: LoopbackTokens,
        clock: Clock,
        note_use: Callable[[], None],
    ) -> None:
        self._name = record.name
        self._host = record.host.encode()
        self._cluster = cluster
        self._tokens = tokens
        self._filter = HeaderFilter()
        self._log = RepeatedLog(log, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._note_use = note_use
        self.requests = 0
        # In-flight requests. Connections do not count: any user of this machine can hold one open.
        self.open = 0

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        try:
            scanned = self._filter.scan(request.headers)
            impersonation = _impersonation(scanned)
        except BadHeader as error:
            self._refuse(exchange, RequestRefusal(400, "BadRequest", str(error)))
            return
        refusal = refusal_for(request, scanned.authorization, host=self._host, tokens=self._tokens)
        if refusal is not None:
            self._refuse(exchange, refusal)
            return
        self.requests += 1
        self.open += 1
        self._note_use()
        task = exchange.connection.loop.create_task(self._forward(exchange, scanned, impersonation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, exchange: Exchange, refusal: RequestRefusal) -> None:
        fields = {"context": self._name, "cause": f"status {refusal.status}: {refusal.message}"}
        self._log.write(logging.WARNING, "a request was refused", fields)
        _answer(exchange, refusal.status, refusal.reason, refusal.message)

    async def _forward(self, exchange: Exchange, scanned: FilteredHeaders, impersonation: bytes) -> None:
        try:
            signed = SignedRequest(self._cluster.route(), _ClientHeaders(has_impersonation=bool(impersonation)))
            credential = await signed.sign()
        except OstiaryError as error:
            self._log.write(logging.ERROR, error.summary, {"context": self._name, "cause": error.cause or ""})
            self._end()
            if not exchange.gone:
                _answer(exchange, 503, "ServiceUnavailable", _sentence(error))
            return
        except Exception as error:
            log.error("a request failed inside the proxy", exc_info=error)
            self._end()
            exchange.abort()
            return
        if exchange.gone:
            self._end()
            return
        request = exchange.request
        # The client and the cluster's audit log get the same id, as without the proxy.
        audit_line = b"Audit-Id: " + str(uuid.uuid4()).encode()
        head = b"".join(
            (
                b"%s %s%s HTTP/1.1\r\n" % (request.method, signed.route.path, request.target),
                credential,
                impersonation,
                scanned.lines,
                audit_line,
                b"\r\n\r\n" if request.bare else framing_lines(request),
            )
        )
        proxied = ProxiedRequest(exchange, signed, head, audit_line, _NO_LIMIT, self, Sent(exchange, signed))
        proxied.credential = credential
        proxied.relayed = _is_relayed(request.target)
        proxied.tells_when_started = True
        proxied.start()

    def _end(self) -> None:
        self.open -= 1
        self._note_use()

    # --- called by `ProxiedRequest` ---

    def proxied_started(self, proxied: ProxiedRequest[Sent], status: int) -> None:
        proxied.context.signed.note(status)

    def proxied_finished(self, proxied: ProxiedRequest[Sent], status: int, error: UpstreamLost | None) -> None:
        self._end()
        if error is None:
            return
        signed = proxied.context.signed
        signed.error = signed.error or str(error)
        fields = {"context": self._name, "cause": signed.error}
        self._log.write(logging.WARNING, "the cluster could not be asked", fields)

    def proxied_failed(self, proxied: ProxiedRequest[Sent], status: int, kind: FailureKind) -> None:
        signed, exchange = proxied.context.signed, proxied.context.exchange
        access = signed.route.access
        if kind is FailureKind.CREDENTIAL:
            # The response that the client would get without the proxy.
            message = f"the server rejected the credential of user {access.selection.user.name!r}"
            _answer(exchange, 401, "Unauthorized", message)
            return
        reason = {503: "ServiceUnavailable", 504: "Timeout"}.get(status, "")
        _answer(exchange, status, reason, f"ostiary connect could not ask {access.server}: {signed.error}")

    def proxied_streams(self, proxied: ProxiedRequest[Sent]) -> bool:
        return True

    def proxied_refused(self, proxied: ProxiedRequest[Sent]) -> None:
        raise AssertionError("streams are not counted here")


class _ClientHeaders:
    """The client's headers that affect signing.

    As with kubectl, its own impersonation replaces all of the kubeconfig's.
    """

    def __init__(self, *, has_impersonation: bool) -> None:
        self._has_impersonation = has_impersonation

    def has(self, header: str) -> bool:
        return header == "Impersonate-User" and self._has_impersonation


def _impersonation(scanned: FilteredHeaders) -> bytes:
    """Return the client's impersonation lines. Raises `BadHeader` for lines that some API servers ignore.

    The client's lines replace those of the kubeconfig, so if the server ignored them, the request would have the rights
    of the user itself.
    """
    names = [name for name, _ in scanned.impersonate]
    if not all(name in _IMPERSONATE or name.startswith(_IMPERSONATE_EXTRA) for name in names):
        raise BadHeader("a header looks like impersonation and is none")
    users = [value.strip() for name, value in scanned.impersonate if name == _IMPERSONATE_USER]
    if names and not (users and all(users)):
        raise BadHeader("impersonation needs a user: the header Impersonate-User is missing or empty")
    return b"".join([name + b": " + value + b"\r\n" for name, value in scanned.impersonate])


def _is_relayed(target: bytes) -> bool:
    """Report whether a server behind the API server may respond: its 401 says nothing about our credential."""
    return b"proxy" in target.partition(b"?")[0].split(b"/")


def _sentence(error: OstiaryError) -> str:
    return ": ".join(filter(None, ("ostiary connect", error.summary, error.cause)))


def _answer(exchange: Exchange, status: int, reason: str, message: str) -> None:
    exchange.respond(status, _JSON, failure(status, reason, message).body)
