"""Upstreams: the destinations of allowed requests, and how each receives the user's identity.

An upstream trusts the identity because the gateway authenticates with its own credential there, a token or a client
certificate (`proxy.upstream_credential`).
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

from ostiary.core.clock import Clock
from ostiary.errors import TransportError
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config import settings
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.http1.accept import OnHandshake, count_nothing
from ostiary_gateway.http1.client_connection import UpstreamAddress, UpstreamContext
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.http1.response import FailureKind, UpstreamLost
from ostiary_gateway.interfaces.attributes import ReadsCapabilities, RequiresMore, SplitsNames
from ostiary_gateway.observability.repeated_log import RepeatedLog
from ostiary_gateway.proxy.failures import REJECTED
from ostiary_gateway.proxy.identity_headers import Assertions, identity_lines, impersonation
from ostiary_gateway.proxy.redirects import Redirects
from ostiary_gateway.proxy.upstream_credential import CERTIFICATE, UNREADABLE, TlsFiles, TokenFile
from ostiary_gateway.settings.outgoing import client_context_of

log = logging.getLogger("ostiary.gateway")

# Consecutive failures after which the gateway is not ready. A single one may be a restart of the upstream.
MOST_FAILURES = 3


class Upstream:
    """An upstream in use by one worker.

    `failures` counts consecutive failures. `is_kubernetes`: self reviews are served from the gateway's policy, as the
    Kubernetes API would. `pool` is set only if there is a server: without one, another proxy forwards the requests and
    only queries the gateway. `on_handshake` is called with the result of each TLS handshake. `credential_rejected` is
    set when the upstream rejects the gateway's credential, and cleared by any other response.
    """

    pool: Pool

    def __init__(
        self,
        configured: settings.UpstreamConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_handshake: OnHandshake = count_nothing,
        *,
        shortcuts: bool = True,
    ) -> None:
        self.settings = configured
        self._clock = clock
        self.on_handshake = on_handshake
        self.name = configured.name
        self.mapper = configured.attributes.instance
        self.is_kubernetes = configured.is_kubernetes
        self.refuses_redirects = configured.refuses_redirects
        self._strips_prefix = configured.strip_prefix and configured.prefix != "/"
        self._requires_more = ability(self.mapper, RequiresMore)
        splitting = ability(self.mapper, SplitsNames)
        self.split_name = None if splitting is None else splitting.split_name
        reader = ability(self.mapper, ReadsCapabilities)
        self.capabilities = reader if reader is not None and reader.reads_bodies else None
        self.response_timeout = configured.timeouts.response.total_seconds()
        # Read before they are used, so that a concurrent change is noticed later.
        self._tls_files = TlsFiles(configured.tls, clock)
        if configured.server:
            self.pool = Pool(
                self._address(),
                loop,
                limit=configured.connections,
                queue=configured.queue,
                connect_timeout=configured.timeouts.connect.total_seconds(),
                idle_timeout=configured.timeouts.idle.total_seconds(),
                shortcuts=shortcuts,
            )
        self.host_line = b"Host: " + urlsplit(configured.server).netloc.encode() + b"\r\n"
        # Set by the app for ``identity: assertion``.
        self.assertions: Assertions | None = None
        # Set by the app if some requests are redirected to the backend itself.
        self.redirects: Redirects | None = None
        self.failures = 0
        self.credential_rejected = asyncio.Event()
        self._token = None if configured.token_file is None else TokenFile(configured.token_file, clock)
        self._log = RepeatedLog(log, clock)

    def identity(self, user: UserInfo) -> bytes:
        """Return the header lines with the user's identity; raises `BadHeader` if a name cannot be in a header."""
        mode = self.settings.identity
        if mode is IdentityMode.IMPERSONATION:
            return impersonation(user)
        if mode is IdentityMode.REQUEST_HEADER:
            return identity_lines(user, self.settings.headers)
        return b""

    # --- the gateway's own credential ---

    @property
    def knows_us(self) -> bool:
        """Whether a 401 of the upstream itself is about the gateway's credential, and not about a user.

        Users' tokens are never forwarded. An API without a credential of the gateway may still authenticate its users.
        """
        return self.is_kubernetes or self._token is not None or self._tls_files.present

    def credential(self) -> bytes:
        """Return the header line with the credential, empty for a client certificate; raises `OSError`."""
        return b"" if self._token is None else self._token.line()

    def renewed_credential(self, rejected: bytes) -> bytes | None:
        """Read the credential again after the upstream has *rejected* it; None if it is unchanged."""
        renewed = self._renew_tls(now=True)
        if self._token is None:
            return b"" if renewed else None
        self._token.expire()
        try:
            line = self.credential()
        except OSError:
            return None
        return line if renewed or line != rejected else None

    def _renew_tls(self, *, now: bool = False) -> bool:
        """Use changed TLS files for new connections.

        Return True if the client certificate has changed: a changed CA is no other credential to try.
        """
        kinds = self._tls_files.changes(now=now)
        # The files are not used for plain HTTP.
        if not kinds or self.pool.address.tls is None:
            return False
        try:
            self._tls_files.check_whole()
            address = self._address()
        except TransportError as error:
            # The files may be in the middle of being replaced; the loaded ones may still work.
            fields = {"upstream": self.name, "cause": error.cause or error.summary}
            self._log.write(logging.WARNING, f"a changed {' or '.join(kinds)} cannot be used", fields)
            return False
        self._tls_files.mark_used()
        self.pool.move(address)
        for kind in kinds:
            log.info("a changed %s is in use", kind, extra={"upstream": self.name})
        return CERTIFICATE in kinds

    # --- status ---

    def trouble(self) -> str:
        """Return why the upstream is not ready, for the readiness probe; empty if it is."""
        try:
            self.credential()
        except OSError:
            return UNREADABLE
        if self.credential_rejected.is_set():
            return REJECTED
        return f"failed {self.failures} times in a row" if self.failures >= MOST_FAILURES else ""

    def record_failure(self, error: UpstreamLost, request_id: str = "") -> None:
        """Record a failed request. Logged once in a while during an outage, not for every request."""
        ours = error.kind is FailureKind.CREDENTIAL
        # An unreadable credential is reported by `trouble` and says nothing about the upstream. Neither does the
        # response of a workload behind it, which a user may have written.
        self.failures += (error.answered and not error.relayed) or not ours
        fields = {"upstream": self.name, "cause": str(error), "request_id": request_id}
        if not ours:
            self._log.write(logging.WARNING, "an upstream is unavailable", fields)
            return
        if not error.relayed:
            self.credential_rejected.set()
        self._log.write(logging.ERROR, "an upstream rejects the gateway's own credential", fields)

    def credential_failure(self, error: OSError) -> UpstreamLost:
        """Return the error of `credential` as a failure of the upstream."""
        message = f"{UNREADABLE}: {error.strerror}"
        return UpstreamLost(message, answered=False, kind=FailureKind.CREDENTIAL, relayed=True)

    def record_answer(self) -> None:
        """Record a response: the upstream is available."""
        self.credential_rejected.clear()
        if self.failures:
            extra = {"upstream": self.name, "failures": self.failures, "left_out": self._log.end()}
            log.info("an upstream is available again", extra=extra)
        self.failures = 0

    def tick(self, now: float) -> None:
        self._renew_tls()
        self.pool.tick(now)

    def mapped_path(self, path: str) -> str:
        """Return the path for authorization: without the prefix for Kubernetes, as sent by the client for other APIs.

        Paths of the API server have a meaning only without the prefix. For other APIs, the policy must be able to
        distinguish two APIs below different prefixes.
        """
        if not self._strips_prefix or not self.is_kubernetes:
            return path
        return path[len(self.settings.prefix) :] or "/"

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """Return additional attributes that must be allowed for this request, or None."""
        return None if self._requires_more is None else self._requires_more.also_required(info)

    def forwarded_target(self, target: bytes) -> bytes:
        """Return the target that is sent to the upstream, without the prefix if it is to be stripped."""
        if not self._strips_prefix:
            return target
        rest = target[len(self.settings.prefix.encode()) :]
        return rest if rest.startswith(b"/") else b"/" + rest

    def _address(self) -> UpstreamAddress:
        configured = self.settings
        if configured.socket is not None:
            return UpstreamAddress("localhost", 80, unix_path=str(configured.socket))
        server = urlsplit(configured.server)
        assert server.hostname is not None, "the configuration was checked"
        if server.scheme == "http":
            return UpstreamAddress(server.hostname, server.port or 80)
        tls = configured.tls
        context = client_context_of(UpstreamContext, tls, configured.authorities_pem)
        context.on_handshake = self.on_handshake
        if tls.resumption:
            context.resume_sessions(self._clock)
        return UpstreamAddress(
            server.hostname, server.port or 443, tls=context, server_name=tls.server_name, pins=tls.pins
        )
