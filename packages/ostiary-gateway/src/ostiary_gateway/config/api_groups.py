"""Rules for API groups that plugins (``apiPlugins``) and providers serve.

A group must not be reserved, and gateway and plugin must authenticate each other. Groups served by providers follow the
same naming rules, and several processes must share their state. Conflicts with groups of the upstream are detected at
run time (`proxy.api_plugin_registry`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config.api_plugins import ApiPluginSettings, DeclaredApiPlugin, group_mistake, version_mistake
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.upstream import UpstreamConfig
from ostiary_gateway.interfaces.resources import ServesResources
from ostiary_gateway.interfaces.store_capabilities import CountStore, NoteStore, OwnedStore
from ostiary_gateway.interfaces.token_store import SharedBetweenProcesses
from ostiary_gateway.settings.outgoing import parse_origin


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
    """Return each provider once, though several parts of the configuration may name it."""
    return [provider for _, _, provider in _providers_with_resources(config)]


def _providers_with_resources(config: GatewayConfig) -> list[tuple[str, str, ServesResources]]:
    """Like `providers_with_resources`, with the section and the name of each."""
    sections = (
        ("identity", config.identity),
        ("groups", config.groups),
        ("authorization", config.authorization.chain),
        ("admission", config.admission),
    )
    found: dict[int, tuple[str, str, ServesResources]] = {}
    for section, providers in sections:
        for each in providers:
            serving = ability(each.instance, ServesResources)
            if serving is not None:
                found[id(serving)] = (section, each.name, serving)
    return list(found.values())


def check_provider_groups(config: GatewayConfig, root: ConfigSection) -> None:
    taken = {plugin.group for plugin in config.api_plugins.declared}
    processes = _other_processes(config)
    for section, name, provider in _providers_with_resources(config):
        served = provider.resource_group
        whose = f"the API group {served.group} of the provider {type(provider).__name__}"
        if mistake := group_mistake(served.group) or version_mistake(served.version):
            root.problem(f"{whose} cannot be served: {mistake}", None)
        if served.group in taken:
            root.problem(f"{whose} is served by somebody else, too", None)
        taken.add(served.group)
        if processes and not has_trait(provider, SharedBetweenProcesses):
            root.problem(
                f'{processes} would decide differently: the provider "{name}" serves resources of its own'
                f" ({served.group}) and does not say that processes share their state",
                section,
                "use one worker and a token store of one machine, such as sqlite; a provider that keeps its state"
                " where all processes read it declares shared_between_processes = True",
            )


def _other_processes(config: GatewayConfig) -> str:
    """Describe the processes of this gateway in addition to the first one; empty if there can be none."""
    if config.listen.workers > 1:
        return "several workers"
    for_replicas = (NoteStore, CountStore, OwnedStore)
    if any(ability(config.store.instance, each) is not None for each in for_replicas):
        return "replicas that share the token store"
    return ""


def upstream_mistake(upstream: UpstreamConfig | None) -> str:
    """Return why *upstream* cannot have plugins; empty if it can."""
    if upstream is None:
        return "unknown upstream"
    if not upstream.is_kubernetes or not upstream.server:
        return "it is no Kubernetes API that the gateway forwards requests to"
    if upstream.prefix != "/" and not upstream.strip_prefix:
        return "its paths begin with a prefix that it gets itself: nobody can tell where an API group begins"
    return ""


def server_mistake(server: str) -> str:
    """Return the error in a plugin's URL; empty if there is none."""
    try:
        url = parse_origin(server)
    except ValueError as mistake:
        return str(mistake)
    return "" if url.scheme == "https" else "only https is spoken with a plugin: both sides prove themselves by TLS"


def _check_server(plugin: DeclaredApiPlugin, fields: ConfigSection) -> None:
    if plugin.server and (mistake := server_mistake(plugin.server)):
        fields.problem(mistake, "server", "write it as in https://10.0.0.1:9443")


def _check_tls(plugin: DeclaredApiPlugin, settings: ApiPluginSettings, fields: ConfigSection) -> None:
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
