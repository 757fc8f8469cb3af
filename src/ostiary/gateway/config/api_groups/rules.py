"""The rules of the section ``apiPlugins``: which groups may be served, and that both sides prove themselves.

The groups that providers serve themselves keep to the same rules.

Called by `gateway.config.loading` when the upstreams are read. What the upstream serves itself is not known yet: that
is checked while the gateway runs (`upstream.api_plugins.watching`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.abilities import ability
from ostiary.core.config import Fields
from ostiary.core.settings.outgoing import parse_origin
from ostiary.gateway.config.api_groups.names import group_mistake, version_mistake
from ostiary.gateway.config.settings import GatewayConfig, UpstreamConfig
from ostiary.gateway.config.settings.api_plugins import ApiPluginSettings, DeclaredApiPlugin
from ostiary.interfaces.resources import ServesResources


def check_api_plugins(settings: ApiPluginSettings, upstreams: Sequence[UpstreamConfig]) -> None:
    by_name = {upstream.name: upstream for upstream in upstreams}
    names: set[str] = set()
    for plugin in settings.declared:
        fields = plugin.fields
        assert fields is not None, "it was read from a file"
        if plugin.group and (mistake := group_mistake(plugin.group)):
            fields.problem(mistake, "group")
        if plugin.name in names and fields.is_right("group", "upstream"):
            fields.problem("another plugin serves this group beside the same upstream", "group")
        names.add(plugin.name)
        if plugin.upstream and (mistake := upstream_mistake(by_name.get(plugin.upstream))):
            fields.problem(mistake, "upstream", _known(by_name))
        _check_server(plugin, fields)
        _check_tls(plugin, settings, fields)


def providers_with_resources(config: GatewayConfig) -> list[ServesResources]:
    """Each once, though it may stand in several parts of the configuration."""
    instances: tuple[object, ...] = (
        *(provider.instance for provider in config.identity),
        *(provider.instance for provider in config.groups),
        *(provider.instance for provider in config.authorization.chain),
        *(provider.instance for provider in config.admission),
    )
    serving = {id(each): ability(each, ServesResources) for each in instances}
    return [each for each in serving.values() if each is not None]


def check_provider_groups(config: GatewayConfig, root: Fields) -> None:
    taken = {plugin.group for plugin in config.api_plugins.declared}
    for provider in providers_with_resources(config):
        served = provider.resource_group
        whose = f"the API group {served.group} of the provider {type(provider).__name__}"
        if mistake := group_mistake(served.group) or version_mistake(served.version):
            root.problem(f"{whose} cannot be served: {mistake}", None)
        if served.group in taken:
            root.problem(f"{whose} is served by somebody else, too", None)
        taken.add(served.group)


def upstream_mistake(upstream: UpstreamConfig | None) -> str:
    """Why no plugin can stand beside *upstream*; empty if one can."""
    if upstream is None:
        return "unknown upstream"
    if not upstream.is_kubernetes or not upstream.server:
        return "it is no Kubernetes API that the gateway forwards requests to"
    if upstream.prefix != "/" and not upstream.strip_prefix:
        return "its paths begin with a prefix that it gets itself: nobody can tell where an API group begins"
    return ""


def server_mistake(server: str) -> str:
    """What is wrong with the URL of a plugin; empty if nothing is."""
    try:
        url = parse_origin(server)
    except ValueError as mistake:
        return str(mistake)
    return "" if url.scheme == "https" else "only https is spoken with a plugin: both sides prove themselves by TLS"


def _check_server(plugin: DeclaredApiPlugin, fields: Fields) -> None:
    if plugin.server and (mistake := server_mistake(plugin.server)):
        fields.problem(mistake, "server", "write it as in https://10.0.0.1:9443")


def _check_tls(plugin: DeclaredApiPlugin, settings: ApiPluginSettings, fields: Fields) -> None:
    if not fields.is_right("tls"):
        return
    if plugin.tls.certificate is None and settings.certificate is None:
        hint = "set tls.certificate and tls.key, or apiPlugins.certificate and apiPlugins.key"
        fields.problem("without a client certificate anybody could claim to be the gateway", "tls", hint)
    if plugin.tls.ca is None and not plugin.tls.pins:
        fields.problem("any server with a public certificate would do", "tls", "set tls.ca or tls.pins")


def _known(by_name: dict[str, UpstreamConfig]) -> str:
    fitting = sorted(name for name, upstream in by_name.items() if not upstream_mistake(upstream))
    return f"there are: {', '.join(fitting)}" if fitting else "there is no Kubernetes upstream"
