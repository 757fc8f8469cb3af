"""Registration of API plugins, below ``/apis/ostiary.dev/v1``.

    GET    apiplugins             POST: register
    GET    apiplugins/<name>      DELETE: remove        the name is that of the upstream, a dot, and the group

Plugins are items in the token store, which all workers and replicas read.
"""

from __future__ import annotations

import re
import ssl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary_gateway.accounts.api import answering
from ostiary_gateway.accounts.errors import AccountRefusal
from ostiary_gateway.config.api_groups import server_mistake, upstream_mistake
from ostiary_gateway.config.api_plugins import MOST_VERSIONS, group_mistake, version_mistake
from ostiary_gateway.config.kinds import PLAIN_PATH, parse_pin
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.proxy.api_plugin import KIND, ApiPlugin
from ostiary_gateway.proxy.api_plugin_registry import ApiPlugins
from ostiary_gateway.proxy.api_plugin_watch import WatchedPlugin, serves_group
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.settings.outgoing import is_host
from ostiary_gateway.wire.ostiary_dev import (
    API_PLUGIN_KIND,
    API_VERSION,
    PREFIX,
    PluginRequest,
    decode_body,
    decode_plugin_request,
    list_json,
    time_text,
)


class PluginRefusal(AccountRefusal):
    """The request is valid but conflicts with the current state. The message is shown to the caller."""

    default_code = "api-plugin-refused"
    status, reason = 422, "Invalid"


class GroupTaken(PluginRefusal):
    status, reason = 409, "Conflict"


class UnknownPlugin(PluginRefusal):
    status, reason = 404, "NotFound"

    def __init__(self, name: str) -> None:
        super().__init__(f'there is no API plugin "{name}"')


class Registrations:
    """List, register and remove API plugins.

    A group can be registered only if it is not served by the upstream, another plugin, a provider, Kubernetes or
    the gateway. If the upstream does not respond, the registration fails.
    """

    def __init__(self, plugins: ApiPlugins, requests: UpstreamClient, clock: Clock) -> None:
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
        # Read the store first: another worker may just have registered the group.
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
        # Delete from the store, where a plugin may exist that this gateway cannot serve with its configuration and so
        # has not loaded.
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
        """Return the plugin of *request*. Raises `ValueError` or `PluginRefusal`."""
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
    """Return the error in the specification; empty if it is valid."""
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


class ApiPluginsApi:
    """Endpoints of ``apiplugins``. The engine has authorized each request.

    Permission to *create* ``apiplugins`` is permission to choose the server that receives the requests to a group.
    """

    def __init__(self, registrations: Registrations) -> None:
        self._registrations = registrations
        path = f"{PREFIX}/apiplugins"
        self.routes = [
            Route(path, answering(self._list), methods=["GET"]),
            Route(path, answering(self._register), methods=["POST"]),
            Route(f"{path}/{{name}}", answering(self._show), methods=["GET"]),
            Route(f"{path}/{{name}}", answering(self._remove), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        if request.state.info.verb != "list" or query.get("labelSelector") or query.get("fieldSelector"):
            raise ValueError("API plugins can only be listed, all of them: without selector or watch")
        items = [plugin_json(each) for each in self._registrations.list()]
        return JSONResponse(list_json(f"{API_PLUGIN_KIND}List", items))

    async def _register(self, request: Request) -> Response:
        wanted = decode_plugin_request(decode_body(await request.body()))
        watched = await self._registrations.register(wanted, by=str(request.state.user.username))
        return JSONResponse(plugin_json(watched), status_code=201)

    async def _show(self, request: Request) -> Response:
        return JSONResponse(plugin_json(self._registrations.get(request.path_params["name"])))

    async def _remove(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._registrations.remove(name)
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "metadata": {"name": name}, "status": "Success"})


def plugin_json(watched: WatchedPlugin) -> dict[str, object]:
    plugin = watched.plugin
    metadata: dict[str, object] = {"name": plugin.name}
    if plugin.created_at is not None:
        metadata["creationTimestamp"] = time_text(plugin.created_at)
    if plugin.version is not None:
        metadata["resourceVersion"] = str(plugin.version)
    pins = plugin.pins if plugin.tls is None else plugin.tls.pins
    return {
        "kind": API_PLUGIN_KIND,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {
            "upstream": plugin.upstream,
            "group": plugin.group,
            "versions": list(plugin.versions),
            "server": plugin.server,
            "health": plugin.health or "",
            "ca": plugin.authorities_pem,
            "pins": sorted(pins),
            "serverName": plugin.server_name,
        },
        # As seen by the worker that responds.
        "status": {
            "available": watched.is_available,
            "message": watched.trouble,
            "source": "configuration" if plugin.is_declared else "api",
            "createdBy": plugin.created_by,
        },
    }
