"""Build a `Layout` from ``gateway.yaml`` and the command line, and print it in the language of the proxy."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ostiary.cli.arguments import UsageError
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_note
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary_gateway.cli.options import config_path, load
from ostiary_gateway.cli.proxy_config import caddy, envoy, gateway_api, haproxy, nginx, traefik
from ostiary_gateway.cli.proxy_config import envoy as envoy_grpc
from ostiary_gateway.cli.proxy_config import nginx as nginx_texts
from ostiary_gateway.cli.proxy_config.layout import Backend, Layout, is_kept_back
from ostiary_gateway.config.extauth import DoorSettings, ProxyKind
from ostiary_gateway.config.extauth_loading import headers_dropped, speaks_tls, upstreams_of
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig
from ostiary_gateway.config.values import Address, parse_address
from ostiary_gateway.proxy.applications import browser_port
from ostiary_gateway.settings.outgoing import is_host, is_ip, parse_origin

WRITERS: dict[ProxyKind, Callable[[Layout], str]] = {
    ProxyKind.NGINX: nginx.configuration,
    ProxyKind.TRAEFIK: traefik.configuration,
    ProxyKind.CADDY: caddy.configuration,
    ProxyKind.ENVOY: envoy.configuration,
    ProxyKind.ENVOY_GRPC: envoy_grpc.grpc_configuration,
    ProxyKind.GATEWAY_API: gateway_api.configuration,
    ProxyKind.HAPROXY: haproxy.configuration,
}
# These proxies match a certificate only with names, not with addresses.
NAMES_ONLY = frozenset({ProxyKind.NGINX, ProxyKind.GATEWAY_API, ProxyKind.HAPROXY})
# Characters without a special meaning in any of the languages.
_SAFE_SECRET = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_DURATION = re.compile(r"[1-9][0-9]*(ms|s|m)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.key_script:
        sys.stdout.write(nginx_texts.KEY_SCRIPT)
        return OK
    kind = ProxyKind(arguments.proxy)
    config = load(arguments)
    layout = _layout(arguments, config, _door(config, kind, arguments))
    sys.stdout.write(haproxy.spoe_configuration(layout) if arguments.spoe else WRITERS[kind](layout))
    _note_what_the_proxy_does_not_do(layout, config)
    for host in filter(None, map(layout.sign_in_host, layout.sites())):
        scheme = urlsplit(config.external_url).scheme
        print_note(f"browsers must reach the proxy at {scheme}://{host}, where they find a web application")
    holds_secret = layout.secret is not None and (kind is not ProxyKind.HAPROXY or arguments.spoe)
    if holds_secret and not sys.stdout.isatty():
        print_note("what was printed holds the secret of the door: only the proxy should be able to read it")
    return OK


def _note_what_the_proxy_does_not_do(layout: Layout, config: GatewayConfig) -> None:
    """Note the `tls` settings of an upstream that apply only to the built-in proxy."""
    names = {backend.name for backend in layout.backends if backend.is_tls}
    for upstream in config.upstreams:
        if upstream.name in names and upstream.tls.pins:
            print_note(f'the proxy does not check tls.pins of the upstream "{upstream.name}"')
        if upstream.name in names and upstream.tls.certificate is not None:
            print_note(f'the proxy has no client certificate for the upstream "{upstream.name}", as the gateway has')


def _door(config: GatewayConfig, kind: ProxyKind, arguments: argparse.Namespace) -> DoorSettings:
    doors = [door for door in config.doors if door.proxy is kind and arguments.door in (None, door.name)]
    if len(doors) == 1:
        return doors[0]
    where = config_path(arguments)
    if doors:
        names = ", ".join(door.name for door in doors)
        raise UsageError(f"there are several doors for {kind.value}", where=where, hint=f"choose with --door: {names}")
    suffix = "" if arguments.door is None else f' called "{arguments.door}"'
    raise ConfigurationError(
        f"there is no door for {kind.value}{suffix}",
        where=where,
        hint=f"add one: doors: [{{name: edge, proxy: {kind.value}, callers: {{tokenFile: edge-secret}}}}]",
        code="config-invalid",
    )


def _layout(arguments: argparse.Namespace, config: GatewayConfig, door: DoorSettings) -> Layout:
    listen = _listen(arguments.listen)
    backends = _backends(arguments, config, door)
    # HAProxy reads both from one file.
    if (arguments.certificate is None) != (arguments.key is None) and door.agent is None:
        raise UsageError("--certificate and --key go together")
    if arguments.cache is not None and not _DURATION.fullmatch(arguments.cache):
        raise UsageError("--cache is not a duration", hint="write it as in 5s")
    cleans_cookies = any(upstream.is_application for upstream in config.upstreams)
    if arguments.cache is not None and cleans_cookies:
        # A cached response contains the cookies of one browser and would be used for another.
        hint = "leave it out, or give the web applications a gateway of their own"
        raise UsageError("--cache cannot be used beside web applications (auth: browser)", hint=hint)
    passed_headers = _passed_headers(arguments, headers_dropped(config))
    if door.callers.token_file is None and arguments.certificate is None:
        raise UsageError("this door takes client certificates only", hint="say where they are: --certificate, --key")
    return Layout(
        door=door,
        source=config_path(arguments),
        listen_host=listen.host,
        listen_port=listen.port,
        gateway=_gateway(arguments, config, door),
        backends=backends,
        secret=None if door.callers.token_file is None else _secret(door.callers.token_file),
        ca=arguments.ca,
        certificate=arguments.certificate,
        key=arguments.key,
        cache=arguments.cache,
        hash_module=arguments.hash_module,
        passed_headers=passed_headers,
        drop_headers=headers_dropped(config),
        browser_port=browser_port(config.external_url, door.port),
        cleans_cookies=cleans_cookies,
        spoe_file=arguments.spoe_file,
        listen_certificate=arguments.listen_certificate,
    )


def _passed_headers(arguments: argparse.Namespace, drop: Sequence[str]) -> tuple[str, ...]:
    names: list[str] = arguments.passed_headers
    if names and arguments.cache is None:
        raise UsageError("--pass-header is for --cache", hint="without a cache, all headers but claims pass")
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(f'"{name}" is not the name of a header', where="--pass-header")
        if is_kept_back(name, drop):
            cause = "it could claim to be somebody, holds a credential, or is about the connection"
            raise UsageError(f'the header "{name}" must not pass', cause=cause, where="--pass-header")
    return tuple(names)


def _listen(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as mistake:
        raise UsageError(f"--listen: {mistake}", hint="write it as in 0.0.0.0:8080") from None


def _backends(arguments: argparse.Namespace, config: GatewayConfig, door: DoorSettings) -> tuple[Backend, ...]:
    upstreams = upstreams_of(door, config.upstreams)
    names = [upstream.name for upstream in upstreams]
    urls = _by_upstream("--backend", arguments.backend, names)
    files = _by_upstream("--backend-ca", arguments.backend_ca, names)
    server_names = _by_upstream("--backend-name", arguments.backend_name, names)
    backends = []
    for upstream in upstreams:
        url, ca, server_name = (each.get(upstream.name) for each in (urls, files, server_names))
        backend = _backend(upstream, None if url is None else _origin(url, f"--backend {upstream.name}"))
        if ca is not None or server_name is not None:
            if not backend.is_tls:
                raise UsageError(f'the upstream "{upstream.name}" has no certificate', hint="its URL is not https://")
            backend = replace(backend, ca=ca or backend.ca, server_name=(server_name or backend.server_name).lower())
        _check_certificate_name(backend, door.proxy, arguments)
        backends.append(backend)
    return tuple(backends)


def _by_upstream(option: str, words: list[str], names: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeatable option, by upstream: ``UPSTREAM=VALUE``."""
    values = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in names:
            hint = f"there are: {', '.join(names)}"
            raise UsageError(f'the door has no upstream "{name}"', where=option, hint=hint)
        if not value:
            raise UsageError(f'nothing is said of the upstream "{name}"', where=option)
        values[name] = value
    return values


