"""The client's side: sends bytes as they are written, one connection for each request, and reads the answer.

A client library would tidy the bytes. The address is looked up once, so that every request goes where the echo was
proved to be.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ostiary.cli.arguments import UsageError
from ostiary.cli.doctor.traffic.http2_bytes import SETTINGS_ACK, is_over, status_of, wants_ack
from ostiary.cli.doctor.traffic.http_bytes import Incomplete, read_message
from ostiary.cli.doctor.traffic.observed import Answer
from ostiary.core.net import is_loopback
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ProviderError

MOST_BYTES = 128 * 1024
_WITHOUT_BODY = (204, 304)


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """Where the proxy is. `name` is the host of its URL; `authority` that of ``Host``, as a browser would write it."""

    scheme: str
    name: str
    port: int
    authority: str

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}:{self.port}"


def proxy_address(url: str, host: str | None, *, option: str = "--through") -> ProxyAddress:
    """Raises `UsageError` for what is no URL of a server, or would send the token in the clear."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_url(option, "its port is not a number from 0 to 65535") from None
    name = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not name or "@" in parts.netloc or not url.isascii():
        raise _no_url(option, "it is not a URL such as https://shop.example")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _no_url(option, "it has a path: that goes to --path")
    if parts.scheme == "http" and not is_loopback(name):
        raise _no_url(option, "http:// would send your token unencrypted")
    if host is not None and (not host.isascii() or not host.isprintable() or set(host) & set(" /@?#")):
        raise UsageError("--host is not a host name", hint="--host shop.example")
    default = 443 if parts.scheme == "https" else 80
    bracketed = f"[{name}]" if ":" in name else name
    own = bracketed if port in (None, default) else f"{bracketed}:{port}"
    return ProxyAddress(parts.scheme, name, port or default, host or own)


def _no_url(option: str, cause: str) -> UsageError:
    # Not quoted: somebody may have put a password into it.
    return UsageError(f"{option} is not the URL of a server", cause=cause, hint=f"{option} https://shop.example")


@dataclass
class Front:
    """The way to one proxy. `sent` counts the requests."""

    address: ProxyAddress
    authorities_pem: str | None = None
    seconds: float = 10.0
    sent: int = 0
    _place: tuple[socket.AddressFamily, tuple[object, ...]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._context = self._http2_context = None
        if self.address.scheme == "https":
            self._context = build_context(TlsSettings(self.authorities_pem))
            self._http2_context = build_context(TlsSettings(self.authorities_pem))
            self._http2_context.set_alpn_protocols(["h2"])

    def send(self, request: bytes) -> Answer:
        """The answer to *request*; one without a status if the proxy hangs up, or says nothing in time.

        Raises `ProviderError` if there is no connection.
        """
        connection = self._connect()
        self.sent += 1
        with connection:
            # It may refuse, and hang up, before it has read everything; its answer counts nevertheless.
            with suppress(OSError):
                connection.sendall(request)
            return _read_answer(connection, request.startswith(b"HEAD "), time.monotonic() + self.seconds)

    def send_http2(self, frames: bytes) -> Answer:
        """The answer to a request over HTTP/2; one without a status if the proxy does not speak it."""
        connection = self._connect(http2=True)
        self.sent += 1
        with connection:
            with suppress(OSError):
                connection.sendall(frames)
            return _read_http2(connection, time.monotonic() + self.seconds)

    def _connect(self, *, http2: bool = False) -> socket.socket:
        context = self._http2_context if http2 else self._context
        try:
            family, place = self._look_up()
            raw = socket.socket(family, socket.SOCK_STREAM)
            raw.settimeout(self.seconds)
            try:
                raw.connect(place)
                if context is None:
                    return raw
                # By --host, if that differs: a proxy chooses site and certificate by it.
                return context.wrap_socket(raw, server_hostname=_without_port(self.address.authority))
            except BaseException:
                raw.close()
                raise
        except OSError as error:
            raise self._unreachable(error) from None

    def _look_up(self) -> tuple[socket.AddressFamily, tuple[object, ...]]:
        if self._place is None:
            family, _, _, _, place = socket.getaddrinfo(self.address.name, self.address.port, type=socket.SOCK_STREAM)[
                0
            ]
            self._place = (family, place)
        return self._place

    def _unreachable(self, error: OSError) -> ProviderError:
        hint = "check the URL, and that the proxy runs"
        cause = error.strerror or str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            cause, hint = error.verify_message, "if it uses a private CA, name its certificate: --ca FILE"
        return ProviderError(
            "the proxy is unreachable", cause=cause, where=self.address.url, hint=hint, code="proxy-unreachable"
        )


def _without_port(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _read_answer(connection: socket.socket, is_head: bool, end: float) -> Answer:
    data, is_open = b"", True
    while is_open and len(data) < MOST_BYTES:
        answer = _answer(data, is_head, is_open=True)
        if answer is not None:
            return answer
        left = end - time.monotonic()
        if left <= 0:
            break
        connection.settimeout(left)
        try:
            more = connection.recv(65536)
        except OSError:
            more = b""
        is_open, data = bool(more), data + more
    return _answer(data, is_head, is_open=False) or Answer(0, body=data[:MOST_BYTES])


def _read_http2(connection: socket.socket, end: float) -> Answer:
    data, is_told = b"", False
    with suppress(OSError):
        while len(data) < MOST_BYTES and not is_over(data) and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            more = connection.recv(65536)
            # One that answers in HTTP/1 speaks no other.
            if not more or (data + more).startswith(b"HTTP/"):
                break
            data += more
            if not is_told and wants_ack(data):
                connection.sendall(SETTINGS_ACK)
                is_told = True
    return Answer(status_of(data))


def _answer(data: bytes, is_head: bool, *, is_open: bool) -> Answer | None:
    """The answer in *data*, without those that only say that one will follow; None if it is not whole."""
    try:
        message = read_message(data, has_body=False)
        status = _status(message.first)
        if status in (100, 102, 103):
            return _answer(message.rest, is_head, is_open=is_open)
        if not (is_head or status in _WITHOUT_BODY or status == 101):
            message = read_message(data, ends_with_connection=not is_open)
            names = {name.lower() for name, _ in message.headers}
            if is_open and not names & {b"content-length", b"transfer-encoding"}:
                return None
    except Incomplete:
        return None
    return Answer(status, message.headers, message.body)


def _status(line: bytes) -> int:
    words = line.split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else 0
