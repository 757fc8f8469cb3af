"""Requests whose target or host could be read in another way than the one decided on."""

from __future__ import annotations

from dataclasses import replace

from tests.support.door_cases import ANY_HOST, MIDDLEWARES, NORMALISES, ONE_READING, REFUSED, TOKEN, Case

HOSTILE = (
    *("/a%25252fb", "/%2e%2e%2fdenied", "/x%2f..%2f..%2fdenied", "/a/..%2fdenied", "/a/..;/denied", "/;/denied"),
    *(
        "/denied;x=1",
        "/x;jsessionid=1",
        "/x%3Bjsessionid=1/../denied",
        "/.%2e/denied",
        "/%2E%2E/denied",
        "/a/%2e/denied",
    ),
    *("/denied%2f", "/%64enied", "/denied%", "/x/%2F/denied", "/\\denied", "/..\\denied", "/%c0%af..%c0%afdenied"),
    *("/a%u002fb", "/%uff0e%uff0e/denied", "/x%09", "/x%0d%0aX-Remote-User:%20evil", "/a///denied", "////denied"),
    # The path that is denied comes first, and a program that normalises sees another one.
    *("/denied/../x", "/denied/%2e%2e/x", "/denied/..", "/denied%2f..%2fx", "/denied/..;/x", "/denied%00"),
    *("/x/..%00/denied", "/x/..%5cdenied", "/x/%252e%252e/denied", "/.;/denied", "/x#/../denied", "/denied#x"),
)
# Each reads as one path only, whatever it looks like.
ODD = (
    "/DENIED",
    "/Denied",
    "/x%3B",
    "/a%40b",
    "/a%25",
    "/~denied",
    "/a/..../b",
    "/x?/denied",
    "/x?../denied",
    "/x??",
    "/%F0%9F%99%82",
)
_UNKNOWN_UPSTREAM = {"webhooks": ANY_HOST}
URL = "http://shop.example"


def _paths() -> list[Case]:
    cases = [Case(f"two readings {path}", path, status=400, differs=ONE_READING) for path in HOSTILE]
    cases += [Case(f"odd {path}", path, differs={"wsgi": NORMALISES}) for path in ODD]
    cases += [
        Case("a long target", "/long/" + "x" * 7000),
        Case("a long query", "/long?q=" + "%20x" * 1700),
        Case("a very long target", "/" + "x" * 100_000, status=431, alone=True, differs=REFUSED),
        Case("denied at great length", "/denied/" + "x" * 7000, status=403),
        Case("a byte beyond ASCII", "/\xe4", status=400, differs=ONE_READING),
        Case("a tab", "/a\tb", status=400, alone=True, differs=REFUSED),
        Case("a space", "/a b", status=400, alone=True, differs=REFUSED),
        Case("no target", "", status=400, alone=True, differs=REFUSED),
        Case("a target without a slash", "x", status=400, alone=True, differs=REFUSED),
        Case("a star", "*", "OPTIONS", status=200, differs=ONE_READING),
        Case("a star with GET", "*", status=400, alone=True, differs=REFUSED),
        Case("only a query", "?q=1", status=400, alone=True, differs=REFUSED),
    ]
    return cases


def _urls() -> list[Case]:
    return [
        Case("a whole URL", f"{URL}/x", arrives="/x", differs=ONE_READING),
        Case("a whole URL in capitals", "HTTP://SHOP.example/x?q=1", arrives="/x?q=1", differs=ONE_READING),
        Case("a whole URL, denied", f"{URL}/denied", status=403, differs=ONE_READING),
        Case("a whole URL with https, denied", "https://shop.example/denied", status=403, differs=ONE_READING),
        Case("a whole URL, hidden", f"{URL}/hidden/x", status=404, differs=ONE_READING),
        Case("a whole URL without a path", URL, status=400, differs=ONE_READING),
        Case("a whole URL with dots", f"{URL}/a/../denied", status=400, differs=ONE_READING),
        Case("a whole URL of another host", "http://other.example/x", status=400, differs=ONE_READING),
        Case("a whole URL of another upstream", "http://cluster.example/shop-only", status=400, differs=ONE_READING),
        Case(
            "a whole URL of another upstream, denied there",
            "http://cluster.example/denied",
            status=400,
            differs=ONE_READING,
        ),
        Case("a whole URL with a name", "http://alice@shop.example/x", status=400, differs=ONE_READING),
        Case("another scheme", "ftp://shop.example/x", status=400, differs=ONE_READING),
        Case("an authority", "shop.example:80", status=400, alone=True, differs=REFUSED),
        Case("CONNECT", "shop.example:80", "CONNECT", status=405, alone=True, differs=REFUSED),
        Case("a path that is a URL", "/http://other.example/x", status=400, differs=ONE_READING),
        Case("a path of two slashes and a host", "//other.example/x", status=400, differs=ONE_READING),
    ]


