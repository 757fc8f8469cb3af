"""Requests whose headers claim something, hide something, or are no headers at all."""

from __future__ import annotations

from tests.support.door_cases import (
    ENVOYS,
    MIDDLEWARES,
    NOBODY_ELSE,
    NORMALISES,
    ONE_READING,
    OWN_READING,
    PASSES_CLAIM,
    REFUSED,
    REFUSES_CLAIM,
    TOKEN,
    Case,
    Headers,
)

BEARER = f"Bearer {TOKEN}"
# As Kubernetes reads it, and as it does not.
READ = (
    f"bearer {TOKEN}",
    f"BEARER {TOKEN}",
    f"bEaReR {TOKEN}",
    f"Bearer {TOKEN} ",
    f" Bearer {TOKEN}",
    f"Bearer {TOKEN} x",
)
NOT_READ = (
    TOKEN,
    f"Bearer  {TOKEN}",
    f"Bearer\t{TOKEN}",
    f"Bearer:{TOKEN}",
    f"Bearer={TOKEN}",
    f"Bearer,{TOKEN}",
    f'Bearer "{TOKEN}"',
    f"Bearer {TOKEN},",
    f"Bearer {TOKEN}\xe4",
    f"Bearer Bearer {TOKEN}",
    f"Basic {TOKEN}",
    f"Basic YTpi, Bearer {TOKEN}",
    f"Token {TOKEN}",
)
# In the place of Authorization, nothing is a token.
ELSEWHERE = (
    *("Proxy-Authorization", "X-Authorization", "Authorization_", "X-Auth-Token", "X-Forwarded-Access-Token"),
    *("X-Access-Token", "Authorization2", "X-Ostiary-Door", "WWW-Authenticate"),
)


def _shown(value: str) -> str:
    return ascii(value.replace(TOKEN, "..."))


def _tokens() -> list[Case]:
    cases = [Case(f"presented as {_shown(value)}", authorization=value) for value in READ]
    cases += [Case(f"not presented by {_shown(value)}", authorization=value, status=401) for value in NOT_READ]
    cases += [
        Case(f"presented in {name}", authorization="", headers=((name, BEARER),), status=401) for name in ELSEWHERE
    ]
    other, again = (("Authorization", "Bearer other"),), (("Authorization", BEARER),)
    space = f"\xa0Bearer {TOKEN}"
    cases += [
        Case("presented after a space that is none", authorization=space, status=401, differs={"wsgi": OWN_READING}),
        Case("presented twice", headers=again, status=400, differs=REFUSED),
        Case("presented and another after it", headers=other, status=400, differs=REFUSED),
        Case(
            "presented and another before it",
            authorization="Bearer other",
            headers=again,
            status=400,
            differs=REFUSED,
        ),
        Case(
            "presented and nothing",
            headers=(("Authorization", ""),),
            status=400,
            differs=REFUSED | dict.fromkeys(ENVOYS, NORMALISES),
        ),
        Case("presented and a password", headers=(("Authorization", "Basic YTpi"),), status=400, differs=REFUSED),
        Case("presented in another case", authorization="", headers=(("aUTHORIZATION", BEARER),)),
        Case("presented with an underscore beside it", headers=(("Authorization_", "Basic YTpi"),)),
    ]
    return cases


WEBSOCKET: Headers = (
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)
# Named in Connection, a header is for the next hop alone: a proxy removes it, be it ours or the client's.
TAKEN = (
    "X-Remote-User",
    "X-Remote-Group",
    "x-remote-uid",
    "close, X-Remote-User",
    "keep-alive, X-Remote-Group",
    "X-Remote-Extra-Team",
)
LISTED = (
    "Authorization",
    "X-Ostiary-Door",
    "X-Forwarded-For",
    "X-Forwarded-Uri",
    "X-Original-URI",
    "X-Original-Method",
    "Host",
    "Content-Length",
    "Cookie",
    "Impersonate-User",
    "X_Remote_User",
)


