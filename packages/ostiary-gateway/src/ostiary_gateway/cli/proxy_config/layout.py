"""The input of every proxy configuration: the endpoint, its upstreams, and their addresses. Pure.

`printing` builds it from ``gateway.yaml`` and the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult

from ostiary.model import Secret
from ostiary_gateway.authentication.cookies import BROWSER_HEADERS
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.values import Address
from ostiary_gateway.extauth.claims import cleared
from ostiary_gateway.extauth.dialects import DIALECTS
from ostiary_gateway.extauth.identity_headers import answer_names
from ostiary_gateway.http1.headers import IDENTITY_PREFIXES

ANY_HOST = ""
# The system's authorities for nginx and Envoy, which have no default.
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


@dataclass(frozen=True, slots=True)
class Backend:
    """An upstream, as the proxy reaches it. `assertion`: it gets the user in a JWT.

    `server_name` is the name in its certificate if it differs from the host of the URL. `ca` is the file of its
    authorities on the proxy's host; None means the system's.
    """

    name: str
    hosts: tuple[str, ...]
    prefix: str
    url: SplitResult
    is_application: bool = False
    assertion: bool = False
    server_name: str = ""
    ca: str | None = None

    @property
    def is_tls(self) -> bool:
        return self.url.scheme == "https"

    @property
    def certificate_name(self) -> str:
        """The name or IP address that its certificate must match."""
        return self.server_name or self.url.hostname or ""

    @property
    def address(self) -> str:
        """Host and port, such as ``[::1]:8080``."""
        return _address_of(self.url)

    @property
    def prefix_pattern(self) -> str:
        """A regular expression for the paths below the prefix, matched by whole segments and case-sensitively."""
        return f"^{re.escape(self.prefix)}(/|$)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One endpoint. `secret` is None if the proxy authenticates with `certificate` and `key`.

    `cache` is how long nginx may cache a response, and `hash_module` the module that hashes the token in the cache key.
    `browser_port` is what browsers append to the host of a web application, such as ``:8080``. `cleans_cookies`: an
    upstream of the gateway is a web application, so requests may have cookies of the gateway, which no upstream may
    get.
    """

    door: DoorSettings
    source: str
    listen_host: str
    listen_port: int
    gateway: SplitResult
    backends: tuple[Backend, ...]
    secret: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    cache: str | None = None
    hash_module: str = "njs"
    # For nginx with a cache: the headers of the client that are forwarded; empty means the default ones.
    passed_headers: tuple[str, ...] = ()
    drop_headers: tuple[str, ...] = ()
    browser_port: str = ""
    cleans_cookies: bool = False
    # For HAProxy: the paths of its SPOE engine file and of its own certificate.
    spoe_file: str = ""
    listen_certificate: str | None = None

    @property
    def has_applications(self) -> bool:
        return any(backend.is_application for backend in self.backends)

    @property
    def title(self) -> str:
        command = f"ostiary-gateway door {self.door.proxy.value}"
        return f'Printed by "{command}" for the door "{self.door.name}" of {self.source}'

    @property
    def listen_address(self) -> str:
        return str(Address(self.listen_host, self.listen_port))

    @property
    def gateway_address(self) -> str:
        return _address_of(self.gateway)

    @property
    def cleared(self) -> list[str]:
        return cleared(self.drop_headers)

    def identity_headers(self, backend: Backend) -> list[str]:
        return answer_names(self.door.extra, assertion=backend.assertion)

    def copied_headers(self, backend: Backend) -> list[str]:
        """Return the headers that the proxy copies from an allow response: the user, and the remaining cookies."""
        cookies = [DIALECTS[self.door.proxy].cookies.decode()] if self.cleans_cookies else []
        return [*self.identity_headers(backend), *cookies]

    def question_path(self, backend: Backend) -> str:
        return f"{self.door.path}/{backend.name}"

    def browser_headers(self, backend: Backend) -> list[str]:
        """Return the additional headers of a browser's request that the gateway needs, in lower case."""
        cookies = ["cookie"] if self.cleans_cookies else []
        return [*cookies, *(name.decode() for name in BROWSER_HEADERS)] if backend.is_application else cookies

    def sign_in_host(self, host: str) -> str:
        """Return the ``Host`` of browsers that return from sign-in to *host*; empty without a web application there."""
        is_there = any(backend.is_application for backend in self.sites().get(host, ()))
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return bracketed + self.browser_port if is_there else ""

    def sites(self) -> dict[str, list[Backend]]:
        """Return what is served at each host, the longest prefix first; `ANY_HOST` stands for every other host."""
        hosts = sorted({host for backend in self.backends for host in backend.hosts})
        sites = {host: _served_at(host, self.backends) for host in hosts}
        anywhere = _longest_first(backend for backend in self.backends if not backend.hosts)
        return {**sites, **({ANY_HOST: anywhere} if anywhere else {})}


