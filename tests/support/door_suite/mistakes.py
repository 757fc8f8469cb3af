"""Mistakes that people make when they edit a printed configuration, and the cases of the suite that detect them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """A printed configuration with `changes`. At each case of `detected_by` it must fail the suite."""

    name: str
    proxy: str
    changes: tuple[tuple[str, str], ...]
    detected_by: tuple[str, ...]


_ASK = "    location = /_ostiary/shop "
_GATEWAY = "upstream ostiary_gateway"
_OPEN = "{ proxy_pass http://ostiary_to_shop; }"
_TOKEN_LEAK = "allowed GET"
MISTAKES = (
    Mistake(
        "nginx forwards headers with underscores and hides them from the gateway",
        "nginx",
        (
            ("large_client_header_buffers 4 32k;", "underscores_in_headers on;"),
            ("proxy_pass_request_body off;", "proxy_pass_request_body off; proxy_pass_request_headers off;"),
            (
                "proxy_set_header X-Original-Method",
                "proxy_set_header Authorization $http_authorization;\n        proxy_set_header X-Original-Method",
            ),
        ),
        ("claim X_Remote_User", "claim x-remote-anything", "spelled x_remote_group"),
    ),
    Mistake(
        "nginx asks about the path of the subrequest",
        "nginx",
        (("X-Original-URI $request_uri", "X-Original-URI $uri"),),
        ("denied", "hidden", "two readings /denied;x=1"),
    ),
    Mistake(
        "nginx asks about the normalized path and forwards the original one",
        "nginx",
        (
            ("X-Original-URI $request_uri", "X-Original-URI $asked"),
            ("        auth_request /_ostiary/", "        set $asked $uri;\n        auth_request /_ostiary/"),
        ),
        ("two readings /denied/../x", "two readings /denied/%2e%2e/x", "hostile /public/../x"),
    ),
    Mistake(
        "nginx trusts the client's X-Original-URI",
        "nginx",
        (
            ("X-Original-URI $request_uri", "X-Original-URI $asked"),
            (
                _GATEWAY,
                f"map $http_x_original_uri $asked {{ '' $request_uri; default $http_x_original_uri; }}\n{_GATEWAY}",
            ),
        ),
        ("said: X-Original-URI", "claims at a denied path"),
    ),
    Mistake(
        "nginx trusts the client's X-Original-Method",
        "nginx",
        (
            ("X-Original-Method $request_method", "X-Original-Method $asked"),
            (_GATEWAY, f"map $http_x_original_method $asked {{ '' $request_method; default GET; }}\n{_GATEWAY}"),
        ),
        ("the original method of another",),
    ),
    Mistake(
        "nginx has a location that does not ask",
        "nginx",
        ((_ASK, f"    location /static {_OPEN}\n{_ASK}"),),
        ("no token at /static/app.js",),
    ),
    Mistake(
        "nginx forwards preflight requests unasked",
        "nginx",
        (
            (
                _ASK,
                f"    location @preflight {_OPEN}\n    error_page 418 = @preflight;\n"
                f"    if ($request_method = OPTIONS) {{ return 418; }}\n{_ASK}",
            ),
        ),
        ("OPTIONS without a token",),
    ),
    Mistake("nginx forwards the token", "nginx", (('proxy_set_header Authorization "";', ""),), (_TOKEN_LEAK,)),
    Mistake("nginx lets clients ask the gateway", "nginx", (("internal;", ""),), ("own /_ostiary/shop",)),
    Mistake(
        "nginx forwards every upgrade",
        "nginx",
        (
            ("proxy_set_header Upgrade $ostiary_upgrade", "proxy_set_header Upgrade $http_upgrade"),
            ("proxy_set_header Connection $ostiary_connection", 'proxy_set_header Connection "upgrade"'),
        ),
        ("Connection: Upgrade to h2c",),
    ),
    Mistake(
        "nginx appends to the client's X-Forwarded-For",
        "nginx",
        (("X-Forwarded-For $remote_addr", "X-Forwarded-For $proxy_add_x_forwarded_for"),),
        ("claims of an address",),
    ),
    Mistake(
        "Traefik trusts the client's X-Forwarded headers",
        "traefik",
        (
            ("trustForwardHeader: false", "trustForwardHeader: true"),
            ("--entryPoints.web.address", "--entryPoints.web.forwardedHeaders.insecure=true --entryPoints.web.address"),
        ),
        ("said: X-Forwarded-Uri", "the method of another", "claims of an address"),
    ),
    Mistake(
        "Traefik replaces only the usual spelling",
        "traefik",
        (("authResponseHeadersRegex: '(?i)^", "authResponseHeadersRegex: '^(X-Remote-(User|Uid|Group))$' #"),),
        (
            "claim X_Remote_User",
            "spelled X.Remote.User",
            "claim Remote-User",
            "claims of an address",
            _TOKEN_LEAK,
            "http2: claim x_remote_user",
        ),
    ),
    Mistake(
        "Caddy removes no identity headers",
        "caddy",
        (("request_header -x-", "#"), ("request_header -remote", "#")),
        ("claim X-User", "claim X-Original-URL", "claims of an address", "http2: claim x-forwarded-user"),
    ),
    Mistake(
        "Caddy keeps the client's Connection",
        "caddy",
        (("request_header @shop-switches", "#"), ("request_header @shop-stays", "#")),
        ("Connection: X-Remote-User", "Connection: close, X-Remote-User"),
    ),
    Mistake("Caddy forwards the token", "caddy", (("request_header -Authorization", ""),), (_TOKEN_LEAK,)),
    Mistake(
        "Envoy forwards headers with underscores",
        "envoy",
        (
            ("headers_with_underscores_action: DROP_HEADER", "headers_with_underscores_action: ALLOW"),
            ("regex: 'x[^a-z0-9]remote[^a-z0-9]", "regex: 'x-remote-"),
        ),
        ("claim X_Remote_User", "spelled x_remote_group"),
    ),
    Mistake(
        "Envoy removes no headers",
        "envoy",
        (("- {remove: ", "#"), ("- {remove_on_match: ", "#")),
        ("claim X-WebAuth-User", "claim x-remote-anything", "claims of an address", _TOKEN_LEAK),
    ),
    Mistake(
        "HAProxy removes no identity headers",
        "haproxy",
        (("http-request del-header ^(", "#"),),
        (
            "claim X_Remote_User",
            "claim x-remote-anything",
            "several claims",
            "claims of an address",
            "http2: claim x_remote_user",
        ),
    ),
    Mistake("HAProxy forwards the token", "haproxy", (("http-request del-header Authorization", ""),), (_TOKEN_LEAK,)),
)
# The proxy, and how its configuration lets requests pass while the gateway is down.
FAIL_OPEN: dict[str, tuple[tuple[str, str], ...]] = {
    "nginx": (
        ("error_page 500 = @ostiary_unavailable", "error_page 500 = @open"),
        (_ASK, f"    location @open {_OPEN}\n{_ASK}"),
    ),
    "envoy": (("failure_mode_allow: false", "failure_mode_allow: true"),),
}


def changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for right, wrong in changes:
        assert right in text, f"the printed configuration has no {right!r}"
        text = text.replace(right, wrong)
    return text