def _hop_by_hop() -> list[Case]:
    cases = [
        Case(f"Connection: {value}", headers=(("Connection", value),), status=400, alone=True, differs=ONE_READING)
        for value in TAKEN
    ]
    cases += [
        Case(f"Connection: {name}", headers=(("Connection", name),), status=400, alone=True, differs=ONE_READING)
        for name in LISTED
    ]
    cases += [
        Case("Connection: another", headers=(("Connection", "X-Mine"), ("X-Mine", "1"))),
        Case("Connection: close", headers=(("Connection", "close"),), alone=True),
        Case(
            "Connection: two lines",
            headers=(("Connection", "keep-alive"), ("Connection", "X-Remote-User")),
            status=400,
            alone=True,
            differs=ONE_READING,
        ),
        Case(
            "Connection: Upgrade, and who the user is",
            "/socket",
            headers=(*WEBSOCKET, ("Connection", "Upgrade, X-Remote-User"), ("Connection", "X-Remote-Group")),
            status=400,
            alone=True,
            differs=ONE_READING,
        ),
        # Who sends requests in the name of others must not be made to send them in its own.
        *(
            Case(
                f"Connection: {value}, as another who may not",
                "/alice-only",
                headers=(("Impersonate-User", "bob"), ("Connection", value)),
                status=400,
                alone=True,
                # Envoy takes out what is named before it asks anybody.
                differs=REFUSED | dict.fromkeys(ENVOYS, NORMALISES),
            )
            for value in ("Impersonate-User", "close, impersonate-user")
        ),
        Case(
            "Connection: Upgrade to h2c",
            "/socket",
            headers=(("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABk")),
            alone=True,
            differs=ONE_READING,
        ),
        Case("Keep-Alive", headers=(("Keep-Alive", "timeout=5"), ("TE", "trailers"))),
        Case("Proxy-Connection", headers=(("Proxy-Connection", "X-Remote-User"),)),
        Case(
            "denied, with a Connection",
            "/denied",
            headers=(("Connection", "X-Original-URI"), ("X-Original-URI", "/x")),
            status=400,
            alone=True,
            differs=ONE_READING,
        ),
    ]
    return cases


