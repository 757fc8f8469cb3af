"""The gateway's listening sockets: addresses, certificate and limits."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ostiary.core.clock import Clock
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError, TransportError
from ostiary.keys.address import KeyAddress, key_file
from ostiary_gateway.config import settings
from ostiary_gateway.config.certificate_files import certificate_der, certificates
from ostiary_gateway.config.values import Address, parse_address
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.http1.server_tls import ListenerContext
from ostiary_gateway.server.ticket_keys import TicketKeys
from ostiary_gateway.settings.outgoing import device_certificate

BACKLOG = 2048
# The ALPN name of HTTP/2, which gRPC clients negotiate.
GRPC_PROTOCOL = "h2"
_NO_LIMIT = float("inf")


Sockets = dict[Address, socket.socket]
_REQUESTS, _GRPC = "requests", "grpc"


@dataclass(frozen=True, slots=True)
class Listeners:
    """The sockets that all workers share. `grpc` and `agents` are for external authorization by gRPC and SPOE."""

    requests: socket.socket
    grpc: socket.socket | None = None
    agents: Sockets = field(default_factory=dict)

    def filenos(self) -> dict[str, int]:
        """Return the descriptors by name. `from_words` reads them as ``NAME=NUMBER``."""
        sockets = {_REQUESTS: self.requests, **({} if self.grpc is None else {_GRPC: self.grpc})}
        sockets |= {str(address): agent for address, agent in self.agents.items()}
        return {name: each.fileno() for name, each in sockets.items()}

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Listeners:
        # An address may contain colons.
        sockets = {name: socket.socket(fileno=int(number)) for name, _, number in (w.rpartition("=") for w in words)}
        for each in sockets.values():
            each.setblocking(False)
        requests, grpc = sockets.pop(_REQUESTS), sockets.pop(_GRPC, None)
        return cls(requests, grpc, {parse_address(address): agent for address, agent in sockets.items()})

    def close(self) -> None:
        for each in (self.requests, *self.agents.values(), *(() if self.grpc is None else (self.grpc,))):
            each.close()


def server_limits(listen: settings.Listen) -> ServerLimits:
    limits, timeouts = listen.limits, listen.timeouts
    return ServerLimits(
        head_bytes=limits.header_bytes,
        headers=limits.headers,
        body_bytes=_NO_LIMIT if limits.body_bytes is None else limits.body_bytes,
        connections=limits.connections,
        head_timeout=timeouts.header.total_seconds(),
        body_timeout=timeouts.body.total_seconds(),
        body_rate=limits.body_rate,
        body_total=timeouts.upload.total_seconds() or _NO_LIMIT,
        idle_timeout=timeouts.idle.total_seconds(),
    )


async def serve_on(
    listener: socket.socket,
    connection: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext | None,
    loop: asyncio.AbstractEventLoop,
) -> asyncio.Server:
    """Accept connections from *listener*, which stays open when the server is closed."""
    return await loop.create_server(
        connection,
        # A duplicate descriptor: closing the server of the old configuration must not close the socket.
        sock=listener.dup(),
        ssl=context,
        backlog=BACKLOG,
        ssl_handshake_timeout=10.0 if context is not None else None,
    )


def server_context(
    tls: settings.ServerTls, protocol: str = "http/1.1", *, ticket_keys: TicketKeys | None = None
) -> ListenerContext:
    """Return the TLS context of a listener. Raises `TransportError` if a file cannot be used.

    Without *ticket_keys* sessions are not resumed: proxies that use external authorization keep their connections open.
    """
    # Imported lazily: only listeners that terminate TLS need it.

    from ostiary.keys.openssl import turn_off_resumption

    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # kubectl offers HTTP/2 first. Naming our protocol saves it a failed attempt.
    context.set_alpn_protocols([protocol])
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Let the client choose the cipher that its processor supports: Go's clients prefer AES-128, which needs no SHA-384,
    # and those without AES instructions prefer ChaCha20.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        if isinstance(tls.key, KeyAddress):
            # Imported lazily: only needed if the key is not in a file.
            from ostiary.keys.openssl_provider import use_key

            pair = device_certificate(tls.certificate, tls.key)
            assert pair.device_key is not None
            use_key(context, str(tls.certificate), pair.device_key)
        else:
            context.load_cert_chain(tls.certificate, tls.key)
        context.certificate = next(map(certificate_der, certificates(tls.certificate)), None)
        if tls.client_ca is not None:
            # Requested, not required: most clients present a token. A certificate that is presented must be valid.
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError, ValueError) as error:
        if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):
            error = OSError(0, str(error))
        cause = error.strerror or getattr(error, "reason", None) or "it cannot be loaded"
        raise TransportError(
            "the listener's certificate cannot be used",
            cause=str(cause),
            where=str(tls.certificate),
            hint="the certificate and its key must be PEM and belong together",
        ) from None
    if ticket_keys is None or not tls.resumption or tls.client_ca is not None:
        turn_off_resumption(context)
    else:
        # The purpose depends on the certificate: sessions negotiated under an old certificate cannot be resumed.
        ticket_keys.seal(context, purpose=hashlib.sha256(context.certificate or b"").digest())
    return context


class ListenerFiles:
    """The TLS files of the listener, and whether they changed: certificates are renewed while the gateway runs."""

    def __init__(self, tls: settings.ServerTls | None, clock: Clock) -> None:
        self._paths = () if tls is None else tuple(filter(None, (tls.certificate, key_file(tls.key), tls.client_ca)))
        self._clock = clock
        self._seen = self._look()

    def have_changed(self) -> bool:
        """Report whether the files changed since the last call; False while they are still being written."""
        look = self._look()
        if look == self._seen or None in look or not is_settled(look, self._clock):
            return False
        self._seen = look
        return True

    def _look(self) -> list[Fingerprint | None]:
        return [fingerprint(path) for path in self._paths]


def certificate_expiry(tls: settings.ServerTls | None) -> float:
    """Return the expiry of the listener's certificate in Unix time; 0 without one."""
    chain = [] if tls is None else certificates(tls.certificate)
    return chain[0].not_valid_after_utc.timestamp() if chain else 0.0


def bind(address: settings.Address) -> socket.socket:
    """Return a listening socket. Raises `ConfigurationError` if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"the gateway cannot listen on {address}",
            cause=error.strerror,
            hint=listen_hint(error.errno),
            code="config-invalid",
        ) from None
    return listener


def listen_hint(number: int | None) -> str:
    """Return the hint for errno *number*."""
    return _LISTEN_HINTS.get(number, "choose another address")


_LISTEN_HINTS: dict[int | None, str] = {
    errno.EADDRINUSE: "stop the process that listens there, or choose another address",
    errno.EADDRNOTAVAIL: "name an address of this machine; 0.0.0.0 or [::] stands for all of them",
    errno.EACCES: "choose a port from 1024 on, or give the process CAP_NET_BIND_SERVICE",
}
