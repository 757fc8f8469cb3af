"""Build the ``upstreams`` of ``gateway.yaml`` with their attributes mappers."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, cast

from ostiary.core.loopback import is_loopback
from ostiary_gateway.config.gateway_file import UpstreamEntry
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.config.providers import Builder
from ostiary_gateway.config.sections import check_unique
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig, UpstreamSettings
from ostiary_gateway.settings.outgoing import parse_origin

# Settings that concern the gateway's own connections to an upstream.
FOR_SERVERS = (
    "identity",
    "headers",
    "tls",
    "tokenFile",
    "health",
    "connections",
    "queue",
    "timeouts",
    "insecure",
    "redirect",
    "shadow",
)


def upstreams(entries: tuple[UpstreamEntry, ...], builder: Builder, directory: Path) -> tuple[UpstreamConfig, ...]:
    check_unique(entries)
    candidates = [_upstream(entry, builder, directory) for entry in entries]
    return tuple(upstream for upstream in candidates if upstream is not None)


def _upstream(entry: UpstreamEntry, builder: Builder, directory: Path) -> UpstreamConfig | None:
    attributes = _attributes(entry, builder)
    server, socket = _server(entry, directory)
    if "server" not in entry.fields:
        _check_without_server(entry)
    upstream = UpstreamConfig(
        name=entry.name,
        server=server,
        socket=socket,
        attributes=attributes or Provider("", "", cast("Any", None)),
        place=entry.fields.place(),
        **{field.name: getattr(entry, field.name) for field in dataclass_fields(UpstreamSettings)},
    )
    _check_trust(entry, upstream)
    if attributes is not None:
        _check_application(entry, upstream)
        _check_redirect(entry, upstream)
        _check_shadow(entry, upstream)
    return None if attributes is None else upstream


def _attributes(entry: UpstreamEntry, builder: Builder) -> Provider[Any] | None:
    if isinstance(entry.attributes, str):
        return builder.build_without_settings(
            "attributes", entry.attributes, entry.fields, "attributes", name=entry.name
        )
    return builder.build("attributes", entry.attributes, name=entry.name)


def _server(entry: UpstreamEntry, directory: Path) -> tuple[str, Path | None]:
    """Return scheme and authority, and the path of ``unix:/path``. The socket may be created later."""
    if entry.server.startswith("unix:"):
        return "http://localhost", directory / entry.server.removeprefix("unix:")
    if not entry.server:
        return "", None  # the missing server was already reported
    try:
        url = parse_origin(entry.server)
    except ValueError as mistake:
        hint = "write it as in https://10.0.0.1:6443 or unix:/run/api.sock"
        entry.fields.problem(str(mistake), "server", hint)
        return "", None
    return url.geturl(), None


def _check_without_server(entry: UpstreamEntry) -> None:
    """Report settings of the gateway's own connections: they have no effect if another proxy forwards the requests."""
    for key in FOR_SERVERS:
        # The proxy forwards the JWT from the authorization response to the upstream.
        is_assertion = key == "identity" and entry.identity is IdentityMode.ASSERTION
        if key in entry.fields and not is_assertion:
            entry.fields.problem("it is without effect: the upstream has no server", key, "set server, or remove it")


def _check_trust(entry: UpstreamEntry, upstream: UpstreamConfig) -> None:
    """Check mutual trust: the upstream accepts the user from the gateway, so each must authenticate the other."""
    problem = entry.fields.problem
    if not upstream.server:
        return
    if upstream.server.startswith("http://") and upstream.socket is None:
        if not is_loopback(parse_origin(upstream.server).hostname or "") and not entry.insecure:
            problem("requests would cross the network in plain text", "server", "use https, or say insecure: true")
        if upstream.identity is IdentityMode.REQUEST_HEADER:
            problem("over plain HTTP anybody could claim to be us", "identity", "use https with a client certificate")
    if upstream.server.startswith("https://") and upstream.identity is IdentityMode.REQUEST_HEADER:
        if upstream.tls.certificate is None:
            problem("without a client certificate anybody could claim to be us", "identity", "set tls.certificate")
        if upstream.tls.ca is None and not upstream.tls.pins:
            problem("any server with a public certificate would do", "identity", "set tls.ca or tls.pins")
    if upstream.identity is IdentityMode.IMPERSONATION and not _has_credential(upstream):
        hint = "set tokenFile, or tls.certificate and tls.key"
        problem("the gateway has no credential to impersonate with", "identity", hint)
    is_told_by_header = upstream.identity is IdentityMode.REQUEST_HEADER
    if not is_told_by_header and "headers" in entry.fields and entry.fields.is_right("identity"):
        problem("it is for identity: requestHeader only", "headers")


def _check_application(entry: UpstreamEntry, upstream: UpstreamConfig) -> None:
    problem = entry.fields.problem
    if upstream.is_application and upstream.is_kubernetes:
        problem("browsers do not speak to the Kubernetes API", "auth", "use attributes: http for a web application")
    if upstream.public and (upstream.is_kubernetes or upstream.identity is IdentityMode.IMPERSONATION):
        # Without a user the upstream would see the gateway's own credential, which has full access there.
        problem("a request without a user would have the gateway's own rights", "public")
    outside = [path for path in upstream.public if not _is_below(path, upstream.prefix)]
    if outside and entry.fields.is_right("prefix"):
        problem(f"an entry is not below the prefix {upstream.prefix}", "public", "write the paths as browsers see them")
    if upstream.pass_authorization and not upstream.is_application:
        problem("it is for auth: browser only", "passAuthorization")
    if upstream.pass_authorization and upstream.token_file is not None:
        problem("the gateway's own token is sent in the same header", "passAuthorization", "remove tokenFile")


def _check_redirect(entry: UpstreamEntry, upstream: UpstreamConfig) -> None:
    redirect, problem = upstream.redirect, entry.fields.problem
    if redirect is None:
        return
    if upstream.is_kubernetes:
        problem("an API server does not know the proof of a redirect", "redirect", "it is for backends of your own")
    if upstream.is_application:
        problem("the proof would stand in the address bar and the history of browsers", "redirect", "use auth: token")
    if not all(_is_below(path, upstream.prefix) for path in redirect.paths) and entry.fields.is_right("prefix"):
        hint = "write the paths as clients see them"
        problem(f"one of its paths is not below the prefix {upstream.prefix}", "redirect", hint)


def _check_shadow(entry: UpstreamEntry, upstream: UpstreamConfig) -> None:
    if upstream.shadow is None:
        return
    problem = entry.fields.problem
    if not upstream.is_kubernetes:
        problem("only a Kubernetes API can be asked for its decisions", "shadow", "remove it")
    elif upstream.server.startswith("https://") and not _has_credential(upstream):
        hint = "set tokenFile, or tls.certificate and tls.key"
        problem("the gateway has no credential to ask for decisions with", "shadow", hint)


def _is_below(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(f"{prefix}/")


def _has_credential(upstream: UpstreamConfig) -> bool:
    return upstream.tls.certificate is not None or upstream.token_file is not None
