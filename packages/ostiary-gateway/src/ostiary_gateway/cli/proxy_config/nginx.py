"""The configuration of nginx, with ``auth_request``. Pure.

nginx understands only the statuses 200, 401 and 403 of a response. So the gateway sends any other status, and the body,
in headers, from which the printed ``error_page`` makes the client's response.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.cli.proxy_config.layout import ANY_HOST, SYSTEM_AUTHORITIES, Backend, Layout
from ostiary_gateway.extauth.dialects import SIGN_IN_PATHS
from ostiary_gateway.extauth.forward_auth import NO_DOOR

# Parts of the configuration.

KEY_SCRIPT = """\
// Printed by "ostiary-gateway door nginx --key-script": what the key of a cached answer says of a token.
import crypto from 'crypto';

function digest(request) {
    return crypto.createHash('sha256').update(request.variables.http_authorization || '').digest('hex');
}

export default {digest};
"""
# Every error status except 401 and 403, which nginx supports itself.
STATUSES = (400, 404, 405, 429, 500, 503)
# With a cache the gateway does not see every request, and could not reject an unknown identity header. So only these
# headers are forwarded, and others that the application needs must be added.
PASSED_WITH_CACHE = (
    *("Accept", "Accept-Encoding", "Accept-Language", "Cache-Control", "Content-Encoding", "Content-Language"),
    *("Content-Type", "Cookie", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since"),
    *("Origin", "Prefer", "Range", "Referer", "Sec-WebSocket-Extensions", "Sec-WebSocket-Key"),
    *("Sec-WebSocket-Protocol", "Sec-WebSocket-Version", "User-Agent", "X-Requested-With", "Traceparent", "Tracestate"),
)
HEAD = """\
# {title}.
# It holds the secret of the door: chmod 600. Include it in the http block of nginx.conf:
#     include /etc/nginx/ostiary.conf;

# The gateway, which is asked about each request.
upstream ostiary_gateway {{
    server {gateway};
    keepalive 64;
}}
# Only WebSocket passes: any other protocol would open a way behind the decision.
map $http_upgrade $ostiary_upgrade {{
    default   "";
    websocket websocket;
}}
map $ostiary_upgrade $ostiary_connection {{
    default   "";
    websocket upgrade;
}}
# A body without an announced length, as in chunks or in HTTP/2, may have any.
map $server_protocol:$http_transfer_encoding $ostiary_no_length {{
    default   unknown;
    HTTP/1.0: 0;
    HTTP/1.1: 0;
}}
map $content_length $ostiary_length {{
    default $content_length;
    ""      $ostiary_no_length;
}}
proxy_headers_hash_max_size    2048;
proxy_headers_hash_bucket_size 128;
# To nginx "0" would be none.
map $http_impersonate_user$http_impersonate_group$http_impersonate_uid $ostiary_impersonates {{
    default 1;
    ""      "";
}}
"""
CACHE = """\
# Allowing answers are used again for {cache}: so long can a revocation, or a change of the policy, go unnoticed.
# The key of a cached answer is written to its file, so the token is hashed.
{hashing}proxy_cache_path /dev/shm/ostiary-{door} keys_zone=ostiary_{zone}:16m max_size=64m inactive=1m
    use_temp_path=off;
"""
# Token hashing by each supported module: the lines of the http block, and those of each location.
TOKEN_HASHES = {
    "njs": (
        """\
# That takes the module njs: load_module modules/ngx_http_js_module.so; and its script beside this file:
#     ostiary-gateway door nginx --key-script > ostiary.js
js_import ostiary from ostiary.js;
js_set $ostiary_token ostiary.digest;
""",
        "",
    ),
    "set-misc": (
        """\
