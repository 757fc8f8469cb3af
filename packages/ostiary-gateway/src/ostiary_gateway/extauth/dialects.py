"""What each kind of proxy sends about a request, and how it interprets the response.

``ostiary-gateway door`` prints the matching configurations. The tests with real proxies are described in
``docs/how-to/ask-from-another-proxy.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary_gateway.config.extauth import ProxyKind

# The header with the endpoint's secret. Responses contain it empty if it would otherwise reach the upstream.
SECRET_HEADER = b"x-ostiary-door"
FORWARDED_FOR = b"x-forwarded-for"
# The response header with the client's cookies except ours, which the printed configuration copies into Cookie.
COOKIES_HEADER = b"X-Ostiary-Cookie"

# Set by the printed configuration, overriding the client's value.
ORIGINAL_METHOD, ORIGINAL_URI, ORIGINAL_HOST = b"x-original-method", b"x-original-uri", b"x-original-host"
ORIGINAL_UPGRADE, ORIGINAL_LENGTH = b"x-original-upgrade", b"x-original-content-length"
ORIGINAL_ADDRESS = b"x-original-address"
# Set by Traefik and Caddy themselves, overriding the client's value.
FORWARDED_METHOD, FORWARDED_URI, FORWARDED_HOST = b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDialect:
    """The conventions of one kind of proxy. Names of headers are in lower case.

    `method`, `uri` and `host` name the headers with these values. If empty, the values are the method of the query
    itself, the path after the endpoint's own, and ``Host``. `upgrade` names the header with the protocol that the
    connection will switch to, and `length` the one with the length of the body; if empty, the proxy forwards no such
    requests, or does not send it.

    `address` is the header whose last entry is the address of the proxy's client; if empty, only trusted proxies
    determine the source of a request.

    - `repeats_lines`: the proxy preserves several lines with the same name, so each group has its own.
    - `refuses_by_403`: it treats any status except 401 and 403 as an error, so the status is sent in a header.
    - `joins_lines`: it joins several lines with the same name, so a value with a comma may have been two.
    - `returns_secret`: the secret is a header of the request itself, which the response must overwrite.
    - `shows_claims`: the client's headers reach the upstream except for those that the printed configuration names, so
      a request with any other identity header is rejected.
    - `cookies`: the response header with the cookies for the upstream.
    - `keeps_absent`: a header that the response does not contain stays as the client sent it, so an empty line is
      needed to remove it.
    """

    method: bytes = b""
    uri: bytes = b""
    host: bytes = b""
    upgrade: bytes = b""
    length: bytes = b""
    address: bytes = FORWARDED_FOR
    repeats_lines: bool = False
    refuses_by_403: bool = False
    joins_lines: bool = False
    returns_secret: bool = False
    shows_claims: bool = False
    cookies: bytes = COOKIES_HEADER
    keeps_absent: bool = False

    @property
    def sources(self) -> frozenset[bytes]:
        """The headers that describe the query and are not headers of the client's request."""
        named = {SECRET_HEADER, self.method, self.uri, self.host, self.upgrade, self.length, self.address}
        return frozenset(named - {b""})


DIALECTS = {
    ProxyKind.NGINX: ProxyDialect(
        method=ORIGINAL_METHOD,
        uri=ORIGINAL_URI,
        host=ORIGINAL_HOST,
        upgrade=ORIGINAL_UPGRADE,
        length=ORIGINAL_LENGTH,
        refuses_by_403=True,
        shows_claims=True,
    ),
    ProxyKind.TRAEFIK: ProxyDialect(
        method=FORWARDED_METHOD,
        uri=FORWARDED_URI,
        host=FORWARDED_HOST,
        upgrade=ORIGINAL_UPGRADE,
        repeats_lines=True,
        cookies=b"Cookie",
    ),
    # The query string of Caddy's subrequest is the client's and is ignored: the whole target is in the header.
    ProxyKind.CADDY: ProxyDialect(
        method=FORWARDED_METHOD,
        uri=FORWARDED_URI,
        host=ORIGINAL_HOST,
        upgrade=ORIGINAL_UPGRADE,
        shows_claims=True,
    ),
    ProxyKind.ENVOY: ProxyDialect(upgrade=ORIGINAL_UPGRADE, address=ORIGINAL_ADDRESS, joins_lines=True),
    # Uses gRPC (`ext_authz`); only the handling of the response matters here. It joins lines by commas.
    ProxyKind.ENVOY_GRPC: ProxyDialect(address=b""),
    ProxyKind.GATEWAY_API: ProxyDialect(
        address=b"", joins_lines=True, returns_secret=True, cookies=b"Cookie", keeps_absent=True
    ),
    # Uses SPOE: see `extauth.haproxy`.
    ProxyKind.HAPROXY: ProxyDialect(),
}

# Paths on the host of a web application that the proxy routes to the gateway itself, without an authorization query.
# ``ostiary-gateway door`` prints a route for each. All other paths below ``/auth`` belong to the application.
#
#     /auth/application     the browser returns from sign-in, with a code
#     /auth/logout          the user signs out

SIGN_IN_PATHS = ("/auth/application", "/auth/logout")
_TARGETS = frozenset(path.encode() for path in SIGN_IN_PATHS)


def is_sign_in_path(target: bytes) -> bool:
    return target.partition(b"?")[0] in _TARGETS
