"""HTTP requests to a gateway. Stateless, and independent of the endpoints.

The server's certificate is verified by the given authorities or the system's. Redirects are not followed, because a
token must not be sent elsewhere. Responses are limited in size and time. The environment's proxy is used like kubectl
does: it only sees the encrypted connection, and loopback addresses bypass it.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urlsplit

from ostiary import __version__
from ostiary.cli.arguments import UsageError
from ostiary.core.http import OutgoingHttp, reason_of
from ostiary.core.loopback import is_loopback
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ProviderError

SECONDS = 15.0
LARGEST = 1 << 20
# Keyed by OpenSSL's verification error, for errors that another authority would not fix.
_CERTIFICATE_HINTS = {
    9: "check the clock of this machine",
    10: "check the clock of this machine; if it is right, the gateway needs a new certificate",
    62: "use a name that the certificate is for",
    64: "use a name that the certificate is for",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `fields` is empty if it is not a JSON object or too large. `time` is its Date header.

    `certificate` (DER) is the gateway's certificate, or None without TLS.
    """

    status: int
    fields: Mapping[str, object] = field(repr=False)
    time: datetime | None = None
    retry_after: str = ""
    www_authenticate: str = field(default="", repr=False)
    certificate: bytes | None = field(default=None, repr=False)


class GatewayHttp:
    """A client for one gateway. With *authorities_pem* None, the system's authorities apply."""

    def __init__(
        self, server: str, *, authorities_pem: str | None = None, seconds: float = SECONDS, largest: int = LARGEST
    ) -> None:
        self.server = checked_address(server)
        self._http = OutgoingHttp(
            context=build_context(TlsSettings(authorities_pem)),
            seconds=seconds,
            largest=largest,
            proxies={} if is_loopback(urlsplit(self.server).hostname or "") else None,
        )

    def ask(self, method: str, path: str, body: bytes | None = None, *, headers: Mapping[str, str]) -> Reply:
        """Send one request. Raises `ProviderError` only if there is no response."""
        all_headers = {"Accept": "application/json", "User-Agent": f"ostiary/{__version__}", **headers}
        try:
            reply = self._http.send(method, self.server + path, body, headers=all_headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        fields = _object(reply.body) if reply.is_whole else {}
        return Reply(
            reply.status,
            fields,
            _time(reply.headers["Date"]),
            reply.headers["Retry-After"] or "",
            reply.headers["WWW-Authenticate"] or "",
            reply.certificate,
        )

    def not_understood(self, cause: str = "it sent an invalid response") -> ProviderError:
        return ProviderError(
            "this is not an ostiary gateway, or its version is too old",
            cause=cause,
            where=self.server,
            hint="check that this is the URL of the gateway, without a path",
            code="gateway-answer-invalid",
        )

    def _unreachable(self, error: Exception) -> ProviderError:
        reason = reason_of(error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return ProviderError(
                "the gateway's certificate cannot be verified",
                cause=reason.verify_message,
                where=self.server,
                hint=_CERTIFICATE_HINTS.get(
                    reason.verify_code, "if it uses a private CA, name its certificate: --ca FILE"
                ),
                code="gateway-unreachable",
            )
        cause = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        return ProviderError(
            "the gateway is unreachable",
            cause=cause,
            where=self.server,
            hint=_hint(reason, self.server),
            code="gateway-unreachable",
        )


def _hint(reason: object, server: str) -> str:
    if isinstance(reason, ssl.SSLError):
        return "check the URL: the server there does not speak TLS as a gateway does"
    if isinstance(reason, http.client.RemoteDisconnected) and server.startswith("http://"):
        return "the server may need TLS: use https:// instead of http://"
    return "check the URL, and that the network or VPN is up"


def checked_address(server: str) -> str:
    """Return *server* in normal form: scheme and host in lower case, no trailing slash.

    Raises `UsageError` if it is not a valid URL, or if tokens would be sent unencrypted.
    """
    parts = _parts(server)
    host, port = parts.hostname or "", _port(parts)
    plain = parts.scheme == "http"
    if parts.query or parts.fragment:
        raise _no_address("it contains a ? or a #")
    if plain and not is_loopback(host):
        raise _no_address("http:// would send your token unencrypted")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _parts(server: str) -> SplitResult:
    fits = server.isascii() and server.isprintable() and server and " " not in server
    if fits and "://" not in server:
        raise _no_address("it does not begin with https://")
    try:
        parts = urlsplit(server if fits else "")
    except ValueError:
        parts = urlsplit("")
    if not parts.hostname or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise _no_address("it is not a URL such as https://gateway.example")
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise _no_address("its port is not a number from 0 to 65535") from None


def _no_address(cause: str) -> UsageError:
    # Not quoted, because it may contain a password.
    return UsageError("this is not the URL of a gateway", cause=cause, hint="--server https://gateway.example")


def _object(body: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _time(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError):
        return None
