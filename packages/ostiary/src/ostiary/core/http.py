"""HTTP requests to external servers from threads, without dependencies, bounded in time and size.

Every caller sends a secret, so redirects are followed only if the caller states that the request holds none. The
gateway's event loop uses httpx2 instead (`ostiary_gateway.providers.common.outbound`), and `client.adapters` work with
the HTTP library of the application.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any, cast

from ostiary.core.clock import SYSTEM_CLOCK, Clock

# What `OutgoingHttp.send` raises if there is no response.
NO_REPLY = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The response of the server, with any status.

    `is_whole` is False if the body was cut because it exceeded the limit. `certificate` (DER) is the verified
    certificate of the server; None without TLS.
    """

    status: int
    headers: Message = field(repr=False)
    body: bytes = field(repr=False)
    is_whole: bool = True
    certificate: bytes | None = field(default=None, repr=False)


class OutgoingHttp:
    """Sends requests to external servers.

    *seconds* is the timeout for a whole response, and *largest* the most bytes that are read of it. *proxies* are by
    scheme; None reads them from the environment like urllib.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext,
        seconds: float,
        largest: int,
        proxies: Mapping[str, str] | None = None,
        follow_redirects: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._seconds = seconds
        self._largest = largest
        self._clock = clock
        # Not `build_opener`: it would also open files, and raise for every error status.
        self._opener = urllib.request.OpenerDirector()
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler(None if proxies is None else dict(proxies)),
            urllib.request.HTTPHandler(),
            _NotingHandler(context),
        ]
        if follow_redirects:
            handlers += [urllib.request.HTTPErrorProcessor(), urllib.request.HTTPRedirectHandler(), _EveryStatus()]
        for handler in handlers:
            self._opener.add_handler(handler)

    def send(
        self, method: str, url: str, body: bytes | None = None, *, headers: Mapping[str, str] | None = None
    ) -> HttpReply:
        """Send a request and return the response; raises one of `NO_REPLY`. The caller has checked the scheme of *url*.

        The exceptions hold the request and so its secrets: raise your own outside of the handler.
        """
        request = _Request(url, body, dict(headers or {}), method=method)
        deadline = self._clock.monotonic() + self._seconds
        try:
            opened = self._opener.open(request, timeout=self._seconds)
        except urllib.error.HTTPError as refusal:
            # A redirect that cannot be followed.
            opened = refusal
        with opened as reply:
            body, is_whole = self._read(cast("http.client.HTTPResponse", reply), deadline)
            return HttpReply(reply.status, reply.headers, body, is_whole, request.certificate)

    def _read(self, reply: http.client.HTTPResponse, deadline: float) -> tuple[bytes, bool]:
        received = bytearray()
        while chunk := reply.read1(65536):
            received += chunk
            if len(received) > self._largest:
                return bytes(received[: self._largest]), False
            # The socket's own timeout restarts with every byte.
            if self._clock.monotonic() > deadline:
                raise TimeoutError("timed out")
        return bytes(received), True


class _Request(urllib.request.Request):
    """A request that records in `certificate` what the server presented."""

    certificate: bytes | None = None


class _Connection(http.client.HTTPSConnection):
    noted_in: urllib.request.Request

    def connect(self) -> None:
        super().connect()
        if isinstance(self.noted_in, _Request):
            self.noted_in.certificate = self.sock.getpeercert(binary_form=True)


class _NotingHandler(urllib.request.HTTPSHandler):
    """Records the server's certificate in each request."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> _Connection:
            opened = _Connection(host, context=self._tls, **options)
            opened.noted_in = req
            return opened

        return self.do_open(connection, req)


class _EveryStatus(urllib.request.BaseHandler):
    """Returns responses for which urllib would raise an exception."""

    def http_error_default(self, request: object, reply: object, *_: object) -> object:
        return reply


def reason_of(error: Exception) -> BaseException | str:
    """Return the cause of *error* without urllib's wrapping."""
    return error.reason if isinstance(error, urllib.error.URLError) else error
