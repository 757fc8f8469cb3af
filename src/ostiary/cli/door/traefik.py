"""The dynamic configuration of Traefik, which asks by its middleware ``ForwardAuth``. Pure; called by `printing`."""

from __future__ import annotations

from ostiary.cli.door.claim_patterns import regular_expression
from ostiary.cli.door.layout import Backend, Layout

_HEAD = """\
# {title}.
# It holds the secret of the door: chmod 600. Traefik reads it as a file provider, beside its static configuration:
#     traefik --entryPoints.web.address={listen} --providers.file.filename=ostiary.yaml
# Keep forwardedHeaders.insecure of the entry point off: what clients say about themselves must not be believed.
http:
  routers:
"""
_ROUTER = """\
    {name}:
      entryPoints: [web]
      # Traefik does not tell the gateway that a connection will switch protocols, so such requests have no route.
      rule: '{rule} && !HeaderRegexp(`Upgrade`, `.`)'
      priority: {priority}
      middlewares: [{middlewares}]
      service: ostiary-to-{backend}
"""
_PROOF = """\
    # The header goes to the gateway with the rest of the request; the next middleware takes it out again.
    ostiary-{door}-secret:
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
"""
_SERVICE = """\
    ostiary-to-{backend}:
      loadBalancer:
        passHostHeader: true
        servers:
          - url: '{url}'
"""


def configuration(layout: Layout) -> str:
    listen = f"{layout.listen_host}:{layout.listen_port}"
    parts = [_HEAD.format(title=layout.title, listen=listen)]
    for number, (host, backends) in enumerate(layout.sites().items()):
        parts += [_router(layout, host, backend, f"ostiary-{number}-{backend.name}") for backend in backends]
    parts.append("  middlewares:\n")
    if layout.secret is not None:
        parts.append(_PROOF.format(door=layout.door.name, secret=layout.secret.reveal()))
    parts += [_question(layout, backend) for backend in layout.backends]
    parts.append("  services:\n")
    parts += [_SERVICE.format(backend=each.name, url=each.url.geturl()) for each in layout.backends]
    return "".join(parts)


def _router(layout: Layout, host: str, backend: Backend, name: str) -> str:
    middlewares = [f"ostiary-{layout.door.name}-{backend.name}"]
    if layout.secret is not None:
        middlewares.insert(0, f"ostiary-{layout.door.name}-secret")
    rule = f"PathPrefix(`{backend.prefix}`)"
    return _ROUTER.format(
        name=name,
        rule=f"Host(`{host}`) && {rule}" if host else rule,
        # A router with a host goes before one without, and then the longest prefix.
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
        claims=regular_expression(layout.cleared, layout.drop_headers),
    )
