"""Send single requests to the API server of a kubeconfig or of the pod, with the standard library alone.

For commands that need one object or token. Credential, TLS, proxy and impersonation come from the `ClusterAccess`.
Redirects are not followed.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ostiary.client.access import ClusterAccess
from ostiary.client.retry_on_401 import Headers, send_signed
from ostiary.client.signing import RequestToSign
from ostiary.core.http import NO_REPLY, HttpReply, OutgoingHttp, reason_of
from ostiary.core.redaction import redact
from ostiary.errors import ProviderError, TransportError

SECONDS = 20.0
LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A response of the API server, with any status. The body is empty if it was larger than allowed."""

    status: int
    body: bytes = field(repr=False)


class ApiRequests:
    """A client for one API server. Can be shared by threads."""

    def __init__(self, access: ClusterAccess, *, seconds: float = SECONDS, largest: int = LARGEST) -> None:
        self._access = access
        self._seconds, self._largest = seconds, largest
        self.server = access.server

    def send(self, method: str, path: str, body: bytes | None = None) -> ApiReply:
        """Send one request and return the response.

        Raises `ProviderError` (api-server-unreachable) if there is no response, and `CredentialError` if there is no
        credential.
        """
        carrier = _ApiRequest(self._access, method, path, body, self._seconds, self._largest)
        cause: str | None = None
        try:
            reply = send_signed(self._access, carrier)
        except NO_REPLY as error:
            cause = _cause(error)
        if cause is not None:
            # Outside of the handler: the exception's traceback references the request and so the credential.
            raise ProviderError(
                "the API server is unreachable",
                cause=cause,
                where=self.server,
                hint="check the server of the kubeconfig, and that the network or VPN is up",
                code="api-server-unreachable",
            )
        return ApiReply(reply.status, reply.body if reply.is_whole else b"")


class _ApiRequest:
    """A `Carrier` for one request."""

    replayable = True

    def __init__(
        self, access: ClusterAccess, method: str, path: str, body: bytes | None, seconds: float, largest: int
    ) -> None:
        self._access, self._method, self._path, self._body = access, method, path, body
        self._seconds, self._largest = seconds, largest

    def has(self, header: str) -> bool:
        return False

    def to_sign(self) -> RequestToSign:
        url = self._access.server + self._path
        return RequestToSign(self._method, url, tuple(self._own_headers().items()), self._body or b"")

    def _own_headers(self) -> dict[str, str]:
        own_headers = {"Accept": "application/json", "User-Agent": "ostiary"}
        if self._body is not None:
            own_headers["Content-Type"] = "application/json"
        return own_headers

    def send(self, headers: Headers) -> HttpReply:
        return self._http().send(
            self._method,
            self._access.server + self._path,
            self._body,
            headers={**self._own_headers(), **_join_headers(headers)},
        )

    def _http(self) -> OutgoingHttp:
        # Built per request: after a certificate rotation there is a new TLS context.
        context = self._access.ssl_context() or ssl.create_default_context()
        scheme = urlsplit(self._access.server).scheme
        proxies = {} if self._access.proxy is None else {scheme: _usable_proxy(self._access.proxy)}
        return OutgoingHttp(context=context, seconds=self._seconds, largest=self._largest, proxies=proxies)

    def status(self, answer: HttpReply) -> int:
        return answer.status

    def headers(self, answer: HttpReply) -> Mapping[str, Sequence[str]]:
        return {name: answer.headers.get_all(name) or [] for name in answer.headers}

    def discard(self, answer: HttpReply) -> None:
        """Do nothing: the response was already read completely."""


def _join_headers(headers: Headers) -> dict[str, str]:
    names = [name for name, _ in headers]
    if len(names) != len(set(names)):
        # Impersonate-Group may repeat, but headers are a dict here, and joining with commas would change the groups.
        raise TransportError(
            "this user cannot be used here",
            cause="it impersonates several groups, or several values of an extra",
            hint="use a kubeconfig user that impersonates with one group at the most",
            code="config-invalid",
        )
    return dict(headers)


def _usable_proxy(proxy: str) -> str:
    if not proxy.startswith("http://"):
        raise TransportError(
            "the proxy for this server cannot be used here",
            cause="it is not an http:// proxy",
            hint="use an http:// proxy, or reach the API server without one",
            code="proxy-invalid",
        )
    return proxy


def _cause(error: Exception) -> str:
    reason = reason_of(error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {redact(reason.verify_message)}"
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    return redact(str(getattr(reason, "strerror", None) or type(reason).__name__))
