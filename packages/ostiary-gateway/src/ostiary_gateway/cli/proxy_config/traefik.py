"""The dynamic configuration of Traefik, with the middleware ``ForwardAuth``. Pure."""

from __future__ import annotations

from urllib.parse import SplitResult

from ostiary_gateway.cli.proxy_config.layout import Backend, Layout, regular_expression
from ostiary_gateway.extauth.dialects import SIGN_IN_PATHS

# Traefik removes the headers that Connection names before routing, except these, so that routes can match them.
KEPT = ("Impersonate-User", "Impersonate-Group", "Impersonate-Uid")
# Fixed names do not begin with "ostiary-", which is the prefix of names derived from an upstream.
_HEAD = """\
# {title}.
# It holds the secret of the door: chmod 600. Traefik reads it as a file provider, beside its static configuration:
#     traefik --entryPoints.web.address={listen} \\
#         --entryPoints.web.forwardedHeaders.connection={kept} \\
#         --providers.file.filename=ostiary.yaml
# Keep forwardedHeaders.insecure of the entry point off: what clients say about themselves must not be believed.
http:
  routers:
"""
_ROUTER = """\
    {name}:
      entryPoints: [web]
      rule: '{rule} && !HeaderRegexp(`Upgrade`, `.`)'
      priority: {priority}
      middlewares: [plain-{door}, {middlewares}]
      service: ostiary-to-{backend}
    websocket-{name}:
      entryPoints: [web]
      # Only WebSocket passes: any other protocol would open a way behind the decision, and has no route.
      rule: '{rule} && HeaderRegexp(`Upgrade`, `(?i)^websocket$`)'
      priority: {priority}
      middlewares: [websocket-{door}, {middlewares}]
      service: ostiary-to-{backend}
"""
# Traefik does not forward by itself that a connection will switch protocols.
_UPGRADES = """\
    plain-{door}:
      headers:
        customRequestHeaders:
          X-Original-Upgrade: ''
    # Tells the gateway, and lets no other protocol stand beside it.
    websocket-{door}:
      headers:
        customRequestHeaders:
          X-Original-Upgrade: websocket
          Upgrade: websocket
          Connection: Upgrade
"""
_SIGN_IN = """\
    # Browsers come back from sign-in here, or sign out. Nothing else of the gateway is at this host.
    sign-in-{number}:
      entryPoints: [web]
      rule: '{rule}'
      priority: 1000000
      middlewares: [sign-in-{door}-{number}]
      service: ostiary-gateway
"""
_SIGN_IN_HOST = """\
    # Not as the client writes it, who could name another host.
    sign-in-{door}-{number}:
      headers:
        customRequestHeaders:
          Host: '{host}'
"""
_PROOF = """\
    # The header goes to the gateway with the rest of the request; the next middleware takes it out again.
    secret-{door}:
      headers:
        customRequestHeaders:
          X-Ostiary-Door: '{secret}'
"""
_QUESTION = """\
    ostiary-{door}-{backend}:
      forwardAuth:
        address: '{gateway}{path}'
        # Traefik then says itself what it was asked for, whatever the client claims.
        trustForwardHeader: false
{tls}        # Whatever a client could claim to be is taken out of the request, however it is spelled; who the user is
        # then comes from the answer of the gateway.
        authResponseHeadersRegex: '{claims}'
{cookies}"""
_COOKIES = """\
        # The client's cookies without those of the gateway; if none are left, there is no such header.
        authResponseHeaders: [Cookie]
"""
_SERVICE = """\
    {name}:
      loadBalancer:
        passHostHeader: true
{transport}        servers:
          - url: '{url}'
"""
_TRANSPORT = """\
    {name}:
      serverName: '{server_name}'
{authorities}      # As without a transport of its own; otherwise two.
      maxIdleConnsPerHost: 200
"""


def configuration(layout: Layout) -> str:
    parts = [_HEAD.format(title=layout.title, listen=layout.listen_address, kept=",".join(KEPT))]
    for number, (host, backends) in enumerate(layout.sites().items()):
        parts += [_router(layout, host, backend, f"ostiary-{number}-{backend.name}") for backend in backends]
        if layout.sign_in_host(host):
            paths = " || ".join(f"Path(`{path}`)" for path in SIGN_IN_PATHS)
            parts.append(_SIGN_IN.format(number=number, door=layout.door.name, rule=f"Host(`{host}`) && ({paths})"))
    parts += ["  middlewares:\n", _UPGRADES.format(door=layout.door.name)]
    for number, host in enumerate(layout.sites()):
        if sign_in_host := layout.sign_in_host(host):
            parts.append(_SIGN_IN_HOST.format(number=number, door=layout.door.name, host=sign_in_host))
    if layout.secret is not None:
        parts.append(_PROOF.format(door=layout.door.name, secret=layout.secret.reveal()))
    parts += [_question(layout, backend) for backend in layout.backends]
    parts.append("  services:\n")
    parts += [_service(f"ostiary-to-{backend.name}", backend.url) for backend in layout.backends]
    transports = [
        _transport(f"ostiary-to-{backend.name}", backend.certificate_name, backend.ca)
        for backend in layout.backends
        if backend.is_tls
    ]
    if layout.has_applications:
        # For the return from sign-in.
        parts.append(_service("ostiary-gateway", layout.gateway))
        if layout.gateway.scheme == "https":
            transports.append(_transport("ostiary-gateway", layout.gateway.hostname or "", layout.ca))
    return "".join([*parts, *(["  serversTransports:\n"] if transports else []), *transports])


def _service(name: str, url: SplitResult) -> str:
    transport = f"        serversTransport: {name}\n" if url.scheme == "https" else ""
    return _SERVICE.format(name=name, url=url.geturl(), transport=transport)


def _transport(name: str, server_name: str, ca: str | None) -> str:
    authorities = "" if ca is None else f"      rootCAs: ['{ca}']\n"
    return _TRANSPORT.format(name=name, server_name=server_name, authorities=authorities)


def _router(layout: Layout, host: str, backend: Backend, name: str) -> str:
    middlewares = [f"ostiary-{layout.door.name}-{backend.name}"]
    if layout.secret is not None:
        middlewares.insert(0, f"secret-{layout.door.name}")
    # Traefik's prefixes do not match whole segments.
    rule = "PathPrefix(`/`)"
    if backend.prefix != "/":
        rule = f"(Path(`{backend.prefix}`) || PathPrefix(`{backend.prefix}/`))"
    # The gateway would not see Impersonate headers that Connection names, so such requests have no route.
    rule += " && !HeaderRegexp(`Connection`, `(?i)impersonate`)"
    return _ROUTER.format(
        name=name,
        door=layout.door.name,
        rule=f"Host(`{host}`) && {rule}" if host else rule,
        # A router with a host precedes one without; then the longest prefix wins.
        priority=(100_000 if host else 1) + len(backend.prefix),
        middlewares=", ".join(middlewares),
        backend=backend.name,
    )


def _question(layout: Layout, backend: Backend) -> str:
    lines = []
    if layout.gateway.scheme == "https":
        lines += ["tls:", f"  ca: '{layout.ca}'"]
    if layout.certificate is not None:
        lines += [f"  cert: '{layout.certificate}'", f"  key: '{layout.key}'"]
    return _QUESTION.format(
        door=layout.door.name,
        backend=backend.name,
        gateway=layout.gateway.geturl(),
        path=layout.question_path(backend),
        tls="".join(f"        {line}\n" for line in lines),
        claims=regular_expression([*layout.cleared, "x-original-upgrade"], layout.drop_headers),
        cookies=_COOKIES if layout.cleans_cookies else "",
    )
