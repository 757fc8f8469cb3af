"""The parts of the configuration of nginx, for `nginx` to put together. Pure."""

from __future__ import annotations

KEY_SCRIPT = """\
// Printed by "ostiary door nginx --key-script": what the key of a cached answer says of a token.
import crypto from 'crypto';

function digest(request) {
    return crypto.createHash('sha256').update(request.variables.http_authorization || '').digest('hex');
}

export default {digest};
"""
# Every status that a refusal can have besides 401 and 403, which nginx understands by itself.
STATUSES = (400, 404, 405, 429, 500, 503)
# With a cache the gateway does not see every request, and could not refuse a claim in a header that nobody thought of.
# So only these pass, and what the application needs besides must be added.
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
# What hashes the token, by the module that can: the lines of the http block, and those of each location.
TOKEN_HASHES = {
    "njs": (
        """\
# That takes the module njs: load_module modules/ngx_http_js_module.so; and its script beside this file:
#     ostiary door nginx --key-script > ostiary.js
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
# What an answer depends on. The upstream is named: nginx chooses it by the host of a whole URL, which need not be that
# of the Host line. Only the last part can hold a colon. No host can hold a slash, but not every target begins with one.
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