# That takes the module set-misc: load_module modules/ndk_http_module.so; load_module
# modules/ngx_http_set_misc_module.so; (Debian: libnginx-mod-http-set-misc)
""",
        "        set_sha1 $ostiary_token $http_authorization;\n",
    ),
}
BROWSERS = """\
# To a browser that loads a page a refusal is a page; everybody else gets JSON.
map $ostiary_type $ostiary_unauthorized {
    default     @ostiary_unauthorized;
    ~^text/html @ostiary_page;
}
map $ostiary_type $ostiary_refused {
    default     @ostiary_refused;
    ~^text/html @ostiary_page;
}
"""
BACKEND = """\
# The upstream "{name}".
upstream ostiary_to_{zone} {{
    server {address};
    keepalive 64;
}}
"""
QUESTION = """\
    location = /_ostiary/{name} {{
        internal;
        proxy_pass {scheme}://ostiary_gateway{path};
        proxy_http_version 1.1;
        proxy_pass_request_body off;
        proxy_connect_timeout 2s;
        proxy_read_timeout 15s;
        # Room for users with many groups.
        proxy_buffer_size 64k;
        proxy_buffers 4 64k;
        proxy_set_header Host {host};
        proxy_set_header Connection "";
        proxy_set_header Content-Length "";
{proof}        # What is asked about. Each line overwrites what the client may have sent under this name.
        proxy_set_header X-Original-Method $request_method;
        proxy_set_header X-Original-URI $request_uri;
        proxy_set_header X-Original-Host $http_host;
        proxy_set_header X-Original-Upgrade $ostiary_upgrade;
        proxy_set_header X-Original-Content-Length $ostiary_length;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
{cache}    }}
"""
# Everything that a response depends on. The upstream is included: nginx chooses it by the host of an absolute URL,
# which can differ from the Host header. Only the last part can contain a colon. No host can contain a slash, but not
# every target begins with one.
CACHE_KEY = ":".join(
    (
        *("{upstream}", "$request_method", "$server_protocol", "$http_transfer_encoding", "$content_length"),
        *("$ostiary_upgrade", "$ostiary_token", "$http_host/$request_uri"),
    )
)
QUESTION_CACHE = """\
        proxy_cache ostiary_{zone};
        proxy_cache_key {key};
        # Keeps the files of the answers open: a third of the time otherwise goes into opening them. Each takes a
        # descriptor of a worker: raise max and worker_rlimit_nofile together.
        open_file_cache max=256 inactive=60s;
        open_file_cache_valid 60s;
        proxy_cache_methods GET HEAD;
        proxy_cache_valid 200 {cache};
        proxy_ignore_headers Cache-Control Expires Set-Cookie Vary X-Accel-Expires;
        # One question for all who wait for the same answer.
        proxy_cache_lock on;
        # Requests in the name of another are always asked about.
        proxy_cache_bypass $ostiary_impersonates;
        proxy_no_cache $ostiary_impersonates;
"""
SIGN_IN = """\
    # Browsers come back from sign-in here, or sign out. Nothing else of the gateway is at this host.
    location = {path} {{
        proxy_pass {scheme}://ostiary_gateway{path};
        proxy_redirect off;
        proxy_http_version 1.1;
        proxy_connect_timeout 2s;
        proxy_buffer_size 64k;
        proxy_buffers 4 64k;
        # Not as the client writes it, who could name another host.
        proxy_set_header Host {host};
        proxy_set_header Connection "";
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
{trust}    }}
"""
LOCATION = """\
    location {match} {{
{hashing}        auth_request /_ostiary/{name};
{told}        auth_request_set $ostiary_status $upstream_http_x_ostiary_status;
        auth_request_set $ostiary_body $upstream_http_x_ostiary_body;
        auth_request_set $ostiary_audit_id $upstream_http_audit_id;
        auth_request_set $ostiary_retry_after $upstream_http_retry_after;
        auth_request_set $ostiary_nosniff $upstream_http_x_content_type_options;
{browsers}        error_page 401 = {unauthorized};
        error_page 403 = {refused};
        # The gateway could not be asked, or its answer was none: nobody is let in.
        error_page 500 = @ostiary_unavailable;

        # Without a path here the request is passed as the client wrote it, which is what was decided on.
        proxy_pass {scheme}://ostiary_to_{zone};
{trust}        proxy_http_version 1.1;
        proxy_set_header Host $http_host;
        proxy_set_header Connection $ostiary_connection;
        proxy_set_header Upgrade $ostiary_upgrade;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Forwarded-Host $http_host;
        proxy_set_header X-Forwarded-Port $server_port;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header X-Real-IP $remote_addr;
        # Who the user is, in the place of what the client claims.
{identity}{cookies}{passed}    }}
"""
TOLD_TO_BROWSERS = """\
        auth_request_set $ostiary_type $upstream_http_content_type;
        auth_request_set $ostiary_location $upstream_http_location;
        auth_request_set $ostiary_set_cookie $upstream_http_set_cookie;
        auth_request_set $ostiary_sign_in $upstream_http_x_ostiary_sign_in;
        auth_request_set $ostiary_policy $upstream_http_content_security_policy;
        auth_request_set $ostiary_vary $upstream_http_vary;