def _address_of(url: SplitResult) -> str:
    """Return host and port. IPv6 addresses are in brackets, so that the last group is not mistaken for the port."""
    return str(Address(url.hostname or "", port_of(url)))


def port_of(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _served_at(host: str, backends: Sequence[Backend]) -> list[Backend]:
    """Return the backends in the gateway's routing order: those that name the host, then those for any host."""
    with_host = [backend for backend in backends if host in backend.hosts]
    others = [backend for backend in backends if not backend.hosts and not _is_covered(backend.prefix, with_host)]
    return _longest_first([*with_host, *others])


def _is_covered(prefix: str, by: Sequence[Backend]) -> bool:
    return any(each.prefix == "/" or f"{prefix}/".startswith(f"{each.prefix}/") for each in by)


def _longest_first(backends: Iterable[Backend]) -> list[Backend]:
    return sorted(backends, key=lambda backend: (-len(backend.prefix), backend.name))


# Client headers that must not reach an upstream, as patterns for proxies that support them. Pure.

# Set by proxies. Of the names with this prefix, those in use are cleared one by one.
_OF_PROXIES = "x-forwarded-"
# Headers about a connection or a body, which the proxy sets itself.
_OF_CONNECTIONS = frozenset(
    (
        *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-real-ip"),
    )
)
# Common headers of clients and browsers other than ``Authorization`` that carry no identity and are not hop-by-hop.
_PLAIN = (
    *("accept", "accept-encoding", "accept-language", "cache-control", "content-encoding", "content-language"),
    *("content-length", "content-type", "cookie", "date", "host", "if-match", "if-modified-since", "if-none-match"),
    *("if-range", "if-unmodified-since", "origin", "pragma", "prefer", "priority", "range", "referer", "user-agent"),
    *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "traceparent", "tracestate", "x-requested-with"),
)


def prefixes(drop: Sequence[str] = ()) -> list[str]:
    """Return the prefixes of names that always carry an identity.

    *drop* are the operator's names (``listen.dropHeaders``).
    """
    ours = {prefix.decode() for prefix in IDENTITY_PREFIXES} - {_OF_PROXIES}
    return sorted(ours | {name[:-1].lower() for name in drop if name.endswith("*")})


def regular_expression(names: Sequence[str], drop: Sequence[str] = ()) -> str:
    """Return a pattern for *names* and for every name with one of the prefixes, in any spelling."""
    exact = [name for name in names if not name.startswith(tuple(prefixes(drop)))]
    parts = [*(any_spelling(name) for name in exact), *(any_spelling(name) + ".*" for name in prefixes(drop))]
    return f"(?i)^({'|'.join(parts)})$"


def is_kept_back(name: str, drop: Sequence[str] = ()) -> bool:
    """Whether a proxy must not forward the client's header *name* unchanged."""
    lower = name.lower()
    is_claim = re.search(regular_expression(cleared(drop), drop), lower) is not None
    return is_claim or lower.startswith(_OF_PROXIES) or lower in _OF_CONNECTIONS


def any_spelling(name: str) -> str:
    """Return a pattern for *name* and for spellings that many applications treat as equal, all in lower case."""
    # Applications that turn headers into variables treat all characters except letters and digits as equal.
    return name.replace("-", "[^a-z0-9]")


def plain_names(claims: str) -> list[str]:
    """Return the common header names that need no rule, without those that match the pattern *claims*."""
    pattern = re.compile(claims, re.IGNORECASE)
    return [name for name in _PLAIN if pattern.search(name) is None]
