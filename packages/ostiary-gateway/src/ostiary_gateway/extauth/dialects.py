"""What each kind of proxy tells the gateway about a request, and how it understands the answer.

Read by `question`, `carried` and `identity`, and by ``ostiary-gateway door``, which prints the configuration of the
proxy: what is read here is what is set there. What was tried with the real proxies is in
``docs/how-to/ask-from-another-proxy.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary_gateway.config.extauth import ProxyKind

# The header with the door's secret. Answers hold it empty where it would reach the upstream otherwise.
SECRET_HEADER = b"x-ostiary-door"
FORWARDED_FOR = b"x-forwarded-for"
# The header of an answer with the client's cookies but ours, which the printed configuration then puts into Cookie.
COOKIES_HEADER = b"X-Ostiary-Cookie"

# Set by the printed configuration, whatever the client sent.
ORIGINAL_METHOD, ORIGINAL_URI, ORIGINAL_HOST = b"x-original-method", b"x-original-uri", b"x-original-host"
ORIGINAL_UPGRADE, ORIGINAL_LENGTH = b"x-original-upgrade", b"x-original-content-length"
ORIGINAL_ADDRESS = b"x-original-address"
# Traefik and Caddy set these by themselves, whatever the client sent.
FORWARDED_METHOD, FORWARDED_URI, FORWARDED_HOST = b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyDialect:
    """How one kind of proxy asks and is answered. Names of headers are in lower case.

    `method`, `uri` and `host` are the headers that say them. Where they are empty, it is the method of the question
    itself, the path behind the door's own, and ``Host``. `upgrade` says to which protocol the connection will switch,
    and `length` how long the body is; empty: the proxy carries no such requests, or does not tell.

    `address` is the header whose last entry is the address of the proxy's client; where it is empty, nobody but
    trusted proxies says where a request comes from. `repeats_lines`: it keeps several lines with the same
    name, so that each group has its own. `refuses_by_403`: any status but 401 and 403 would be an error to it, so the
    status goes along in a header. `joins_lines`: it makes one line of several with the same name, so a value with a
    comma may have been two. `returns_secret`: the secret is a header of the request itself, which the answer
    must overwrite. `shows_claims`: the client's headers reach the upstream except for those that the printed
    configuration names, so a request with another claim is refused. `cookies` is the header of an answer with the
    cookies that the upstream gets. `keeps_absent`: what an answer does not name stays as the client sent it, so there
    must be a line without a value where nothing is left.
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
        """The headers that are about the question, and no headers of the client's request."""
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
    # Its own query string is the client's, and says nothing: the whole target is in the header.
    ProxyKind.CADDY: ProxyDialect(
        method=FORWARDED_METHOD,
        uri=FORWARDED_URI,
        host=ORIGINAL_HOST,
        upgrade=ORIGINAL_UPGRADE,
        shows_claims=True,
    ),
    ProxyKind.ENVOY: ProxyDialect(upgrade=ORIGINAL_UPGRADE, address=ORIGINAL_ADDRESS, joins_lines=True),
    # Asks in another way (`doors.check`); only what it makes of the answer is read here. It joins lines by commas.
    ProxyKind.ENVOY_GRPC: ProxyDialect(address=b""),
    ProxyKind.GATEWAY_API: ProxyDialect(
        address=b"", joins_lines=True, returns_secret=True, cookies=b"Cookie", keeps_absent=True
    ),
    # It asks in another protocol: see `doors.haproxy`.
    ProxyKind.HAPROXY: ProxyDialect(),
}

# The paths at the host of a web application that the proxy sends to the gateway itself, and never asks about. Pure.
#
#     /auth/application     a browser comes back from sign-in, with a code (`login.applications.visits`)
#     /auth/logout          a person signs out
#
# ``ostiary-gateway door`` prints a route for each of them. Everything else below ``/auth`` is the application's own
# there.

SIGN_IN_PATHS = ("/auth/application", "/auth/logout")
_TARGETS = frozenset(path.encode() for path in SIGN_IN_PATHS)


def is_sign_in_path(target: bytes) -> bool:
    return target.partition(b"?")[0] in _TARGETS
