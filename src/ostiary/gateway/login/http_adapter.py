"""Between the connection code and the sign-in routes: reads a request to ``/auth``, and sends the answer.

Called by the engine for every request to ``/auth`` and below, which needs no token of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

from ostiary.core.net import is_loopback
from ostiary.gateway.audit.source_ips import Network, source_ips
from ostiary.gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary.gateway.login.routes import Login
from ostiary.gateway.request.own.send_status import send_status
from ostiary.gateway.request.stages import Passage, Served
from ostiary.gateway.request.target import AmbiguousRequest, split_target
from ostiary.interfaces.identity import LoginRequest
from ostiary.wire import status

LARGEST_FORM = 64 * 1024
_FORM = "application/x-www-form-urlencoded"
_STRICT_TRANSPORT = (b"Strict-Transport-Security", b"max-age=31536000")


class LoginHandler:
    """``/auth`` and below."""

    def __init__(self, login: Login, trusted_proxies: Sequence[Network] = ()) -> None:
        self._login = login
        self._trusted = trusted_proxies

    async def handle(self, passage: Passage, served: Served) -> None:
        served(await self._answer(passage))

    async def _answer(self, passage: Passage) -> int:
        exchange = passage.exchange
        try:
            body = await read_body(exchange, LARGEST_FORM)
            request = self._request(passage, body)
        except ClientGone:
            return 0
        except BodyTooLarge:
            return self._refuse_unreadable(passage, status.too_large(), "the form is too large")
        except (AmbiguousRequest, UnicodeDecodeError, ValueError) as error:
            return self._refuse_unreadable(passage, status.bad_request(str(error)), "the request cannot be read")
        answer = await self._login.handle(request, passage.audit_id)
        if exchange.gone:
            return 0
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers
            if name.lower() != "content-length"
        ]
        headers = [(b"Audit-Id", passage.audit_id.encode()), *headers, *_transport_security(passage)]
        exchange.respond(answer.status, headers, answer.body)
        return answer.status

    def _refuse_unreadable(self, passage: Passage, answer: status.Answer, reason: str) -> int:
        request = passage.exchange.request
        path = request.target.partition(b"?")[0].decode("latin-1")
        readable = LoginRequest(
            request.method.decode("latin-1"),
            path,
            remote_address=self._client(passage),
            request_id=passage.audit_id,
        )
        self._login.record_unreadable(readable, answer.code, reason)
        return send_status(passage, answer)

    def _request(self, passage: Passage, body: bytes) -> LoginRequest:
        exchange = passage.exchange
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
            remote_address=self._client(passage),
            peer_certificate=exchange.connection.peer_certificate,
            raw_query=query,
        )

    def _client(self, passage: Passage) -> str:
        """The client's address, as far as trusted proxies vouch for it. Failed attempts are counted by it."""
        forwarded = [line.decode("latin-1") for line in passage.scanned.forwarded_for]
        remote = passage.exchange.connection.remote_address
        return source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]


def _transport_security(passage: Passage) -> list[tuple[bytes, bytes]]:
    """HSTS where we serve TLS; not on loopback, where other servers without TLS share the host name."""
    exchange = passage.exchange
    if exchange.connection.transport.get_extra_info("ssl_object") is None:
        return []
    name = exchange.request.host.decode("latin-1").rpartition(":")[0] or exchange.request.host.decode("latin-1")
    return [] if is_loopback(name.strip("[]")) else [_STRICT_TRANSPORT]
