"""Upstreams: where allowed requests go, and how each is told who the user is.

Built from the configuration; found by `upstream.routes`. An upstream believes what we say about the user because of our
own credential there: a token or a client certificate (`upstream.identity.own_credential`).
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

# So many failures in a row, and the gateway is not ready: one may be the upstream's restart.
MOST_FAILURES = 3


class Upstream:
    """An upstream in use by one worker. `failures` counts those in a row.

    `is_kubernetes` tells whether questions about oneself are answered from our policy, as the Kubernetes API answers
    them.
    `pool` is there only if it has a server: without one, other proxies carry the requests, and only ask us about them.
    `on_handshake` is told how each TLS handshake with it ended.
    `credential_rejected` is set from the moment it says that it does not know us until it answers otherwise.
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
        # Looked at before they are used: what is written in between is a change.
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
        # Set by the app where it is told by a JWT (`upstream.assertions`).
        self.assertions: Assertions | None = None
        # The same where some requests are redirected to the backend itself.
        self.redirects: Redirects | None = None
        self.failures = 0
        self.credential_rejected = asyncio.Event()
        self._token = None if configured.token_file is None else TokenFile(configured.token_file, clock)
        self._log = RepeatedLog(log, clock)

    def identity(self, user: UserInfo) -> bytes:
        """The header lines that say who the user is; raises `BadHeader` for a name that a header cannot carry."""
        mode = self.settings.identity
        if mode is IdentityMode.IMPERSONATION:
            return impersonation(user)
        if mode is IdentityMode.REQUEST_HEADER:
            return identity_lines(user, self.settings.headers)
        return b""

    # --- our own credential ---

    @property
    def knows_us(self) -> bool:
        """Whether a 401 of its own is about us, and not about a user.

        No token of a user ever gets there. An API that is told nothing about us may still ask its users for something.
        """
        return self.is_kubernetes or self._token is not None or self._tls_files.present

    def credential(self) -> bytes:
        """The line that says who we are, empty where a client certificate does; raises `OSError` if there is none."""
        return b"" if self._token is None else self._token.line()

    def renewed_credential(self, rejected: bytes) -> bytes | None:
        """The credential as its files say now, after the upstream has *rejected* one; None if it is the same still."""
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
        """Use what the TLS files hold from the next connection on, if it has changed.

        True if our client certificate has: a changed CA gives us no other credential to try.
        """
        kinds = self._tls_files.changes(now=now)
        # Over plain HTTP nothing of the files is in use.
        if not kinds or self.pool.address.tls is None:
            return False
        try:
            self._tls_files.check_whole()
            address = self._address()
        except TransportError as error:
            # The files may be in the middle of being replaced; what we have may still serve.
            fields = {"upstream": self.name, "cause": error.cause or error.summary}
            self._log.write(logging.WARNING, f"a changed {' or '.join(kinds)} cannot be used", fields)
            return False
        self._tls_files.mark_used()
        self.pool.move(address)
        for kind in kinds:
            log.info("a changed %s is in use", kind, extra={"upstream": self.name})
        return CERTIFICATE in kinds

    # --- how it is ---

    def trouble(self) -> str:
        """Why it is not ready, for the readiness probe; empty if it is."""
        try:
            self.credential()
        except OSError:
            return UNREADABLE
        if self.credential_rejected.is_set():
            return REJECTED
        return f"failed {self.failures} times in a row" if self.failures >= MOST_FAILURES else ""

    def record_failure(self, error: UpstreamLost, request_id: str = "") -> None:
        """It could not be asked. An outage is logged once in a while, and not once for every request."""
        ours = error.kind is FailureKind.CREDENTIAL
        # What it was never asked says nothing about it: a credential that cannot be read is in `trouble` by itself. Nor
        # does what a program behind it says about us, which a user may have written.
        self.failures += (error.answered and not error.relayed) or not ours
        fields = {"upstream": self.name, "cause": str(error), "request_id": request_id}
        if not ours:
            self._log.write(logging.WARNING, "an upstream is unavailable", fields)
            return
        if not error.relayed:
            self.credential_rejected.set()
        self._log.write(logging.ERROR, "an upstream rejects the gateway's own credential", fields)

    def credential_failure(self, error: OSError) -> UpstreamLost:
        """The failure that `credential` raised, as one of the upstream."""
        message = f"{UNREADABLE}: {error.strerror}"
        return UpstreamLost(message, answered=False, kind=FailureKind.CREDENTIAL, relayed=True)

    def record_answer(self) -> None:
        """It answered, perhaps after failures."""
        self.credential_rejected.clear()
        if self.failures:
            extra = {"upstream": self.name, "failures": self.failures, "left_out": self._log.end()}
            log.info("an upstream is available again", extra=extra)
        self.failures = 0

    def tick(self, now: float) -> None:
        self._renew_tls()
        self.pool.tick(now)

    def mapped_path(self, path: str) -> str:
        """The path that decisions are made on: as the upstream gets it if it is Kubernetes, else as the client sent it.

        The API server's paths mean something only without the prefix. Of two other APIs, each below its own prefix, the
        policy must be able to tell which one is asked.
        """
        if not self._strips_prefix or not self.is_kubernetes:
            return path
        return path[len(self.settings.prefix) :] or "/"

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """A second thing that must be allowed for this request."""
        return None if self._requires_more is None else self._requires_more.also_required(info)

    def forwarded_target(self, target: bytes) -> bytes:
        """The target as the upstream gets it: the same bytes, or without the prefix where it is to be stripped."""
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