"""
COOKIES = """\
        # The client's cookies without those of the gateway; if none are left, there is no such header.
        proxy_set_header Cookie $ostiary_cookie;
"""
REFUSALS = """\
    default_type application/json;
    location @ostiary_unauthorized {{
        # nginx itself adds WWW-Authenticate.
        add_header Audit-Id $ostiary_audit_id always;
        add_header Cache-Control "no-cache, private" always;
        add_header X-Content-Type-Options $ostiary_nosniff always;
{sign_in}        return 401 "$ostiary_body\\n";
    }}
    location @ostiary_refused {{
        add_header Audit-Id $ostiary_audit_id always;
        add_header Cache-Control "no-cache, private" always;
        add_header Retry-After $ostiary_retry_after always;
        add_header X-Content-Type-Options $ostiary_nosniff always;
{redirect}{statuses}        return 403 "$ostiary_body\\n";
    }}
{page}    location @ostiary_unavailable {{
        add_header Cache-Control "no-cache, private" always;
        return 503 '{unavailable}\\n';
    }}
"""
SIGN_IN_REQUIRED = "        add_header X-Ostiary-Sign-In $ostiary_sign_in always;\n"
REDIRECT = """\
        # To the sign-in page, with a cookie that binds the way back to this browser.
        add_header Set-Cookie $ostiary_set_cookie always;
        add_header Referrer-Policy no-referrer always;
        add_header Vary $ostiary_vary always;
        if ($ostiary_status = 303) { return 303 $ostiary_location; }
"""
PAGE = """\
    location @ostiary_page {{
        default_type "text/html; charset=utf-8";
        add_header Audit-Id $ostiary_audit_id always;
        add_header Cache-Control no-store always;
        add_header Content-Security-Policy $ostiary_policy always;
        add_header Referrer-Policy same-origin always;
        add_header Retry-After $ostiary_retry_after always;
        add_header X-Content-Type-Options nosniff always;
        add_header X-Frame-Options DENY always;
{statuses}        return 403 "$ostiary_body\\n";
    }}
