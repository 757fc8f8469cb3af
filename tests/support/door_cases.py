"""Requests that every door must answer in the same way as the built-in proxy: the suite of ``tests/e2e/test_doors.py``.

A case is data. `differs` names the proxies that answer otherwise, each with a reason of `REASONS`;
``docs/how-to/ask-from-another-proxy.md`` tells operators of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Why a proxy may answer otherwise: the name of the reason, and what must hold then.
NORMALISES = "normalises"  # it makes one path of several, asks about that, and forwards that: never anything else
OWN_REFUSAL = "refuses by itself"  # with another status, and without asking
REFUSES_CLAIM = "refuses a claim"  # it cannot take the header out, so the gateway refuses the request
PASSES_CLAIM = "passes a claim"  # it can take out no headers but those that the gateway tells
LEADS = "leads to sign in"  # only at the address of the gateway is a page to sign in
NO_500 = "has no 500"  # every failure of the gateway is a 503
REASONS = (NORMALISES, OWN_REFUSAL, REFUSES_CLAIM, PASSES_CLAIM, LEADS, NO_500)
PROXIES = ("nginx", "traefik", "caddy", "envoy", "gateway-api")
ENVOYS = ("envoy", "gateway-api")

# Who an upstream is told, if not the user of the token.
TOLD = {
    "bob": ("bob", ("system:authenticated",)),
    "bob+guests": ("bob", ("guests", "system:authenticated")),
}

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """`user` is whose token is presented; None for none. `told` is who the upstream must be told, if not the user."""

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

    def request(self, token: str | None) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", f"Host: {self.host}", f"X-Case: {self.name}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(self.body)}")
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
    cases += [Case(f"query {query[:40]}", f"/q{query}") for query in QUERIES]
    by_envoys = _by(NORMALISES, "traefik", *ENVOYS) | _by(OWN_REFUSAL, "nginx", "caddy")
    cases += [Case(f"hostile {path}", path, status=400, differs=by_envoys) for path in HOSTILE]
    cases += [
        Case(f"not encoded {path}", path, status=400, differs=by_envoys | _by(NORMALISES, "caddy"))
        for path in NOT_ENCODED
    ]
    return cases


def _decisions() -> list[Case]:
    return [
        Case("denied", "/denied", status=403),
        Case("denied below", "/denied/a/b?q=1", status=403),
        Case("hidden", "/hidden/thing", status=404),
        Case("hidden HEAD", "/hidden/thing", "HEAD", status=404),
        Case("hidden POST", "/hidden/thing", "POST", status=403),
        Case("hidden DELETE", "/hidden/thing", "DELETE", status=403),
        Case("limited", "/limited", status=429),
        Case("limited POST", "/limited", "POST", status=429),
        Case("not admitted", "/full", status=403),
        Case("undecided", "/fails", status=500, differs=_by(NO_500, *ENVOYS)),
        Case("denied for another user", "/alice-only", user="bob", status=403),
        Case("allowed for this user", "/alice-only", user="alice"),
        Case("within the scope", "/narrow/x", user="narrowed"),
        Case("beyond the scope: path", "/x", user="narrowed", status=403),
        Case("beyond the scope: method", "/narrow/x", "POST", user="narrowed", status=403),
        Case("within the scope, but denied", "/denied", user="narrowed", status=403),
    ]


def _authentication() -> list[Case]:
    def presenting(name: str, value: str, status: int = 401) -> Case:
        return Case(f"Authorization {name}", user=None, headers=(("Authorization", value),), status=status)

    return [
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
)
# Of these, names that no list has.
UNLISTED = ("X-Remote-Extra-Scope", "X-Remote-Anything", "X-Ostiary-Anything", "Remote-Anything", "X-Pomerium-Anything")


def _claims() -> list[Case]:
    passed = _by(PASSES_CLAIM, "gateway-api")
    cases = [
        Case(f"claim {name}", "/claim", headers=((name, "evil"),), differs={} if name in ANSWERED else passed)
        for name in CLAIMS
    ]
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
        ),
        Case("claims without a token", user=None, headers=(("X-Remote-User", "alice"),), status=401),
        Case("the secret of the door", headers=(("X-Ostiary-Door", "guess"),)),
    ]
    return cases


def _identities() -> list[Case]:
    users = ("plain", "commas", "percent", "umlaut", "spaces", "many", "nobody", "colons", "quotes")
    cases = [Case(f"groups of {user}", "/who", user=user) for user in users]
    cases += [Case(f"groups of {user}, again", "/who", user=user) for user in users]
    as_bob = ("Impersonate-User", "bob")
    cases += [
        Case("as another", "/who", headers=(as_bob,), told="bob"),
        Case("as another with a group", "/who", headers=(as_bob, ("Impersonate-Group", "guests")), told="bob+guests"),
        Case("as another, who may not", "/alice-only", headers=(as_bob,), status=403),
        Case("as another without the right", "/who", user="bob", headers=(("Impersonate-User", "alice"),), status=403),
        Case("a group without a user", headers=(("Impersonate-Group", "root"),), status=400),
    ]
    return cases


def _hosts() -> list[Case]:
    return [
        Case("host with a port", host="shop.example:8080"),
        Case("host in capitals", host="SHOP.example"),
        Case("another host", host="other.example", status=404, differs=_by(OWN_REFUSAL, *PROXIES)),
        Case(
            "another host with a token of nobody",
            host="other.example",
            user=None,
            status=401,
            differs=_by(OWN_REFUSAL, *PROXIES),
        ),
        Case("an unknown method", method="FOO", status=400, differs=_by(OWN_REFUSAL, *PROXIES)),
        Case("TRACE", method="TRACE", status=405, differs=_by(OWN_REFUSAL, *PROXIES)),
    ]


CASES = [*_methods(), *_paths(), *_decisions(), *_authentication(), *_claims(), *_identities(), *_hosts()]
