"""What the ``doors`` of ``gateway.yaml`` must agree on with the rest; called by `gateway.config.loading`."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.abilities import ability
from ostiary.gateway.config.sections import NO_CLIENT_CERTIFICATES, check_unique, lacks_client_certificates
from ostiary.gateway.config.settings import DoorSettings, Provider, UpstreamConfig
from ostiary.gateway.config.settings.gateway_file import GatewayFile
from ostiary.interfaces.admission import AdmissionProvider, CountsObjects

LARGEST_PORT = 65535


def check_doors(
    file: GatewayFile, upstreams: Sequence[UpstreamConfig], admission: Sequence[Provider[AdmissionProvider]]
) -> None:
    """Note what does not go together, each at its place."""
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
    _check_reachable(file, upstreams)


def upstreams_of(door: DoorSettings, upstreams: Sequence[UpstreamConfig]) -> list[UpstreamConfig]:
    """The upstreams that the proxy of *door* carries requests to."""
    return [upstream for upstream in upstreams if not door.upstreams or upstream.name in door.upstreams]


def _check_upstreams(door: DoorSettings, names: Sequence[str]) -> None:
    hint = f"there are: {', '.join(names)}" if names else "there are no upstreams"
    for name in door.upstreams:
        if name not in names:
            door.fields.problem(f'unknown upstream "{name}"', "upstreams", hint)
    if not names:
        door.fields.problem("there is no upstream to carry requests to", None, "configure upstreams")


def _check_object_counts(
    door: DoorSettings, upstreams: Sequence[UpstreamConfig], admission: Sequence[Provider[AdmissionProvider]]
) -> None:
    """Objects are counted by reading the body and the upstream's answer, and neither passes through a door."""
    counting = next((each for each in admission if ability(each.instance, CountsObjects) is not None), None)
    kubernetes = next((each for each in upstreams_of(door, upstreams) if each.is_kubernetes), None)
    if counting is not None and kubernetes is not None:
        message = f'"{counting.name}" counts objects, which it cannot do for requests that another proxy carries'
        door.fields.problem(message, "upstreams", f'leave "{kubernetes.name}" to the built-in proxy')


def _check_web_applications(door: DoorSettings, upstreams: Sequence[UpstreamConfig], gateway_host: str) -> None:
    """Browsers come back from sign-in to a host of the application's own, at the port of the proxy."""
    applications = [upstream for upstream in upstreams_of(door, upstreams) if upstream.is_application]
    if door.port is not None and not applications and door.fields.is_right("upstreams"):
        door.fields.problem("it is without effect: the proxy carries no web application", "port", "remove it")
    if door.port is not None and door.port > LARGEST_PORT:
        door.fields.problem(f"it must be at most {LARGEST_PORT}", "port")
    for upstream in applications:
        if not door.proxy.leads_browsers:
            message = f'"{upstream.name}" has auth: browser, which needs the built-in proxy, or one that asks by HTTP'
            door.fields.problem(message, "upstreams", "name the upstreams that this proxy carries, without that one")
            continue
        if upstream.pass_authorization:
            message = f'"{upstream.name}" has passAuthorization, which needs the built-in proxy'
            door.fields.problem(message, "upstreams", "name the upstreams that this proxy carries, without that one")
        if not upstream.hosts or gateway_host in upstream.hosts:
            # Everything below /auth is the gateway's there, and the proxy sends only the way back to the gateway.
            message = f'the web application "{upstream.name}" needs a host of its own behind another proxy'
            door.fields.problem(message, "upstreams", "set hosts of the upstream to a name that externalURL has not")


def _check_reachable(file: GatewayFile, upstreams: Sequence[UpstreamConfig]) -> None:
    reached = {upstream.name for door in file.doors for upstream in upstreams_of(door, upstreams)}
    for entry in file.upstreams:
        if "server" not in entry.fields and entry.name not in reached:
            entry.fields.problem("no request can reach it", "server", "set server, or name it in one of doors")
