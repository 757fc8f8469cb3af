"""Upstreams: where allowed requests go, and how each is told who asks.

Built from the configuration; found by host and path prefix, the longest prefix first. An upstream believes what we say
about the user because of our own credential there: a token or a client certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from ostiary.core.clock import Clock
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import TransportError
from ostiary.gateway import settings
from ostiary.gateway.headers import identity_lines, impersonation
from ostiary.gateway.http1.client import Address, Pool
from ostiary.gateway.settings import IdentityMode
from ostiary.model import ClientCertificate, RequestInfo, Secret, UserInfo

# How long a token that was read from a file is used before the file is read again: the kubelet rotates such files.
TOKEN_FILE_SECONDS = 60.0


class Upstream:
    """An upstream in use by one worker. `failures` counts those in a row."""

    def __init__(self, configured: settings.Upstream, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.settings = configured
        self.name = configured.name
        self.mapper = configured.attributes.instance
        self.response_timeout = configured.response_timeout.total_seconds()
        address = _address(configured)
        self.pool = Pool(
            address,
            loop,
            limit=configured.connections,
            queue=configured.queue,
            connect_timeout=configured.connect_timeout.total_seconds(),
            idle_timeout=configured.idle_timeout.total_seconds(),
        )
        self.host_line = b"Host: " + urlsplit(configured.server).netloc.encode() + b"\r\n"
        self.failures = 0
        self.last_failure = ""
        self._clock = clock
        self._credential = b""
        self._credential_until = float("-inf")

    @property
    def is_kubernetes(self) -> bool:
        """Whether it speaks the Kubernetes API, so that questions about oneself are answered from our policy."""
        return self.settings.attributes.type == "kubernetes"

    def identity(self, user: UserInfo) -> bytes:
        """The header lines that say who asks; raises `BadHeader` for a name that cannot be said."""
        mode = self.settings.identity
        if mode is IdentityMode.IMPERSONATION:
            return impersonation(user)
        if mode is IdentityMode.REQUEST_HEADER:
            return identity_lines(user, self.settings.headers)
        return b""

    def credential(self) -> bytes:
        """The line that says who we are, empty where a client certificate does; raises `OSError` if there is none."""
        path = self.settings.token_file
        if path is None:
            return b""
        now = self._clock.monotonic()
        if now >= self._credential_until:
            token = path.read_bytes().strip()
            if not token or any(byte <= 0x20 or byte >= 0x7F for byte in token):
                raise OSError(0, "the token file holds no token")
            self._credential = b"Authorization: Bearer " + token + b"\r\n"
            self._credential_until = now + TOKEN_FILE_SECONDS
        return self._credential

    def mapped_path(self, path: str) -> str:
        """The path that decisions are made on: as the upstream gets it if it is Kubernetes, else as the client sent it.

        The API server's paths mean something only without the prefix. Of two other APIs, each below its own prefix, the
        policy must be able to tell which one is asked.
        """
        if not self.settings.strip_prefix or not self.is_kubernetes or self.settings.prefix == "/":
            return path
        return path[len(self.settings.prefix) :] or "/"

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """A second thing that must be allowed for this request."""
        ask = getattr(self.mapper, "also_required", None)
        return None if ask is None else ask(info)

    def failed(self, why: str) -> None:
        self.failures += 1
        self.last_failure = why

    def forwarded_target(self, target: bytes) -> bytes:
        """The target as the upstream gets it: the same bytes, or without the prefix where it is to be stripped."""
        prefix = self.settings.prefix
        if not self.settings.strip_prefix or prefix == "/":
            return target
        rest = target[len(prefix.encode()) :]
        return rest if rest.startswith(b"/") else b"/" + rest


class Routes:
    """Which upstream serves a host and a path."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.upstreams = tuple(upstreams)
        by_length = sorted(upstreams, key=lambda upstream: -len(upstream.settings.prefix))
        # One that names the host goes before one that takes any.
        self._order = sorted(by_length, key=lambda upstream: not upstream.settings.hosts)

    def find(self, host: str, path: str) -> Upstream | None:
        # Hosts are the same in upper and lower case; paths are not.
        name = (host.rpartition(":")[0] if _has_port(host) else host).lower()
        for upstream in self._order:
            hosts = upstream.settings.hosts
            if (not hosts or name in hosts) and _below(path, upstream.settings.prefix):
                return upstream
        return None

    def tick(self, now: float) -> None:
        for upstream in self.upstreams:
            upstream.pool.tick(now)

    def close(self) -> None:
        for upstream in self.upstreams:
            upstream.pool.close()


def _below(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def _address(configured: settings.Upstream) -> Address:
    if configured.socket is not None:
        return Address("localhost", 80, unix_path=str(configured.socket))
    server = urlsplit(configured.server)
    assert server.hostname is not None, "the configuration was checked"
    if server.scheme == "http":
        return Address(server.hostname, server.port or 80)
    tls = configured.tls
    return Address(
        server.hostname,
        server.port or 443,
        tls=client_context(tls),
        server_name=tls.server_name,
        pins=tls.pins,
    )


def client_context(tls: settings.ClientTls) -> ssl.SSLContext:
    """The context for a server that the configuration names; raises `TransportError` if a file cannot be used."""
    try:
        authorities = tls.ca.read_text() if tls.ca is not None else None
        certificate = None
        if tls.certificate is not None and tls.key is not None:
            certificate = ClientCertificate(tls.certificate.read_text(), Secret(tls.key.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        where = getattr(error, "filename", None)
        raise TransportError("a TLS file cannot be read", cause=str(error), where=where) from None
    return build_context(TlsSettings(authorities, server_name=tls.server_name), certificate)