# What a proxy says to the gateway about a request, or the gateway to a proxy: a client must not say it for them.
SOURCES = (
    *(("X-Original-URI", "/x"), ("X-Original-Method", "OPTIONS"), ("X-Original-Host", "cluster.example")),
    *(("X-Original-Upgrade", "websocket"), ("X-Original-Content-Length", "7"), ("X-Original-Address", "192.0.2.9")),
    *(("X-Forwarded-Uri", "/x"), ("X-Forwarded-Method", "OPTIONS"), ("X-Forwarded-Host", "cluster.example")),
    *(("X-Forwarded-For", "192.0.2.9"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Prefix", "/x")),
    *(
        ("X-Ostiary-Status", "200"),
        ("X-Ostiary-Body", "x"),
        ("X-Envoy-Original-Path", "/x"),
        ("X-Real-IP", "192.0.2.9"),
    ),
    *(("X-Original-URL", "/x"), ("X-Rewrite-URL", "/x"), ("X-Forwarded-Path", "/x"), ("X-Replaced-Path", "/x")),
    ("X-Auth-Request-Redirect", "/x"),
)


def _sources() -> list[Case]:
    refused = dict.fromkeys(("nginx", "caddy"), REFUSES_CLAIM)
    cases = []
    for name, value in SOURCES:
        spellings = (((name, value),), ((name, value), (name.lower(), value)), ((name.replace("-", "_"), value),))
        for how, headers in zip(("said", "said twice", "said with underscores"), spellings, strict=True):
            cases.append(Case(f"{how}: {name}", "/denied/said", headers=headers, status=403, differs=refused))
    return cases


# Spelled so that a program which makes variables of headers could take it for ours.
SPELLED = (
    *(
        "X.Remote.User",
        "X_Remote-User",
        "X!Remote!User",
        "x~remote~user",
        "X-Remote.User",
        "X-REMOTE_USER",
        "X|Remote|Group",
    ),
    *("x_remote_group", "X-Remote-Extra-Admin", "X_Remote_Extra_Admin", "X_Forwarded_User"),
)
SPELLED_DIFFERS = {
    **dict.fromkeys(("gateway-api", *MIDDLEWARES), PASSES_CLAIM),
    **dict.fromkeys(("nginx", "caddy"), REFUSES_CLAIM),
}
OVERRIDES = ("X-HTTP-Method", "X-Method-Override", "X_HTTP_Method_Override", "x-http-method-override")


def _names() -> list[Case]:
    cases = [Case(f"spelled {name}", "/claim", headers=((name, "evil"),), differs=SPELLED_DIFFERS) for name in SPELLED]
    cases += [Case(f"override {name}", "/get-only", headers=((name, "DELETE"),)) for name in OVERRIDES]
    cases += [
        Case(f"no override {name}", "/get-only", "POST", headers=((name, "GET"),), status=403) for name in OVERRIDES
    ]
    as_bob = (("Impersonate-User", "bob"),)
    read_elsewhere, nobody_else = {"webhooks": OWN_READING}, dict.fromkeys(MIDDLEWARES, NOBODY_ELSE)
    # To some such a header is none.
    underscores = nobody_else | read_elsewhere | dict.fromkeys(("nginx", "caddy", "envoy", "envoy-grpc"), NORMALISES)
    underscores["gateway-api"] = PASSES_CLAIM
    told = (("X-Remote-Extra-Team", "evil"), ("X-Remote-Uid", "evil"))
    seen = dict.fromkeys(MIDDLEWARES, PASSES_CLAIM)
    cases += [
        Case(f"claims of what is told {user}", user=user, headers=told, differs=seen) for user in ("bob", "extras")
    ]
    empty: tuple[str, ...] = ("X-Remote-User", "X-Remote-Group", "X-Forwarded-For", "X-Mine", "Accept", "Cookie")
    cases += [Case(f"empty {name}", headers=((name, ""),)) for name in empty]
    cases += [
        Case("as nobody", headers=(("Impersonate-User", ""),), status=400, differs=read_elsewhere),
        Case("as another twice", headers=(*as_bob, *as_bob), status=400, differs=read_elsewhere),
        Case("as another by another name", headers=(("impersonate-USER", "bob"),), told="bob", differs=nobody_else),
        Case("as another with an underscore", headers=(("Impersonate_User", "bob"),), told="bob", differs=underscores),
        Case(
            "as something",
            headers=(("Impersonate-Anything", "x"),),
            status=400,
            differs=read_elsewhere | {"gateway-api": PASSES_CLAIM},
        ),
    ]
    return cases


def _broken() -> list[Case]:
    def broken(name: str, *headers: tuple[str, str]) -> Case:
        return Case(f"broken: {name}", headers=headers, status=400, alone=True, differs=ONE_READING)

    return [
        broken("a space before the colon", ("X-Remote-User ", "evil")),
        broken("a space before the colon of Host", ("Host ", "cluster.example")),
        broken("a pseudo-header of HTTP/2", (":path", "/denied")),
        broken("a space in a name", ("X Remote User", "evil")),
        broken("a tab in a name", ("X-Remote-User\t", "evil")),
        broken("a folded line", ("X-Mine", "1\r\n X-Remote-User: eve")),
        broken("no name", ("", "evil")),
        broken("brackets in a name", ("X-Remote(User)", "eve")),
        broken("a byte beyond ASCII in a name", ("X-Remote-\xdcser", "evil")),
        broken("a NUL in a value", ("X-Mine", "a\x00b")),
        broken("a NUL in a name", ("X-Remote-User\x00", "evil")),
        broken("a carriage return in a value", ("X-Mine", "a\rX-Remote-User: eve")),
        broken("a line feed in a value", ("X-Mine", "a\nX-Remote-User: eve")),
        broken("a control character in a value", ("X-Mine", "a\x01b")),
    ]


LATIN: Headers = (("X-Mine", "\xe4\xf6\xfc"),)
CASES = [*_tokens(), *_hop_by_hop(), *_sources(), *_names(), *_broken(), Case("a value beyond ASCII", headers=LATIN)]