def _check_certificate_name(backend: Backend, kind: ProxyKind, arguments: argparse.Namespace) -> None:
    name = backend.certificate_name
    if not is_host(name) and not is_ip(name):
        raise UsageError(f'"{name}" is not the name of a host', where="--backend-name")
    if backend.is_tls and is_ip(name) and kind in NAMES_ONLY:
        hint = f"say which name is in its certificate: --backend-name {backend.name}={backend.name}.example"
        raise _no_addresses(arguments, hint)


def _no_addresses(arguments: argparse.Namespace, hint: str) -> UsageError:
    return UsageError(f"{arguments.title} compares a certificate with names, and not with addresses", hint=hint)


def _origin(text: str, where: str) -> SplitResult:
    try:
        return parse_origin(text)
    except ValueError as mistake:
        raise UsageError(str(mistake), where=where, hint="write it as in http://10.0.0.5:9000") from None


def _backend(upstream: UpstreamConfig, url: SplitResult | None) -> Backend:
    if url is None and (not upstream.server or upstream.socket is not None):
        hint = f"--backend {upstream.name}=http://10.0.0.5:9000"
        raise UsageError(f'where does the proxy find the upstream "{upstream.name}"?', hint=hint)
    return Backend(
        upstream.name,
        upstream.hosts,
        upstream.prefix,
        url or parse_origin(upstream.server),
        is_application=upstream.is_application,
        assertion=upstream.identity is IdentityMode.ASSERTION,
        server_name=upstream.tls.server_name or "",
        ca=None if upstream.tls.ca is None else str(upstream.tls.ca),
    )


