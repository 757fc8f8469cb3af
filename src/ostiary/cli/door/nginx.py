"""The configuration of nginx, which asks by ``auth_request``. Pure; called by `printing`.

nginx takes nothing of an answer but 200, 401 and 403. So the gateway sends any other status, and the body, in headers,
and the printed ``error_page`` makes of them what the client gets.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.cli.door.layout import ANY_HOST, SYSTEM_AUTHORITIES, Backend, Layout
from ostiary.cli.door.nginx_texts import (
    BACKEND,
    BROWSERS,
    CACHE,
    CACHE_KEY,
    COOKIES,
    HEAD,
    LOCATION,
    PAGE,
    PASSED_WITH_CACHE,
    QUESTION,
    QUESTION_CACHE,
    REDIRECT,
    REFUSALS,
    SIGN_IN,
    SIGN_IN_REQUIRED,
    STATUSES,
    TOKEN_HASHES,
    TOLD_TO_BROWSERS,
)
from ostiary.gateway.doors.forward.handler import NO_DOOR
from ostiary.gateway.doors.forward.sign_in_paths import SIGN_IN_PATHS


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
    """How nginx proves itself to the gateway, and the gateway to nginx."""
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
    """Without these lines nginx accepts any certificate, asks for none in particular, and older ones stay below 1.3."""
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
        # The paths of a prefix are whole segments; the longest one comes first.
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
    """What becomes of the client's other headers."""
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