"""


def configuration(layout: Layout) -> str:
    parts = [HEAD.format(title=layout.title, gateway=layout.gateway_address)]
    if layout.has_applications:
        parts.append(BROWSERS)
    if layout.cache:
        hashing, _ = TOKEN_HASHES[layout.hash_module]
        zone = _zone(layout.door.name)
        parts.append(CACHE.format(cache=layout.cache, door=layout.door.name, zone=zone, hashing=hashing))
    parts += [BACKEND.format(name=each.name, zone=_zone(each.name), address=each.address) for each in layout.backends]
    sites = layout.sites()
    if ANY_HOST not in sites:
        parts.append(_server(layout, "", "    # No upstream has this host.\n    return 421;\n"))
    for host, backends in sites.items():
        parts.append(_server(layout, host, _site(layout, host, backends)))
    return "\n".join(parts)


def _server(layout: Layout, host: str, inside: str) -> str:
    default = "" if host else " default_server"
    name = f"    server_name {host};\n" if host else ""
    buffers = "    large_client_header_buffers 4 32k;\n"
    return f"server {{\n    listen {layout.listen_address}{default};\n{name}{buffers}\n{inside}}}\n"


def _site(layout: Layout, host: str, backends: Sequence[Backend]) -> str:
    parts = [_question(layout, each) for each in backends]
    if sign_in_host := layout.sign_in_host(host):
        parts += [_sign_in(layout, path, sign_in_host) for path in SIGN_IN_PATHS]
    parts += [_location(layout, each) for each in backends]
    if all(backend.prefix != "/" for backend in backends):
        parts.append("    location / {\n        return 404;\n    }\n")
    parts.append(_refusals(layout))
    return "\n".join(parts)


def _refusals(layout: Layout) -> str:
    has_applications = layout.has_applications
    return REFUSALS.format(
        statuses=_statuses(STATUSES),
        sign_in=SIGN_IN_REQUIRED if has_applications else "",
        redirect=REDIRECT if has_applications else "",
        page=PAGE.format(statuses=_statuses((401, *STATUSES))) if has_applications else "",
        unavailable=NO_DOOR.body.decode().strip(),
    )


def _statuses(codes: Sequence[int]) -> str:
    return "".join(f'        if ($ostiary_status = {code}) {{ return {code} "$ostiary_body\\n"; }}\n' for code in codes)


def _sign_in(layout: Layout, path: str, host: str) -> str:
    trust = "".join(f"        {line}\n" for line in _trust(layout))
    return SIGN_IN.format(path=path, scheme=layout.gateway.scheme, host=host, trust=trust)


def _question(layout: Layout, backend: Backend) -> str:
    key = CACHE_KEY.format(upstream=backend.name)
    cache = QUESTION_CACHE.format(zone=_zone(layout.door.name), key=key, cache=layout.cache) if layout.cache else ""
    return QUESTION.format(
        name=backend.name,
        scheme=layout.gateway.scheme,
        path=layout.question_path(backend),
        host=layout.gateway.netloc,
        proof=_proof(layout),
        cache=cache,
    )


def _proof(layout: Layout) -> str:
    """Return how nginx authenticates to the gateway, and the gateway to nginx."""
    lines = []
    if layout.secret is not None:
        lines.append(f'proxy_set_header X-Ostiary-Door "{layout.secret.reveal()}";')
    lines += _trust(layout)
    if layout.certificate is not None:
        lines += [f"proxy_ssl_certificate {layout.certificate};", f"proxy_ssl_certificate_key {layout.key};"]
    return "".join(f"        {line}\n" for line in lines)


def _trust(layout: Layout) -> list[str]:
    if layout.gateway.scheme != "https":
        return []
    return _verified(layout.gateway.hostname or "", layout.ca or SYSTEM_AUTHORITIES)


def _verified(name: str, authorities: str) -> list[str]:
    """Return the lines that verify the gateway's or upstream's certificate.

    By default nginx accepts any certificate, sends no server name, and old versions stay below TLS 1.3.
    """
    return [
        "proxy_ssl_verify on;",
        f"proxy_ssl_trusted_certificate {authorities};",
        "proxy_ssl_server_name on;",
        f"proxy_ssl_name {name};",
        "proxy_ssl_protocols TLSv1.2 TLSv1.3;",
    ]


def _location(layout: Layout, backend: Backend) -> str:
    names = layout.identity_headers(backend)
    variables = [(name, f"$ostiary_{_zone(name)}", f"$upstream_http_{_zone(name)}") for name in names]
    told = "".join(f"        auth_request_set {variable} {source};\n" for _, variable, source in variables)
    if layout.cleans_cookies:
        told += "        auth_request_set $ostiary_cookie $upstream_http_x_ostiary_cookie;\n"
    trust = _verified(backend.certificate_name, backend.ca or SYSTEM_AUTHORITIES) if backend.is_tls else []
    return LOCATION.format(
        # Prefixes match whole segments. The longest one comes first.
        match="/" if backend.prefix == "/" else f'~ "{backend.prefix_pattern}"',
        hashing=TOKEN_HASHES[layout.hash_module][1] if layout.cache else "",
        name=backend.name,
        zone=_zone(backend.name),
        scheme=backend.url.scheme,
        trust="".join(f"        {line}\n" for line in trust),
        told=told,
        browsers=TOLD_TO_BROWSERS if layout.has_applications else "",
        unauthorized="$ostiary_unauthorized" if layout.has_applications else "@ostiary_unauthorized",
        refused="$ostiary_refused" if layout.has_applications else "@ostiary_refused",
        identity="".join(f"        proxy_set_header {name} {variable};\n" for name, variable, _ in variables),
        cookies=COOKIES if layout.cleans_cookies else "",
        passed=_passed(layout),
    )


def _passed(layout: Layout) -> str:
    """Return what happens to the client's other headers."""
    if not layout.cache:
        cleared = "".join(f'        proxy_set_header {name.title()} "";\n' for name in layout.cleared)
        return f"        # What a client could claim to be. The gateway refuses requests with other claims.\n{cleared}"
    passed = "".join(
        f"        proxy_set_header {name} $http_{_zone(name)};\n" for name in layout.passed_headers or PASSED_WITH_CACHE
    )
    return (
        "        # The gateway does not see each request, so only these headers of the client pass; add your own.\n"
        f"        proxy_pass_request_headers off;\n{passed}"
    )


def _zone(name: str) -> str:
    return name.lower().replace("-", "_")
