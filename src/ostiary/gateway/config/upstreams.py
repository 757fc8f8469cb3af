"""The ``upstreams`` of ``gateway.yaml``; called by `gateway.config`, like the other sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from ostiary.core.net import is_loopback
from ostiary.gateway.config.providers import Builder
from ostiary.gateway.config.sections import unique_names
from ostiary.gateway.config.settings import DEFAULT_ATTRIBUTES, IdentityMode, Provider, Upstream
from ostiary.gateway.config.values import Values, is_host, is_ip, parse_origin
from ostiary.gateway.http1.headers import HeaderNames

# Where the gateway answers itself.
RESERVED_PREFIXES = ("/auth", "/webhooks", "/apis/ostiary.dev")
_PATH = re.compile(r"/|(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+")


def upstreams(root: Values, builder: Builder) -> tuple[Upstream, ...]:
    sections = root.sections("upstreams")
    built = [_upstream(section, builder, name) for section, name in zip(sections, unique_names(sections), strict=True)]
    return tuple(upstream for upstream in built if upstream is not None)


def _upstream(values: Values, builder: Builder, name: str) -> Upstream | None:
    attributes = _attributes(values, builder, name)
    server, socket = _server(values)
    mapper = attributes or Provider("", "", cast("Any", None))
    default = Upstream(name, server, mapper)
    timeouts = values.section("timeouts")
    found = Upstream(
        name=name,
        server=server,
        socket=socket,
        attributes=mapper,
        hosts=_hosts(values),
        prefix=_prefix(values),
        strip_prefix=values.flag("stripPrefix"),
        identity=values.choice("identity", IdentityMode.NONE),
        headers=_header_names(values.section("headers")),
        tls=values.client_tls("tls"),
        token_file=values.file("tokenFile"),
        health=_health_path(values),
        connections=values.integer("connections", default.connections),
        queue=values.integer("queue", default.queue, least=0),
        connect_timeout=timeouts.duration("connect", default.connect_timeout),
        response_timeout=timeouts.duration("response", default.response_timeout),
        idle_timeout=timeouts.duration("idle", default.idle_timeout),
        place=values.fields.place(),
    )
    _check_trust(values, found)
    return None if attributes is None else found


def _attributes(values: Values, builder: Builder, name: str) -> Provider[Any] | None:
    given = values.fields.plain("attributes")
    if isinstance(given, dict):
        return builder.build("attributes", values.section("attributes").fields, name=name)
    chosen = values.text("attributes", DEFAULT_ATTRIBUTES)
    return builder.build_without_settings("attributes", chosen, values.fields, "attributes", name=name)


def _server(values: Values) -> tuple[str, Path | None]:
    text = values.text("server")
    if text.startswith("unix:"):
        return "http://localhost", values.socket("server")
    if not text:
        values.missing("server")
        return "", None
    try:
        url = parse_origin(text)
    except ValueError as mistake:
        hint = "write it as in https://10.0.0.1:6443 or unix:/run/api.sock"
        values.fields.problem(str(mistake), "server", hint)
        return "", None
    return url.geturl(), None


def _hosts(values: Values) -> tuple[str, ...]:
    hosts = tuple(host.lower().rstrip(".") for host in values.names("hosts"))
    for host in hosts:
        if host and not is_host(host) and not is_ip(host):
            values.fields.problem("an entry is not the name of a host", "hosts", "write it without scheme and port")
    return hosts


def _prefix(values: Values) -> str:
    prefix = values.text("prefix", "/")
    if not _PATH.fullmatch(prefix.rstrip("/") or "/"):
        values.fields.problem("it is not a plain path", "prefix", "write it as in /clusters/east")
        return "/"
    prefix = prefix.rstrip("/") or "/"
    if any(prefix == ours or prefix.startswith(f"{ours}/") for ours in RESERVED_PREFIXES):
        values.fields.problem("this path is reserved for the gateway", "prefix")
    return prefix


def _health_path(values: Values) -> str | None:
    path = values.text("health")
    if path and not _PATH.fullmatch(path):
        values.fields.problem("it is not a plain path", "health", "write it as in /readyz")
    return path or None


def _header_names(values: Values) -> HeaderNames:
    default = HeaderNames()
    return HeaderNames(
        user=values.header_name("user", default.user),
        group=values.header_name("group", default.group),
        uid=values.header_name("uid", default.uid),
        extra_prefix=values.header_name("extraPrefix", default.extra_prefix),
    )


def _check_trust(values: Values, upstream: Upstream) -> None:
    """The upstream must be able to tell us from others, and we it: it believes us who asks."""
    problem = values.fields.problem
    insecure = values.flag("insecure")
    if upstream.server.startswith("http://") and upstream.socket is None:
        if not is_loopback(parse_origin(upstream.server).hostname or "") and not insecure:
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
    if upstream.identity is not IdentityMode.REQUEST_HEADER and "headers" in values.fields and values.right("identity"):
        problem("it is for identity: requestHeader only", "headers")


def _has_credential(upstream: Upstream) -> bool:
    return upstream.tls.certificate is not None or upstream.token_file is not None
