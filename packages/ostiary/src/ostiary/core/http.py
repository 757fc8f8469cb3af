"""The network as all doors see it: what is this machine, and one request to a server outside."""

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

# Sends one HTTP request to a server outside and returns its reply, bounded in time and size.
#
# Called by what talks to a server from a thread: the oidc auth-provider, the token exchange of the credential provider,
# the registry probe, and the command line when it asks a gateway. All of them send a secret, so redirects are followed
# only where the caller says that nothing secret goes along.
#
# Other ways out, and why they are not this one: `plugins.common.outbound` and the other calls of the gateway run in an
# event loop, and use httpx2, which only the gateway's extra installs; `client.adapters` carry the requests of other
# people's programs with the library that these have chosen.

# What `OutgoingHttp.send` raises when there is no reply.
NO_REPLY = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What the server sent, whatever its status. `is_whole` is False if it sent more than allowed; the rest is cut.

    `certificate` (DER) is the server's, which was verified; None without TLS.
    """

    status: int
    headers: Message = field(repr=False)
    body: bytes = field(repr=False)
    is_whole: bool = True
    certificate: bytes | None = field(default=None, repr=False)


class OutgoingHttp:
    """*seconds* is for one whole reply, and *largest* the most bytes of it that are read.

    *proxies* are by scheme; None takes those of the environment as urllib reads them.
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
        # Not `build_opener`: it would also open files, and make an exception of every reply that is a refusal.
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
        """The reply to one request; raises one of `NO_REPLY`. The caller has checked the scheme of *url*.

        The exceptions hold the request, and so its secrets: raise your own outside of the handler.
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
            # The socket's own limit begins anew with every byte.
            if self._clock.monotonic() > deadline:
                raise TimeoutError("timed out")
        return bytes(received), True


class _Request(urllib.request.Request):
    """`certificate` is what the server shows when it is connected to."""

    certificate: bytes | None = None


class _Connection(http.client.HTTPSConnection):
    noted_in: urllib.request.Request

    def connect(self) -> None:
        super().connect()
        if isinstance(self.noted_in, _Request):
            self.noted_in.certificate = self.sock.getpeercert(binary_form=True)


class _NotingHandler(urllib.request.HTTPSHandler):
    """Notes in each request which certificate the server showed."""

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
    """Returns what urllib would make an exception of."""

    def http_error_default(self, request: object, reply: object, *_: object) -> object:
        return reply


def reason_of(error: Exception) -> BaseException | str:
    """What went wrong, out of urllib's wrapping."""
    return error.reason if isinstance(error, urllib.error.URLError) else error
