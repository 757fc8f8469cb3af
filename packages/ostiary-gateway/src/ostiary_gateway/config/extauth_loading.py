"""Rules between external authorization (``doors`` of ``gateway.yaml``) and the rest of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.extauth import DoorSettings
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.gateway_file import GatewayFile
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.config.sections import NO_CLIENT_CERTIFICATES, check_unique, lacks_client_certificates
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig
from ostiary_gateway.http1.headers import HeaderNames
from ostiary_gateway.interfaces.admission import AdmissionProvider, CountsObjects

LARGEST_PORT = 65535


def headers_dropped(config: GatewayConfig) -> tuple[str, ...]:
    """Return the headers that a proxy must drop in addition to the default identity headers.

    They are the names of the operator, and the identity headers of the built-in proxy for each upstream: external
    authorization uses the default names, and an upstream may trust its own names too. A trailing star means a prefix.
    """
    usual = {name.lower() for name in _names(HeaderNames())}
    own = {name for upstream in config.upstreams for name in _names(upstream.headers) if name.lower() not in usual}
    return (*config.listen.drop_headers, *sorted(own))


def _names(headers: HeaderNames) -> tuple[str, ...]:
    return (headers.user, headers.group, headers.uid, f"{headers.extra_prefix}*")


def check_doors(
    file: GatewayFile, upstreams: Sequence[UpstreamConfig], admission: Sequence[Provider[AdmissionProvider]]
) -> None:
    """Report conflicts, each at its position."""
    check_unique(file.doors)
    for door in file.doors:
        _check_upstreams(door, [entry.name for entry in file.upstreams])
        _check_object_counts(door, upstreams, admission)
        _check_web_applications(door, upstreams, "" if file.external_url is None else file.external_url.hostname or "")
        if door.callers.names and lacks_client_certificates(file.listen, door.fields):
            door.fields.problem(NO_CLIENT_CERTIFICATES, "callers")
        if door.proxy.asks_by_grpc and file.listen.grpc is None and door.fields.is_right_at("listen.grpc"):
            hint = "set listen.grpc: {address: 127.0.0.1:8445}"
            door.fields.problem("the gateway does not listen for gRPC", "proxy", hint)
        _check_agent(door, file)
    _check_reachable(file, upstreams)


def upstreams_of(door: DoorSettings, upstreams: Sequence[UpstreamConfig]) -> list[UpstreamConfig]:
    """Return the upstreams that the proxy of *door* forwards requests to."""
    return [upstream for upstream in upstreams if not door.upstreams or upstream.name in door.upstreams]


def _check_upstreams(door: DoorSettings, names: Sequence[str]) -> None:
    hint = f"there are: {', '.join(names)}" if names else "there are no upstreams"
    for name in door.upstreams:
        if name not in names:
            door.fields.problem(f'unknown upstream "{name}"', "upstreams", hint)
    if not names:
        door.fields.problem("there is no upstream to carry requests to", None, "configure upstreams")


def speaks_tls(door: DoorSettings) -> bool:
    """Report whether HAProxy connects over TLS: required beyond the loopback, and for its client certificate."""
    return door.agent is not None and (not door.agent.address.is_loopback or bool(door.callers.names))


def _check_agent(door: DoorSettings, file: GatewayFile) -> None:
    if door.agent is None:
        return
    address = door.agent.address
    others = [each.agent.address for each in file.doors if each is not door and each.agent is not None]
    others += [file.listen.address, file.health.address]
    others += [] if file.listen.grpc is None else [file.listen.grpc.address]
    if not address.port:
        door.fields.problem("HAProxy must know the port", "agent", "choose one")
    elif address in others:
        door.fields.problem("another part of the gateway has this address", "agent", "choose another port")
    if speaks_tls(door) and file.listen.tls is None and door.fields.is_right_at("listen.tls"):
        hint = "set listen.tls, whose certificate HAProxy is shown, or listen on 127.0.0.1"
        door.fields.problem("tokens would cross the network in plain text", "agent", hint)


def _check_object_counts(
    door: DoorSettings, upstreams: Sequence[UpstreamConfig], admission: Sequence[Provider[AdmissionProvider]]
) -> None:
    """Objects are counted from request and response bodies, which external authorization does not see."""
    counting = next((each for each in admission if ability(each.instance, CountsObjects) is not None), None)
    kubernetes = next((each for each in upstreams_of(door, upstreams) if each.is_kubernetes), None)
    if counting is not None and kubernetes is not None:
        message = f'"{counting.name}" counts objects, which it cannot do for requests that another proxy carries'
        door.fields.problem(message, "upstreams", f'leave "{kubernetes.name}" to the built-in proxy')


def _check_web_applications(door: DoorSettings, upstreams: Sequence[UpstreamConfig], gateway_host: str) -> None:
    """After sign-in browsers return to the application's own host, at the port of the proxy."""
    applications = [upstream for upstream in upstreams_of(door, upstreams) if upstream.is_application]
    if door.port is not None and not applications and door.fields.is_right("upstreams"):
        door.fields.problem("it is without effect: the proxy carries no web application", "port", "remove it")
    if door.port is not None and door.port > LARGEST_PORT:
        door.fields.problem(f"it must be at most {LARGEST_PORT}", "port")
    if not door.proxy.leads_browsers:
        _refuse_browsers(door, upstreams)
        return
    for upstream in applications:
        if upstream.pass_authorization:
            message = f'"{upstream.name}" has passAuthorization, which needs the built-in proxy'
            door.fields.problem(message, "upstreams", "name the upstreams that this proxy carries, without that one")
        if not upstream.hosts or gateway_host in upstream.hosts:
            # On the gateway's host everything below /auth is the gateway's; the proxy forwards only the return path to
            # it.
            message = f'the web application "{upstream.name}" needs a host of its own behind another proxy'
            door.fields.problem(message, "upstreams", "set hosts of the upstream to a name that externalURL has not")


def _refuse_browsers(door: DoorSettings, upstreams: Sequence[UpstreamConfig]) -> None:
    """Without HTTP a proxy has no way to return browsers from sign-in, and some cannot remove cookies."""
    carried = upstreams_of(door, upstreams)
    hint = "name the upstreams that this proxy carries, without that one"
    for upstream in carried:
        if upstream.is_application or upstream.public:
            key = "auth: browser" if upstream.is_application else "public"
            message = f'"{upstream.name}" has {key}, which needs the built-in proxy, or one that asks by HTTP'
            door.fields.problem(message, "upstreams", hint)
        if upstream.identity is IdentityMode.ASSERTION and not door.proxy.takes_lines:
            message = f'"{upstream.name}" has identity: assertion, and {door.proxy.value} cannot be told a JWT'
            door.fields.problem(message, "upstreams", hint)
    if door.proxy.takes_lines:
        return
    for application in (upstream for upstream in upstreams if upstream.is_application):
        for upstream in carried:
            if upstream is not application and _share_a_host(upstream, application):
                message = f'"{upstream.name}" would get the cookies of the web application "{application.name}"'
                door.fields.problem(message, "upstreams", "give each of them hosts of its own")


def _share_a_host(one: UpstreamConfig, other: UpstreamConfig) -> bool:
    return not one.hosts or not other.hosts or not set(one.hosts).isdisjoint(other.hosts)


def _check_reachable(file: GatewayFile, upstreams: Sequence[UpstreamConfig]) -> None:
    reached = {upstream.name for door in file.doors for upstream in upstreams_of(door, upstreams)}
    for entry in file.upstreams:
        if "server" not in entry.fields and entry.name not in reached:
            entry.fields.problem("no request can reach it", "server", "set server, or name it in one of doors")
