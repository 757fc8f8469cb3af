"""How to shut what a check found open: the lines for each kind of proxy, beside what holds for all. Data.

The names are those of the checks in `probes`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ostiary.cli.doctor.recognition import BUILT_IN, CADDY, ENVOY, HAPROXY, NGINX, TRAEFIK

# Those whose whole configuration can be printed.
_PRINTED = (NGINX, TRAEFIK, CADDY, ENVOY, HAPROXY)


@dataclass(frozen=True, slots=True)
class Remedy:
    """`always` is for every proxy, and `lines` what to write in the configuration of one kind."""

    always: str
    lines: dict[str, str] = field(default_factory=dict)


_CLEAR = {
    NGINX: 'proxy_set_header X-Remote-User $ostiary_user;   # from auth_request_set; and "" for every other name',
    TRAEFIK: "forwardAuth: authResponseHeadersRegex: '(?i)^(x.remote.*|remote.*|x.forwarded.user|...)$'",
    CADDY: "request_header -X-Remote-*   # in a route block, before forward_auth",
    ENVOY: "header_mutation: request_mutations: - {remove_on_match: {key_matcher: {prefix: x-remote-}}}",
    HAPROXY: "http-request del-header x.remote.* -m reg   # before the http-request set-header of the user",
}
_UNDERSCORES = {
    NGINX: "underscores_in_headers off;\nignore_invalid_headers on;",
    TRAEFIK: "forwardAuth: authResponseHeadersRegex: '(?i)^(x.remote.*|...)$'   # a dot for every dash",
    CADDY: "request_header -X_Remote_*   # and refuse at the gateway: copy_headers of the door's answer",
    ENVOY: "common_http_protocol_options: {headers_with_underscores_action: DROP_HEADER}",
    HAPROXY: "http-request del-header x.remote.* -m reg",
}
_ASK_RAW = {
    NGINX: "proxy_set_header X-Original-URI $request_uri;   # not $uri\nproxy_pass http://backend;   # without a path",
    TRAEFIK: "forwardAuth: trustForwardHeader: false\nentryPoints: web: forwardedHeaders: insecure: false",
    CADDY: "reverse_proxy http://backend   # no uri, rewrite or handle_path between forward_auth and it",
    ENVOY: "normalize_path: true\nmerge_slashes: true\npath_with_escaped_slashes_action: REJECT_REQUEST",
    HAPROXY: "http-request deny if { path -m reg [%;\\\\] } || { path -m sub // } || { path -m sub /. }",
}
_OWN_SOURCES = {
    NGINX: (
        "proxy_set_header X-Original-Method $request_method;\nproxy_set_header X-Original-URI $request_uri;\n"
        "proxy_set_header X-Original-Host $http_host;   # in the location that asks the gateway"
    ),
    TRAEFIK: "forwardAuth: trustForwardHeader: false\nentryPoints: web: forwardedHeaders: insecure: false",
    CADDY: "servers: trusted_proxies   # must not hold the addresses of clients",
    ENVOY: "http_service: path_prefix: /doors/NAME/UPSTREAM   # the path itself is asked about, and no header",
    HAPROXY: "http-request del-header x-original- -m beg\nhttp-request del-header x-forwarded- -m beg",
}
_FRAMING = Remedy(
    "bring the proxy up to date: it must refuse such a request, or write the length of the body anew",
    {
        NGINX: "proxy_request_buffering on;   # and no third-party module that reads bodies",
        HAPROXY: "no option accept-invalid-http-request",
        ENVOY: "http_protocol_options: {allow_chunked_length: false}   # the default",
    },
)
_ASKED_EVERYWHERE = {
    NGINX: "auth_request /_ostiary/shop;   # in every location; no limit_except, no if around it",
    TRAEFIK: "routers: NAME: middlewares: [ostiary-...]   # at every router of this service",
    CADDY: "forward_auth before reverse_proxy in every handle of this site   # and no matcher with method or path",
    ENVOY: "typed_per_filter_config with disabled: true must be at no route",
    HAPROXY: "http-request allow if { var(txn.ostiary.good) -m bool }   # then return 503, as the last rule",
}

REMEDIES = {
    "no-token": Remedy("let the proxy ask the gateway about every request, whatever its method", _ASKED_EVERYWHERE),
    "no-token-elsewhere": Remedy(
        "let the proxy ask about this path, too; if everybody may use it, say so: --public PATH", _ASKED_EVERYWHERE
    ),
    "garbage-token": Remedy("let the gateway decide, and not whether there is a token at all", _ASKED_EVERYWHERE),
    "user": Remedy(
        "let the proxy set the user from the answer of the gateway",
        {
            NGINX: (
                "auth_request_set $ostiary_user $upstream_http_x_remote_user;\n"
                "proxy_set_header X-Remote-User $ostiary_user;"
            ),
            TRAEFIK: "forwardAuth: authResponseHeaders: [X-Remote-User, X-Remote-Uid, X-Remote-Group]",
            CADDY: "forward_auth ... { copy_headers X-Remote-User X-Remote-Uid X-Remote-Group }",
            ENVOY: "authorization_response: allowed_upstream_headers: patterns: [{exact: x-remote-user}]",
            HAPROXY: "http-request add-header X-Remote-User %[var(txn.ostiary.pass),field(3,|),url_dec]",
            BUILT_IN: "identity: requestHeader   # of the upstream in gateway.yaml",
        },
    ),
    "identity-headers": Remedy("overwrite or remove the header before the request is forwarded", _CLEAR),
    "identity-spellings": Remedy("remove other spellings, too: many programs read _ and - alike", _UNDERSCORES),
    "identity-odd-lines": Remedy("let the proxy refuse what is no header line", _UNDERSCORES),
    "identity-doubled": Remedy("set the header, do not add to it", _CLEAR),
    "identity-hop-by-hop": Remedy(
        "set the user after the headers that Connection names are removed, or refuse such a Connection",
        {
            NGINX: 'proxy_set_header Connection "";',
            HAPROXY: "http-request del-header connection   # before set-header of the user",
            TRAEFIK: "a plugin or another proxy must refuse it: Traefik removes what Connection names at the end",
            CADDY: "request_header -Connection   # before forward_auth",
        },
    ),
    "identity-trailers": Remedy(
        "let the proxy drop trailers of requests; the application must not read them as headers",
        {
            CADDY: "request_header -Trailer   # before forward_auth: trailers that are not announced are dropped",
            TRAEFIK: "headers: customRequestHeaders: {Trailer: ''}   # a middleware of the router",
            ENVOY: "http_protocol_options: {enable_trailers: false}   # the default",
            HAPROXY: "option http-drop-request-trailers   # where this HAProxy has it; else deny Transfer-Encoding",
        },
    ),
    "impersonation": Remedy(
        "remove Impersonate-* after the gateway was asked",
        {
            NGINX: 'proxy_set_header Impersonate-User "";   # and Impersonate-Group, Impersonate-Uid',
            TRAEFIK: "forwardAuth: authResponseHeadersRegex: '(?i)^(impersonate.*|...)$'",
            CADDY: "request_header -Impersonate*   # after forward_auth",
            ENVOY: "header_mutation after ext_authz: - {remove_on_match: {key_matcher: {prefix: impersonate}}}",
            HAPROXY: "http-request del-header impersonate -m beg   # after the gateway was asked",
        },
    ),
    "identity-others": Remedy("remove every header that an application may believe", _CLEAR),
    "identity-prefixes": Remedy(
        "remove by the beginning of the name, where the proxy can",
        {
            NGINX: "proxy_pass_request_headers on;   # where it asks: the gateway refuses what nginx cannot take out",
            TRAEFIK: "forwardAuth: authResponseHeadersRegex: '(?i)^(x.remote.*|remote.*|x.webauth.*|...)$'",
            CADDY: "request_header -X-Remote-*   # a line for each beginning, before forward_auth",
            ENVOY: "header_mutation: - {remove_on_match: {key_matcher: {prefix: x-remote-}}}   # and a line for each",
            HAPROXY: "http-request del-header (?i)^(x.remote|remote|x.webauth|...) -m reg",
        },
    ),
    "override-headers": Remedy("remove headers by which an application is asked for another method or path", _CLEAR),
    "address-headers": Remedy(
        "overwrite what the client says of its address",
        {
            NGINX: "proxy_set_header X-Forwarded-For $remote_addr;\nproxy_set_header X-Real-IP $remote_addr;",
            TRAEFIK: "entryPoints: web: forwardedHeaders: insecure: false",
            ENVOY: "use_remote_address: true",
            HAPROXY: "http-request set-header X-Forwarded-For %[src]",
        },
    ),
    "token-leak": Remedy(
        "remove the token once the gateway was asked: the application could use it in the user's name",
        {
            NGINX: 'proxy_set_header Authorization "";',
            TRAEFIK: "forwardAuth: authResponseHeadersRegex: '(?i)^(authorization|...)$'",
            CADDY: "request_header -Authorization   # after forward_auth",
            ENVOY: "header_mutation after ext_authz: request_mutations: - {remove: authorization}",
            HAPROXY: "http-request del-header authorization   # after the gateway was asked",
        },
    ),
    "secret-leak": Remedy("set X-Ostiary-Door only for the question, and remove it afterwards; then change the secret"),
    "cookie-leak": Remedy("give the gateway a host of its own"),
    "denied": Remedy(
        "if the policy does deny it (ostiary can-i), the gateway is asked about something else than is forwarded",
        _OWN_SOURCES,
    ),
    "source-path": Remedy("let the proxy say itself what it was asked for", _OWN_SOURCES),
    "source-method": Remedy("let the proxy say itself what it was asked for", _OWN_SOURCES),
    "host": Remedy(
        "forward the host that was asked about",
        {NGINX: "proxy_set_header Host $http_host;", TRAEFIK: "loadBalancer: passHostHeader: true"},
    ),
    "smuggling-both": _FRAMING,
    "smuggling-transfer-encoding": _FRAMING,
    "smuggling-content-length": _FRAMING,
    "smuggling-chunks": _FRAMING,
    "smuggling-h2c": Remedy(
        "forward no Upgrade but websocket",
        {
            NGINX: 'map $http_upgrade $ostiary_upgrade { default ""; websocket websocket; }',
            HAPROXY: "http-request del-header upgrade unless { hdr(upgrade) -i websocket }",
            ENVOY: "upgrade_configs must not hold h2c",
        },
    ),
    "http2-no-token": Remedy("let the proxy ask about every request, whatever its method", _ASKED_EVERYWHERE),
    "http2-identity": Remedy("remove the header in every spelling", _UNDERSCORES),
    "http2-lines": Remedy("bring the proxy up to date: a line break in a header of HTTP/2 must be refused"),
    "http2-smuggling": Remedy("bring the proxy up to date: it must measure the body itself"),
    "door-secret": Remedy("give the door a secret (callers.tokenFile), and no caller that a client could be"),
    "door-through-proxy": Remedy(
        "do not lead clients to where the proxy asks",
        {NGINX: "internal;   # in the location that asks the gateway"},
    ),
    "door-exposed": Remedy("do not forward /doors to the gateway: nobody but the proxy has to ask there"),
    "fail-open": Remedy(
        "let nobody in while the gateway cannot be asked",
        {
            NGINX: "error_page 500 = @unavailable;   # a location that returns 503, and no proxy_pass in it",
            ENVOY: "failure_mode_allow: false",
            HAPROXY: "http-request allow if { var(txn.ostiary.good) -m bool }   # then return 503, as the last rule",
            CADDY: "handle_errors must not lead to reverse_proxy",
        },
    ),
}
_PATHS = Remedy("forward the bytes that were decided on: ask about the target as the client wrote it", _ASK_RAW)
REMEDIES |= dict.fromkeys(
    ("path-dots", "path-slashes", "path-parameters", "path-encoding", "path-target", "http2-paths"), _PATHS
)


# Where any header that arrives is one too many: the line that takes out one of them.
_EACH_NAME = ("identity-others", "override-headers")
_OUT = {
    NGINX: 'proxy_set_header {name} "";',
    CADDY: "request_header -{name}",
    ENVOY: "- {{remove: {name}}}   # request_mutations of header_mutation",
    HAPROXY: "http-request del-header {name}",
}
MOST_NAMES = 12


def remedy_lines(check: str, proxy: str, names: Sequence[str] = ()) -> list[str]:
    """How to shut what *check* found, at a *proxy* of this kind, empty if that is unknown; *names* are what arrived."""
    remedy = REMEDIES[check]
    lines = [remedy.always]
    if check in _EACH_NAME and proxy in (*_OUT, TRAEFIK) and names:
        lines += [f"  {line}" for line in _lines_for(proxy, names)]
    elif proxy in remedy.lines:
        lines += [f"  {line}" for line in remedy.lines[proxy].splitlines()]
    elif not proxy:
        lines += [f"  {kind}: {text.splitlines()[0]}" for kind, text in remedy.lines.items()]
    if proxy in _PRINTED:
        lines.append(f"or print the whole configuration again: ostiary door {proxy} --config gateway.yaml")
    return lines


def _lines_for(proxy: str, names: Sequence[str]) -> list[str]:
    """The lines of a configuration that take out these headers."""
    if proxy == TRAEFIK:
        pattern = "|".join(name.replace("-", ".").replace("_", ".") for name in names)
        return [f"forwardAuth: authResponseHeadersRegex: '(?i)^({pattern})$'"]
    plain = [name for name in names if "_" not in name and "." not in name]
    lines = [_OUT[proxy].format(name=name) for name in plain[:MOST_NAMES]]
    if len(plain) > MOST_NAMES:
        lines.append(f"# and so on for {len(plain) - MOST_NAMES} more: --output json has all names")
    return lines if len(plain) == len(names) else [*lines, *_UNDERSCORES[proxy].splitlines()]