def _hosts() -> list[Case]:
    def sent(name: str, *hosts: str, status: int = 400) -> Case:
        lines = tuple(("Host", host) for host in hosts)
        differs = REFUSED | dict.fromkeys(MIDDLEWARES, ANY_HOST)
        if len(set(hosts)) < len(hosts):
            # To HAProxy the same host twice is one.
            differs |= {"haproxy": NORMALISES}
        return Case(f"hosts {name}", host="", headers=lines, status=status, alone=True, differs=differs)

    return [
        sent("none"),
        sent("empty", ""),
        sent("twice", "shop.example", "shop.example"),
        sent("two", "shop.example", "cluster.example"),
        sent("a list", "shop.example, cluster.example", status=404),
        sent("with a name", "alice@shop.example", status=404),
        sent("with a path", "shop.example/x", status=404),
        sent("with a space", "shop.example cluster.example", status=404),
        sent("with a dot at the end", "shop.example.", status=404),
        sent("of an address", "127.0.0.1", status=404),
        Case("hosts the port of nobody", host="shop.example:1"),
        Case("hosts a port that is none", host="shop.example:x", differs=ONE_READING),
        Case("hosts forwarded", "/shop-only", headers=(("X-Forwarded-Host", "cluster.example"),)),
        Case("hosts the upstream of others", "/cluster-only", status=403, differs=_UNKNOWN_UPSTREAM),
        Case(
            "hosts the forwarded upstream",
            "/cluster-only",
            headers=(("X-Forwarded-Host", "cluster.example"),),
            status=403,
            differs=_UNKNOWN_UPSTREAM,
        ),
        Case("hosts this upstream", "/shop-only"),
    ]


# To a proxy that reads one of them otherwise, it would be for another upstream than the one decided on.
BESIDE_PREFIX = ("/adminx", "/Admin", "/ADMIN/x", "/x/admin", "/admin.", "/admin-x", "/admin%20")
AROUND_PREFIX = (
    *("/x/../admin/x", "/./admin/x", "//admin/x", "/admin//x", "/admin/../x", "/admin/..", "/admin/./x", "/%61dmin/x"),
    *("/admin%2fx", "/admin%2Fx", "/admin;x/y", "/admin;/x", "/x/..;/admin/x", "/admin/%2e%2e/x", "/%2fadmin/x"),
    *("/admin\\x", "/admin%5cx", "/admin%00/x", "/admin%2f..%2fx", "/x%2f..%2fadmin%2fx", "/admin/..%2fx"),
)


def _prefixes() -> list[Case]:
    """Two upstreams have one host; a middleware, and a webhook, know nothing of that."""
    elsewhere = dict.fromkeys(("webhooks", *MIDDLEWARES), ANY_HOST)
    cases = [Case(f"prefix {path}", path) for path in ("/admin", "/admin/", "/admin/x", "/admin/x?q=/x", "/admin?x")]
    cases += [Case(f"prefix of another {path}", path, user="bob") for path in BESIDE_PREFIX]
    cases += [
        Case(f"prefix for few {path}", path, user="bob", status=403, differs=elsewhere)
        for path in ("/admin", "/admin/", "/admin/x")
    ]
    cases += [Case("prefix denied", "/admin/denied", status=403, differs=elsewhere)]
    cases += [
        Case(f"around the prefix {path}", path, user=user, status=400, differs=ONE_READING | elsewhere)
        for path in AROUND_PREFIX
        for user in ("bob", "alice")
    ]
    return [replace(case, name=f"{case.name} {case.user}") for case in cases]


def _tokens_in_targets() -> list[Case]:
    return [
        Case("a token in the query", f"/x?access_token={TOKEN}", authorization="", status=401),
        Case("a token in the query of Kubernetes", f"/x?token={TOKEN}", authorization="", status=401),
        Case("a token in the path", f"/{TOKEN}/x", authorization="", status=401),
        Case("a method in the query", "/get-only?_method=DELETE", "POST", status=403),
        Case("a method in the query, allowed", "/get-only?_method=DELETE"),
    ]


CASES = [*_paths(), *_urls(), *_hosts(), *_prefixes(), *_tokens_in_targets()]
