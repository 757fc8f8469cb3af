"""Registers and removes API plugins: objects in the token store, which all workers and replicas read.

Called by the gateway's own API. Nobody may register a group that somebody else serves: the upstream, another plugin, a
provider, Kubernetes or the gateway itself. Where the upstream cannot say, the answer is no.
"""

from __future__ import annotations

import re
import ssl

from ostiary.core.clock import Clock
from ostiary.core.settings.outgoing import is_host
from ostiary.errors import ProviderError
from ostiary.gateway.config.api_groups.names import MOST_VERSIONS, group_mistake, version_mistake
from ostiary.gateway.config.api_groups.rules import server_mistake, upstream_mistake
from ostiary.gateway.config.settings.kinds import PLAIN_PATH, parse_pin
from ostiary.gateway.doors.api_plugins.refusals import GroupTaken, PluginRefusal, UnknownPlugin
from ostiary.gateway.upstream.api_plugins.plugin import KIND, ApiPlugin
from ostiary.gateway.upstream.api_plugins.registry import ApiPlugins
from ostiary.gateway.upstream.api_plugins.watching import WatchedPlugin, serves_group
from ostiary.gateway.upstream.own_requests import OwnRequests
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore
from ostiary.wire.ostiary_dev.api_plugins import PluginRequest


class Registrations:
    def __init__(self, plugins: ApiPlugins, requests: OwnRequests, clock: Clock) -> None:
        self._plugins = plugins
        self._requests = requests
        self._clock = clock

    def list(self) -> list[WatchedPlugin]:
        return self._plugins.all()

    def get(self, name: str) -> WatchedPlugin:
        upstream, _, group = name.partition(".")
        watched = self._plugins.find(upstream, group)
        if watched is None:
            raise UnknownPlugin(name)
        return watched

    async def register(self, request: PluginRequest, *, by: str) -> WatchedPlugin:
        objects = self._writable()
        plugin = self._checked(request, by)
        # What another worker has registered a moment ago counts, too.
        await self._plugins.refresh()
        await self._check_free(plugin)
        try:
            version = await objects.put_object(KIND, plugin.name, plugin.encode(), version=0)
        except ProviderError as error:
            if error.code != "token-store-full":
                raise
            raise PluginRefusal("there are as many API plugins as the token store keeps: remove some") from None
        if version is None:
            raise GroupTaken(f'the API plugin "{plugin.name}" is registered already')
        await self._plugins.refresh()
        return self.get(plugin.name)

    async def remove(self, name: str) -> None:
        objects = self._writable()
        upstream, _, group = name.partition(".")
        watched = self._plugins.find(upstream, group)
        if watched is not None and watched.plugin.is_declared:
            raise PluginRefusal(f'the API plugin "{name}" is declared in the configuration: remove it there')
        # Also one that this gateway cannot serve as it is configured, and so does not know.
        if not await objects.delete_object(KIND, name):
            raise UnknownPlugin(name)
        await self._plugins.refresh()

    def _writable(self) -> ObjectStore:
        if self._plugins.objects is None:
            raise PluginRefusal(
                "the token store of this gateway keeps no objects: declare plugins in apiPlugins.declared"
            )
        return self._plugins.objects

    def _checked(self, request: PluginRequest, by: str) -> ApiPlugin:
        """What *request* asks for; raises `ValueError` or `PluginRefusal`."""
        plugin = ApiPlugin(
            request.upstream,
            request.group,
            request.versions,
            request.server,
            request.health or None,
            request.ca,
            frozenset(map(_pin, request.pins)),
            request.server_name,
            created_at=self._clock.now(),
            created_by=by,
        )
        if request.name not in ("", plugin.name):
            raise ValueError(f'metadata.name must be "{plugin.name}", after the upstream and the group')
        if mistake := _mistake(plugin):
            raise PluginRefusal(mistake)
        beside = self._plugins.upstreams.get(plugin.upstream)
        if mistake := upstream_mistake(None if beside is None else beside.settings):
            raise PluginRefusal(f"spec.upstream: {mistake}")
        if mistake := self._plugins.mistake(plugin):
            raise GroupTaken(mistake) if plugin.group in self._plugins.reserved else PluginRefusal(mistake)
        return plugin

    async def _check_free(self, plugin: ApiPlugin) -> None:
        if self._plugins.find(plugin.upstream, plugin.group) is not None:
            raise GroupTaken(f'the group {plugin.group} is that of the API plugin "{plugin.name}" already')
        is_served = await serves_group(self._requests, self._plugins.upstreams[plugin.upstream], plugin.group)
        if is_served is None:
            raise ProviderError(
                "the API plugin was not registered", cause="the upstream does not say whether it serves the group"
            )
        if is_served:
            raise GroupTaken(f'the upstream "{plugin.upstream}" serves the group {plugin.group} itself')


def _mistake(plugin: ApiPlugin) -> str:
    """What is wrong with what was written; empty if nothing is."""
    if mistake := group_mistake(plugin.group):
        return f"spec.group: {mistake}"
    versions = plugin.versions
    if not versions or len(versions) > MOST_VERSIONS or len(set(versions)) < len(versions):
        return f"spec.versions: between one and {MOST_VERSIONS} different versions are needed"
    if mistake := next(filter(None, map(version_mistake, versions)), ""):
        return f"spec.versions: {mistake}"
    if mistake := server_mistake(plugin.server):
        return f"spec.server: {mistake}"
    if plugin.health is not None and not re.fullmatch(PLAIN_PATH, plugin.health, re.ASCII):
        return "spec.health: it is not a plain path, as in /readyz"
    if plugin.server_name and not is_host(plugin.server_name):
        return "spec.serverName: it is not the name of a host"
    return _trust_mistake(plugin)


def _trust_mistake(plugin: ApiPlugin) -> str:
    if not plugin.authorities_pem and not plugin.pins:
        return "spec.ca or spec.pins is needed: any server with a public certificate would do"
    if "PRIVATE KEY" in plugin.authorities_pem:
        return "spec.ca: it holds a private key; a certificate is wanted"
    if plugin.authorities_pem:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=plugin.authorities_pem)
        except (ssl.SSLError, ValueError):
            return "spec.ca: there is no certificate (PEM) in it"
    return ""


def _pin(text: str) -> str:
    pin = parse_pin(text)
    if pin is None:
        raise PluginRefusal("spec.pins: an entry is not the SHA-256 of a certificate, in 64 hex digits")
    return pin
