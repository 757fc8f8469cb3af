"""Adapter between the HTTP server and the sign-in routes: parses requests to ``/auth`` and sends the responses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from urllib.parse import parse_qsl

from ostiary.core.loopback import is_loopback
from ostiary.wire import status
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.server_tls import ListenerContext
from ostiary_gateway.http1.streaming_response import StreamedAnswer
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.responses import BodyStream
from ostiary_gateway.login.routes import Login
from ostiary_gateway.proxy.context import RequestContext, Served
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.proxy.target import AmbiguousRequest, split_target

LARGEST_FORM = 64 * 1024
# Timeout in seconds: a client that has not read enough of a stream by then is disconnected.
SLOWEST_READ = 10.0
_FORM = "application/x-www-form-urlencoded"
_STRICT_TRANSPORT = (b"Strict-Transport-Security", b"max-age=31536000")


class LoginHandler:
    """Serve ``/auth`` and everything below it. No token is required."""

    def __init__(self, login: Login, trusted_proxies: Sequence[Network] = ()) -> None:
        self._login = login
        self._trusted = trusted_proxies

    async def handle(self, ctx: RequestContext, served: Served) -> None:
        exchange = ctx.exchange
        try:
            body = await read_body(exchange, LARGEST_FORM)
            request = self._request(ctx, body)
        except ClientGone:
            served(0)
            return
        except BodyTooLarge:
            served(self._refuse_unreadable(ctx, status.too_large(), "the form is too large"))
            return
        except (AmbiguousRequest, UnicodeDecodeError, ValueError) as error:
            served(self._refuse_unreadable(ctx, status.bad_request(str(error)), "the request cannot be read"))
            return
        answer = await self._login.handle(request, ctx.audit_id)
        if exchange.gone:
            served(0)
            return
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers
            if name.lower() != "content-length"
        ]
        headers = [(b"Audit-Id", ctx.audit_id.encode()), *headers, *_transport_security(ctx)]
        # Report before streaming: the duration of a stream says nothing about our latency.
        served(answer.status)
        if answer.stream is None:
            exchange.respond(answer.status, headers, answer.body)
        else:
            await send_stream(exchange, answer.status, headers, answer.stream)

    def _refuse_unreadable(self, ctx: RequestContext, answer: status.Answer, reason: str) -> int:
        request = ctx.exchange.request
        path = request.target.partition(b"?")[0].decode("latin-1")
        readable = LoginRequest(
            request.method.decode("latin-1"),
            path,
            remote_address=self._client(ctx),
            request_id=ctx.audit_id,
        )
        self._login.record_unreadable(readable, answer.code, reason)
        return send_status(ctx, answer)

    def _request(self, ctx: RequestContext, body: bytes) -> LoginRequest:
        exchange = ctx.exchange
        path, query = split_target(exchange.request.target, host=exchange.request.host)
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in exchange.request.headers
        )
        content_type = next((value for name, value in headers if name == "content-type"), "")
        form: tuple[tuple[str, str], ...] = ()
        if content_type.partition(";")[0].strip().lower() == _FORM:
            form = tuple(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64))
        return LoginRequest(
            method=exchange.request.method.decode("ascii"),
            path=path,
            query=tuple(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=64)),
            form=form,
            headers=headers,
            remote_address=self._client(ctx),
            peer_certificate=exchange.connection.peer_certificate,
            server_certificate=_own_certificate(ctx),
            raw_query=query,
        )

    def _client(self, ctx: RequestContext) -> str:
        """Return the client's address as far as trusted proxies vouch for it. Failed attempts are counted by it."""
        forwarded = [line.decode("latin-1") for line in ctx.scanned.forwarded_for]
        remote = ctx.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]


def _own_certificate(ctx: RequestContext) -> bytes | None:
    """Return the listener's certificate on this connection. Its file may contain a newer one by now."""
    tls = ctx.exchange.connection.transport.get_extra_info("ssl_object")
    context = getattr(tls, "context", None)
    return context.certificate if isinstance(context, ListenerContext) else None


async def send_stream(exchange: Exchange, code: int, headers: Headers, stream: BodyStream) -> None:
    """Stream a body. Disconnects a client that does not read; ends when the gateway shuts down."""
    answer = StreamedAnswer(exchange)
    answer.begin(code, headers)
    if exchange.request.method == b"HEAD":
        answer.end()
        return
    with suppress(ClientGone, TimeoutError):
        async with aclosing(stream()) as pieces:
            async for piece in pieces:
                if exchange.connection.draining:
                    break
                await answer.send(piece, seconds=SLOWEST_READ)
        answer.end()
    answer.finish()


def _transport_security(ctx: RequestContext) -> list[tuple[bytes, bytes]]:
    """Return HSTS if this connection uses TLS, but not on loopback, where servers without TLS share the host name."""
    exchange = ctx.exchange
    if exchange.connection.transport.get_extra_info("ssl_object") is None:
        return []
    name = exchange.request.host.decode("latin-1").rpartition(":")[0] or exchange.request.host.decode("latin-1")
    return [] if is_loopback(name.strip("[]")) else [_STRICT_TRANSPORT]
