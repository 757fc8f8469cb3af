"""Requests that every door must answer in the same way as the built-in proxy, and what a case of that suite is.

A case is data. `differs` names the doors that answer otherwise, each with a reason of `REASONS`;
``docs/how-to/ask-from-another-proxy.md`` tells operators of each. More cases are in `tests.support.door_suite`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostiary_gateway.extauth.claims import CLEARED, OVERWRITTEN
from ostiary_gateway.http1.headers import IDENTITY_PREFIXES

# Why a door may answer otherwise: the name of the reason, and what must hold then (`door_suite.judge`).
NORMALISES = "normalises"  # it makes one request of several, asks about that, and forwards that: never anything else
OWN_REFUSAL = "refuses by itself"  # with another status, and without asking
REFUSES_CLAIM = "refuses a claim"  # it cannot take the header out, so the gateway refuses the request
PASSES_CLAIM = "passes a claim"  # it can take out no headers but those that the gateway tells
LEADS = "leads to sign in"  # only at the address of the gateway is a page to sign in
NO_500 = "has no 500"  # every failure of the gateway is a 503
NO_LIMITS = "has no limits"  # nothing but the policy decides
HIDES_NOTHING = "hides nothing"  # a review has no 404
NO_SCOPES = "knows no narrowed tokens"  # it would take the token for its owner's
OWN_READING = "reads requests itself"  # the gateway is asked about what another program has read
ANY_HOST = "serves any host"  # nobody chooses an upstream by it
NOBODY_ELSE = "lets nobody be another"  # it refuses every Impersonate-*
ANSWERS_ITSELF = "answers itself"  # the path is the gateway's own, at its own address
REASONS = (
    *(NORMALISES, OWN_REFUSAL, REFUSES_CLAIM, PASSES_CLAIM, LEADS, NO_500),
    *(NO_LIMITS, HIDES_NOTHING, NO_SCOPES, OWN_READING, ANY_HOST, NOBODY_ELSE, ANSWERS_ITSELF),
)
PROXIES = ("nginx", "traefik", "caddy", "envoy", "envoy-grpc", "gateway-api", "haproxy")
ENVOYS = ("envoy", "envoy-grpc", "gateway-api")
MIDDLEWARES = ("asgi", "wsgi")
DOORS = ("built-in", *PROXIES, "webhooks", *MIDDLEWARES)
# For requests that are refused everywhere, in whichever way; and for those of which a door may make harmless ones.
_READ_ELSEWHERE = {"webhooks": OWN_READING}
REFUSED = {**dict.fromkeys((*PROXIES, *MIDDLEWARES), OWN_REFUSAL), **_READ_ELSEWHERE}
ONE_READING = {**dict.fromkeys((*PROXIES, *MIDDLEWARES), NORMALISES), **_READ_ELSEWHERE}

# Who an upstream is told, if not the user of the token.
TOLD = {
    "bob": ("bob", ("system:authenticated",)),
    "bob+guests": ("bob", ("guests", "system:authenticated")),
    "bob+two": ("bob", ("guests", "others", "system:authenticated")),
    "bob+comma": ("bob", ("guests,others", "system:authenticated")),
}

Headers = tuple[tuple[str, str], ...]
# In a target, or in the value of a header: the token of the case's user.
TOKEN = "{token}"


@dataclass(frozen=True)
class Case:
    """`user` is whose token is presented, as `authorization` says; None for none.

    `told` is who the upstream must be told, if not the user, and `arrives` the target that it must get, if not the one
    that was sent. `framing` are the lines that say how long the body is; None for the usual one. `host` is also what
    chooses the upstream; without it no Host is sent. A case that is `alone` has a connection of its own.
    """

    name: str
    target: str = "/x"
    method: str = "GET"
    user: str | None = "alice"
    status: int = 200
    headers: Headers = ()
    body: bytes = b""
    host: str = "shop.example"
    told: str = ""
    differs: Mapping[str, str] = field(default_factory=dict)
    arrives: str = ""
    authorization: str = f"Bearer {TOKEN}"
    framing: Headers | None = None
    content: bytes = b""
    version: str = "HTTP/1.1"
    alone: bool = False

    @property
    def upstream(self) -> str:
        return "cluster" if self.host.lower().startswith("cluster.") else "shop"

    def lines(self, token: str | None) -> Headers:
        """The headers of the request, in their order."""
        host = (("Host", self.host),) if self.host else ()
        bearer = () if token is None or not self.authorization else (("Authorization", self.authorization),)
        framing = self.framing
        if framing is None:
            has_body = self.body or self.method in ("POST", "PUT", "PATCH")
            framing = (("Content-Length", str(len(self.body))),) if has_body else ()
        lines = (*host, ("X-Case", self.name), *bearer, *self.headers, *framing)
        return tuple((name, value.replace(TOKEN, token or "")) for name, value in lines)

    def request(self, token: str | None) -> bytes:
        first = f"{self.method} {self.target.replace(TOKEN, token or '')} {self.version}"
        lines = [first, *(f"{name}: {value}" for name, value in self.lines(token))]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def _by(reason: str, *proxies: str) -> dict[str, str]:
    return dict.fromkeys(proxies, reason)


def _methods() -> list[Case]:
    plain = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    cases = [Case(f"allowed {method}", f"/m/{method.lower()}", method) for method in plain]
    cases += [Case(f"denied {method}", "/denied/thing", method, status=403) for method in plain]
    cases += [Case(f"with a body {method}", "/m/body", method, body=b"x" * 2000) for method in ("POST", "PUT", "PATCH")]
    cases += [Case(f"{method} without a token", "/m", method, user=None, status=401) for method in plain]
    return cases


PATHS = (
    *("/", "/x", "/x/", "/a/b/c", "/a.b", "/a-b_c~d", "/a!b", "/a$b", "/a&b", "/a'b", "/a(b)", "/a*b", "/a+b", "/a,b"),
    *("/a=b", "/a:b", "/a@b", "/%20", "/a%20b", "/%C3%A4", "/a%3Fb", "/a%23b", "/...", "/a..b", "/.well-known/x"),
    "/" + "long" * 250,
)
QUERIES = (
    *("?", "?q", "?q=1", "?q=1&q=2", "?q=a%20b", "?q=a+b", "?q=%2F..%2F", "?q=/../x", "?a[]=1", "?q={}", "?q=%C3%A4"),
    *("?q='x'", '?q="x"', "?a=1&b=2&c=3", "?q=http://other/x", "?watch=true", "?q=" + "v" * 1500),
)
# Each has two readings, or is no path at all.
HOSTILE = (
    *("/public/../x", "/a/../denied/x", "/..", "/../x", "/a/./b", "/./x", "/a//b", "//x", "/a/..", "/a/."),
    *(
        "/%2e%2e/x",
        "/a/%2e%2e/denied",
        "/a/.%2e/b",
        "/a%2fb",
        "/a%2Fb",
        "/a%5cb",
        "/a%5Cb",
        "/a%252fb",
        "/%252e%252e/x",
    ),
    *(
        "/a%00b",
        "/a%0ab",
        "/a%0d%0ab",
        "/a%7fb",
        "/%61",
        "/%41dmin",
        "/a%2db",
        "/a%",
        "/a%g1",
        "/a%1",
        "/a;b",
        "/a;b/c",
    ),
    *("/%ff", "/%c0%ae", "/x?q=;", "/x?q=%", "/x?q=%00"),
)
# Characters that a path cannot have as they are; some proxies encode them.
NOT_ENCODED = ("/a\\b", "/a|b", "/a^b", "/a`b", "/a{b}", "/a<b>", '/a"b', "/x#fragment")


def _paths() -> list[Case]:
    cases = [Case(f"path {path[:40]}", path) for path in PATHS]
    empty = _by(NORMALISES, *MIDDLEWARES)
    cases += [Case(f"query {query[:40]}", f"/q{query}", differs=empty if query == "?" else {}) for query in QUERIES]
    by_envoys = _by(NORMALISES, "traefik", *ENVOYS) | _by(OWN_REFUSAL, "nginx", "caddy")
    elsewhere = ONE_READING | by_envoys
    cases += [Case(f"hostile {path}", path, status=400, differs=elsewhere) for path in HOSTILE]
    cases += [
        Case(
            f"not encoded {path}",
            path,
            status=400,
            differs=elsewhere | _by(NORMALISES, "caddy") | _by(OWN_REFUSAL, "haproxy"),
        )
        for path in NOT_ENCODED
    ]
    return cases


def _decisions() -> list[Case]:
    no_limits, not_hidden = _by(NO_LIMITS, "webhooks", *MIDDLEWARES), _by(HIDES_NOTHING, "webhooks")
    no_scopes = _by(NO_SCOPES, "webhooks")
    return [
        Case("denied", "/denied", status=403),
        Case("denied below", "/denied/a/b?q=1", status=403),
        Case("hidden", "/hidden/thing", status=404, differs=not_hidden),
        Case("hidden HEAD", "/hidden/thing", "HEAD", status=404, differs=not_hidden),
        Case("hidden POST", "/hidden/thing", "POST", status=403),
        Case("hidden DELETE", "/hidden/thing", "DELETE", status=403),
        Case("limited", "/limited", status=429, differs=no_limits),
        Case("limited POST", "/limited", "POST", status=429, differs=no_limits),
        Case("not admitted", "/full", status=403, differs=no_limits),
        Case("undecided", "/fails", status=500, differs=_by(NO_500, "envoy", "gateway-api")),
        Case("denied for another user", "/alice-only", user="bob", status=403),
        Case("allowed for this user", "/alice-only", user="alice"),
        Case("within the scope", "/narrow/x", user="narrowed", differs=no_scopes),
        Case("beyond the scope: path", "/x", user="narrowed", status=403, differs=no_scopes),
        Case("beyond the scope: method", "/narrow/x", "POST", user="narrowed", status=403, differs=no_scopes),
        Case("within the scope, but denied", "/denied", user="narrowed", status=403, differs=no_scopes),
    ]


# Paths for which people often add a location or route that does not ask the gateway.
OFTEN_OPEN = (
    *("/static/app.js", "/assets/app.css", "/public/x", "/favicon.ico", "/robots.txt", "/health", "/healthz"),
    *("/metrics", "/api/x", "/ws", "/.well-known/x", "/x.png"),
)


def _authentication() -> list[Case]:
    def presenting(name: str, value: str, status: int = 401) -> Case:
        return Case(f"Authorization {name}", user=None, headers=(("Authorization", value),), status=status)

    return [
        *(Case(f"no token at {path}", path, user=None, status=401) for path in OFTEN_OPEN),
        Case("no token", user=None, status=401),
        Case(
            "no token at the root, from a browser",
            "/",
            user=None,
            headers=(("Accept", "text/html"),),
            status=401,
            differs=_by(LEADS, "built-in"),
        ),
        Case("revoked", user="revoked", status=401),
        Case("unknown", user="unknown", status=401),
        presenting("Basic", "Basic YTpi"),
        presenting("empty", ""),
        presenting("Bearer without a token", "Bearer"),
        presenting("Bearer rubbish", "Bearer rubbish"),
        presenting("Bearer with a comma", "Bearer a,b"),
        presenting("another scheme", "Negotiate abc"),
        presenting("long", "Bearer " + "x" * 3000),
        Case("a cookie is no token", user=None, headers=(("Cookie", "__Host-ostiary-session=x"),), status=401),
    ]


# In every answer of the gateway, so that no proxy passes the client's.
ANSWERED = ("X-Remote-User", "X-Remote-Group", "X-Remote-Uid", "x-remote-user", "X-REMOTE-USER")
CLAIMS = (
    *("X-Remote-User", "X-Remote-Group", "X-Remote-Uid", "X_Remote_User", "X_Remote_Group", "X-Remote_User"),
    *("x-remote-user", "X-REMOTE-USER", "Remote-User", "X-Forwarded-User", "X-Forwarded-Email", "X-User", "X-Groups"),
    *(
        "X-Auth-Request-User",
        "X-WebAuth-User",
        "X-Original-URI",
        "X-Original-URL",
        "X-Original-Method",
        "X-Rewrite-URL",
    ),
    *("X-Forwarded-Uri", "X-Forwarded-Method", "X-HTTP-Method-Override", "X-Ms-Client-Principal", "X-Id-Token"),
    *("X-Goog-Authenticated-User-Email", "Cf-Access-Jwt-Assertion", "Proxy", "Forwarded", "X-Original-Host"),
    *("X-Authentik-Username", "X-Authentik-Groups", "Tailscale-User-Login", "X-Client-Cn", "Cf-Connecting-Ip"),
    *("Fastly-Client-IP", "X-Cluster-Client-IP"),
)
# Proxies set headers of these prefixes themselves, or the gateway has rules about them.
OTHER_PREFIXES = (b"x-forwarded-", b"impersonate")
# Of these, names that no list has: one for every other protected prefix.
UNLISTED = (
    *("X-Remote-Extra-Scope", "X-Authentik-Meta-Anything"),
    *(f"{prefix.decode().removesuffix('-')}-anything" for prefix in IDENTITY_PREFIXES if prefix not in OTHER_PREFIXES),
)


def _claims() -> list[Case]:
    seen = _by(PASSES_CLAIM, *MIDDLEWARES)
    passed = _by(PASSES_CLAIM, "gateway-api") | seen
    cases = [
        Case(f"claim {name}", "/claim", headers=((name, "evil"),), differs=seen if name in ANSWERED else passed)
        for name in CLAIMS
    ]
    listed = [name for name in CLEARED if name != "authorization" and not name.startswith("impersonate")]
    for start in range(0, len(listed), 12):
        names = listed[start : start + 12]
        headers = tuple((name, "evil") for name in names)
        cases.append(Case(f"claims from {names[0]} to {names[-1]}", "/claim", headers=headers, differs=passed))
    addresses = tuple((name, "evil") for name in OVERWRITTEN)
    cases.append(Case("claims of an address", "/claim", headers=addresses, differs=passed))
    unlisted = _by(REFUSES_CLAIM, "nginx") | passed
    cases += [Case(f"claim {name}", "/claim", headers=((name, "evil"),), differs=unlisted) for name in UNLISTED]
    cases += [
        Case(
            "claims at a denied path",
            "/denied",
            headers=(("X-Original-URI", "/x"), ("X-Forwarded-Uri", "/x")),
            status=403,
        ),
        Case("the method of another", "/get-only", "POST", headers=(("X-Forwarded-Method", "GET"),), status=403),
        Case(
            "the original method of another", "/get-only", "POST", headers=(("X-Original-Method", "GET"),), status=403
        ),
        Case("override by header", "/get-only", "POST", headers=(("X-HTTP-Method-Override", "GET"),), status=403),
        Case(
            "several claims",
            headers=(("X-Remote-User", "evil"), ("X-Remote-User", "evil2"), ("X-Remote-Group", "root")),
            differs=seen,
        ),
        Case("claims without a token", user=None, headers=(("X-Remote-User", "alice"),), status=401),
        Case("the secret of the door", headers=(("X-Ostiary-Door", "guess"),)),
    ]
    return cases


def _identities() -> list[Case]:
    users = (
        *("plain", "commas", "percent", "umlaut", "spaces", "many", "nobody", "colons", "quotes"),
        *("long", "equal", "plus", "encoded", "emoji", "extras"),
    )
    cases = [Case(f"groups of {user}", "/who", user=user) for user in users]
    cases += [Case(f"groups of {user}, again", "/who", user=user) for user in users]
    as_bob, nobody_else = ("Impersonate-User", "bob"), _by(NOBODY_ELSE, *MIDDLEWARES)
    as_alice = ("Impersonate-User", "alice")
    guests, others = ("Impersonate-Group", "guests"), ("Impersonate-Group", "others")
    comma = ("Impersonate-Group", "guests,others")
    # Envoy makes one line of two.
    one_line = nobody_else | _by(REFUSES_CLAIM, "envoy", "gateway-api")
    cases += [
        Case("as another", "/who", headers=(as_bob,), told="bob", differs=nobody_else),
        Case("as another with a group", "/who", headers=(as_bob, guests), told="bob+guests", differs=nobody_else),
        Case("as another with two groups", "/who", headers=(as_bob, guests, others), told="bob+two", differs=one_line),
        Case("as another with a comma", "/who", headers=(as_bob, comma), told="bob+comma", differs=one_line),
        Case("as another, who may not", "/alice-only", headers=(as_bob,), status=403, differs=nobody_else),
        Case("as another without the right", "/who", user="bob", headers=(as_alice,), status=403, differs=nobody_else),
        Case("a group without a user", headers=(guests,), status=400, differs=_by(OWN_READING, "webhooks")),
    ]
    return cases


def _hosts() -> list[Case]:
    refused = _by(OWN_REFUSAL, *PROXIES)
    any_host = refused | _by(ANY_HOST, "webhooks", *MIDDLEWARES)
    methods = refused | _by(OWN_READING, "webhooks", *MIDDLEWARES)
    return [
        Case("host with a port", host="shop.example:8080"),
        Case("host in capitals", host="SHOP.example"),
        Case("another host", host="other.example", status=404, differs=any_host),
        Case("another host with a token of nobody", host="other.example", user=None, status=401, differs=any_host),
        Case("an unknown method", method="FOO", status=400, differs=methods),
        Case("TRACE", method="TRACE", status=405, differs=methods),
    ]


CASES = [*_methods(), *_paths(), *_decisions(), *_authentication(), *_claims(), *_identities(), *_hosts()]
