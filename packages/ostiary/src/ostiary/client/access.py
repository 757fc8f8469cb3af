"""Access to one cluster as one user: address, proxy, TLS and credential source.

Every adapter builds on `ClusterAccess`. Nothing is dialed and no plugin runs before the first request.
`client.connection` adds one method per HTTP library.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlsplit

from ostiary.client.credentials import LatestSource, has_credentials, own_source_for, source_for
from ostiary.client.exec.plugin import ExecSettings
from ostiary.client.metrics import ExecMetrics, default_metrics
from ostiary.client.proxy import proxy_for
from ostiary.client.retry_on_401 import REJECTING, Headers, Signing, check_retry_on
from ostiary.client.signing import RequestSigner
from ostiary.client.signing_command import check_signer, signer_for
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_header
from ostiary.core.tls import SealedContext, TlsSettings, build_context
from ostiary.errors import ConfigurationError, TransportError
from ostiary.kubeconfig import Cluster, Selection, User
from ostiary.kubeconfig.server_address import DEFAULT_PORTS, AddressError, ServerAddress, has_scheme, parse_server
from ostiary.model import ClientCertificate, Secret

if TYPE_CHECKING:
    from ostiary.client.custom_credentials import AsyncOwnSource, OwnSource

log = logging.getLogger("ostiary.client")

# Objects of the Kubernetes clients, which are published without types.
Untyped: TypeAlias = Any

# client-go reads certificate authority files again after five minutes.
AUTHORITIES_SECONDS = 300.0


class ClusterAccess:
    """One cluster and one user. Can be shared by threads, event loops and HTTP clients."""

    def __init__(
        self,
        selection: Selection,
        *,
        settings: ExecSettings | None = None,
        retry_on_401: bool = True,
        retry_on: Sequence[int] = REJECTING,
        source: OwnSource | AsyncOwnSource | None = None,
        signer: RequestSigner | None = None,
        metrics: ExecMetrics | None = None,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        cluster = selection.cluster
        self.selection = selection
        self.namespace = selection.namespace
        self.retry_on = check_retry_on(retry_on)
        check_signer(signer)
        settings = settings or ExecSettings()
        self._clock = clock or SYSTEM_CLOCK
        address = _address(cluster)
        if re.search(r"[?#]", cluster.server):
            # Not quoted, because it may contain a secret.
            log.warning("the server of cluster %r has a query or fragment, which takes no effect", cluster.name)
        self.server = str(address)
        self._origin = address.origin
        self.proxy = proxy_for(
            urlsplit(self.server), configured=cluster.proxy_url, environ=os.environ if environ is None else environ
        )
        self.compression = not cluster.disable_compression
        self.verifies = not cluster.insecure_skip_tls_verify
        self.impersonation: Headers = _impersonation(selection.user)
        self.source: LatestSource | None = None
        self.request_signer: RequestSigner | None = None
        """Adds headers to each request, in addition to the credential."""
        self.authorization: Secret | None = None
        """The ``Authorization`` header for ``user:password@`` in the server's address."""
        if address.is_secure:
            self.authorization = address.authorization
            if address.authorization is not None and (source is not None or _signs_with_a_header(selection.user)):
                why = "the address of the server has a username and password, which take precedence"
                log.warning("the credential of user %r is not sent: %s", selection.user.name, why)
            has_own_source = source is not None
            self.request_signer = signer_for(selection.user, signer, has_own_source=has_own_source, settings=settings)
            self.source = (
                source_for(selection, settings=settings, metrics=metrics or default_metrics(), clock=self._clock)
                if source is None
                else own_source_for(selection.user, source, settings=settings, clock=self._clock)
            )
        else:
            is_signed = signer is not None or selection.user.signing is not None
            has_own = source is not None or is_signed or address.authorization is not None
            _warn_of_plain_http(self.server, selection, has_authorization=has_own)
        self.signing = Signing(
            self.source,
            authorization=self.authorization,
            impersonation=self.impersonation,
            retry_on_401=retry_on_401,
        )
        """Decides how each request is signed, and caches the decision."""
        self._lock = threading.Lock()
        self._contexts: dict[bool, tuple[tuple[TlsSettings, ClientCertificate | None], SealedContext]] = {}
        self._authorities: str | None = None
        self._authorities_again_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Connection to {self.server} as user {self.selection.user.name!r}>"

    # --- used by adapters ---

    def is_server(self, scheme: str, host: str, port: int | None) -> bool:
        """Whether this address is the cluster's. The credential is sent to no other address, including redirects."""
        return (scheme, host.lower(), port or DEFAULT_PORTS.get(scheme)) == self._origin

    def is_server_url(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            return self.is_server(parts.scheme, parts.hostname or "", parts.port)
        except ValueError:
            # Not a valid address: the HTTP library raises its own error.
            return False

    def ssl_context(self, *, http2: bool = False) -> SealedContext | None:
        """Return the TLS context for new connections, or None for ``http://``.

        Returns the same object until the client certificate or the authorities change, then a new one. Callers that
        pool connections compare by identity and close the connections of the old context.

        A client that offers HTTP/2 gets a separate context: the offered protocols belong to the context, and another
        client may not support the one that the server selects.
        """
        if self._origin[0] != "https":
            return None
        latest = self.source.latest if self.source is not None else None
        certificate = latest.certificate if latest is not None else None
        cached = self._contexts.get(http2)
        # Called for every request and rarely changed: compare by identity only and take no lock.
        if cached is not None and cached[0][1] is certificate and self._clock.monotonic() < self._authorities_again_at:
            return cached[1]
        with self._lock:
            return self._renew(http2, (self._tls_settings(), certificate))

    def _renew(self, http2: bool, made_of: tuple[TlsSettings, ClientCertificate | None]) -> SealedContext:
        cached = self._contexts.get(http2)
        context = cached[1] if cached is not None and cached[0] == made_of else _build(*made_of)
        self._contexts[http2] = (made_of, context)
        return context

    def _tls_settings(self) -> TlsSettings:
        cluster = self.selection.cluster
        if self._clock.monotonic() >= self._authorities_again_at:
            self._authorities = self._read_authorities()
            self._authorities_again_at = self._clock.monotonic() + AUTHORITIES_SECONDS
        return TlsSettings(self._authorities, cluster.insecure_skip_tls_verify, cluster.tls_server_name or None)

    def _read_authorities(self) -> str | None:
        cluster = self.selection.cluster
        if cluster.certificate_authority_data:
            return cluster.certificate_authority_data.decode("utf-8", "replace")
        if not cluster.certificate_authority:
            return None
        try:
            with open(cluster.certificate_authority, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError as error:
            if self._authorities is not None:
                # The file may be in the middle of being replaced.
                return self._authorities
            raise TransportError(
                "the certificate authority of the server cannot be read",
                cause=f"{cluster.certificate_authority}: {os.strerror(error.errno or 0)}",
                where=cluster.place,
                hint="correct certificate-authority in the kubeconfig",
            ) from None


def _address(cluster: Cluster) -> ServerAddress:
    try:
        return parse_server(cluster.server)
    except AddressError as error:
        raise TransportError(
            f"the server of cluster {cluster.name!r} is not an address",
            cause=str(error),
            where=cluster.place,
            hint="write it as https://host:port in the kubeconfig",
        ) from None


def _warn_of_plain_http(server: str, selection: Selection, *, has_authorization: bool) -> None:
    """Log what plain HTTP disables. Like kubectl, no credential is sent where others could read it."""
    cluster = selection.cluster
    why = "it is not https" if has_scheme(cluster.server) else "without https:// in front, its address means http"
    if has_authorization or has_credentials(selection.user):
        log.warning("no credential is sent to %s: %s", server, why)
    if cluster.certificate_authority or cluster.certificate_authority_data or cluster.tls_server_name:
        log.warning("the certificate authority or name of %s is not checked: %s", server, why)


def _signs_with_a_header(user: User) -> bool:
    return user.has_header or user.uses_exec or user.auth_provider is not None


def _impersonation(user: User) -> Headers:
    who = user.impersonate
    if not who.user:
        return ()
    headers = [("Impersonate-User", who.user)]
    if who.uid:
        headers.append(("Impersonate-Uid", who.uid))
    headers += [("Impersonate-Group", group) for group in who.groups]
    for key, values in who.extra:
        headers += [(f"Impersonate-Extra-{_header_key(key)}", value) for value in values]
    if not all(fits_header(value) for _, value in headers):
        raise ConfigurationError(
            f"user {user.name!r} cannot impersonate",
            cause="a name, group or extra holds a line break or another character that no header can carry",
            where=user.place,
            hint="correct as, as-groups and as-user-extra in the kubeconfig",
        )
    return tuple(headers)


def _header_key(key: str) -> str:
    # Percent-encode characters that are not allowed in a header name, and the percent sign itself.
    return quote(key, safe="!#$&'*+-.^_`|~")


def _build(settings: TlsSettings, certificate: ClientCertificate | None) -> SealedContext:
    try:
        return build_context(settings, certificate)
    except ValueError as error:
        hint = "have the plugin, or the files of the kubeconfig, give a PEM certificate and the key that belongs to it"
        raise TransportError("the client certificate cannot be used", cause=str(error), hint=hint) from None