def _asked_at(config: GatewayConfig, door: DoorSettings) -> tuple[Address, bool]:
    """Return where the gateway serves this endpoint, and whether it uses TLS there."""
    listen = config.listen
    if door.agent is not None:
        return door.agent.address, speaks_tls(door)
    if door.proxy.asks_by_grpc and listen.grpc is not None:
        return listen.grpc.address, listen.tls is not None
    return listen.address, listen.tls is not None


def _gateway(arguments: argparse.Namespace, config: GatewayConfig, door: DoorSettings) -> SplitResult:
    address, is_tls = _asked_at(config, door)
    if arguments.gateway is not None:
        gateway = _origin(arguments.gateway, "--gateway")
    elif address.host in ("0.0.0.0", "::") or address.port == 0:  # noqa: S104
        hint = f"--gateway {'https' if is_tls else 'http'}://10.0.0.4:{address.port or 8443}"
        raise UsageError("where does the proxy find the gateway?", hint=hint)
    else:
        gateway = parse_origin(f"{'https' if is_tls else 'http'}://{address}")
    if door.proxy in NAMES_ONLY and gateway.scheme == "https" and is_ip(gateway.hostname or ""):
        hint = f"name the gateway as its certificate does: --gateway https://ostiary.example:{gateway.port or 443}"
        raise _no_addresses(arguments, hint)
    if gateway.scheme == "https" and arguments.ca is None:
        raise UsageError("the proxy needs the CA certificate of the gateway", hint="--ca /etc/ssl/ostiary-ca.pem")
    return gateway


def _secret(file: Path) -> Secret:
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError("the secret of the door cannot be read", cause=error.strerror, where=file) from None
    if not _SAFE_SECRET.fullmatch(secret):
        hint = f"openssl rand -hex 32 > {file}"
        raise ConfigurationError(
            "the secret of the door cannot be written into the configuration of every proxy",
            cause="it is empty, or has other characters than letters, digits and . _ ~ + / = -",
            where=file,
            hint=hint,
        )
    return Secret(secret.decode())
