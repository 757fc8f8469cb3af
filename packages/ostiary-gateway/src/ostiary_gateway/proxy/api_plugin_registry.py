"""The API plugins of a worker: those of the configuration, and those registered in the token store.

The store is read every few seconds, so a plugin registered at one worker or replica is soon served by all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError, TransportError
from ostiary_gateway.config.api_groups import server_mistake
from ostiary_gateway.config.api_plugins import ApiPluginSettings, group_mistake
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.proxy.api_plugin import KIND, ApiPlugin, declared_plugin, decode_plugin
from ostiary_gateway.proxy.api_plugin_watch import WatchedPlugin
from ostiary_gateway.proxy.upstreams import Upstream

log = logging.getLogger("ostiary.gateway")

READ_SECONDS = 2.0
# Each plugin needs connections and is polled by every worker.
MOST_PLUGINS = 64
CONNECTIONS = 256
QUEUE = 512


class ApiPlugins:
    """The API plugins in use.

    `on_change` is called when routing may have changed. `on_removed` is called with the upstream of a plugin that was
    removed or must no longer be served.
    """

    def __init__(
        self,
        settings: ApiPluginSettings,
        upstreams: Mapping[str, Upstream],
        objects: ObjectStore | None,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        reserved: Sequence[str] = (),
    ) -> None:
        self.settings = settings
        self.upstreams = upstreams
        self.objects = objects
        # Groups that providers of the gateway serve.
        self.reserved = frozenset(reserved)
        self._loop = loop
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self.on_removed: Callable[[Upstream], None] = lambda upstream: None
        self._watched: dict[tuple[str, str], WatchedPlugin] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._runs = False
        # Stored plugins that are not served, and the reason that was logged.
        self._reported: dict[str, str] = {}
        for declared in settings.declared:
            self._add(declared_plugin(declared))

    def __bool__(self) -> bool:
        return bool(self._watched)

    @property
    def accepts_registrations(self) -> bool:
        return self.objects is not None and self.settings.certificate is not None

    def find(self, upstream: str, group: str) -> WatchedPlugin | None:
        return self._watched.get((upstream, group))

    def beside(self, upstream: str) -> list[WatchedPlugin]:
        """Return the plugins of *upstream*, sorted by group."""
        return [plugin for (name, _), plugin in sorted(self._watched.items()) if name == upstream]

    def all(self) -> list[WatchedPlugin]:
        return [plugin for _, plugin in sorted(self._watched.items())]

    def find_place(self, upstream: str, target: str) -> Upstream | None:
        """Return the upstream of the plugin that serves *target*, a path and query of *upstream*."""
        segments = target.partition("?")[0].strip("/").split("/")
        if len(segments) < 2 or segments[0] != "apis":
            return None
        watched = self.find(upstream, segments[1])
        return None if watched is None else watched.upstream

    # --- life ---

    async def load(self) -> None:
        """Read the store once before the first request. If that fails, it is read again later."""
        try:
            await self.refresh()
        except ProviderError as error:
            log.error("API plugins cannot be read", extra={"cause": error.cause or error.summary})

    def start(self) -> None:
        """Start checking the plugins."""
        self._runs = True
        for key in self._watched:
            self._start(key)

    async def follow_store(self) -> None:
        """Apply the changes of other workers and replicas."""
        while True:
            await asyncio.sleep(READ_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the store and apply changes; raises `ProviderError`."""
        if self.objects is None:
            return
        stored = {}
        for each in await self.objects.list_objects(KIND, limit=MOST_PLUGINS + 1):
            plugin = decode_plugin(each)
            stored[plugin.upstream, plugin.group] = plugin
        for key, watched in list(self._watched.items()):
            if not watched.plugin.is_declared and stored.get(key) != watched.plugin:
                self._remove(key)
        for key, plugin in stored.items():
            served = self._watched.get(key)
            if served is None:
                self._take_up(plugin)
            elif served.plugin.is_declared:
                self._report(plugin, "the configuration declares another one for the same group")

    def adopt(self, old: ApiPlugins) -> None:
        """Adopt the state of the previous configuration."""
        for key, before in old._watched.items():
            if key not in self._watched and not before.plugin.is_declared:
                self._take_up(before.plugin)
            watched = self._watched.get(key)
            if watched is not None and watched.plugin == before.plugin:
                watched.adopt(before)

    def tick(self, now: float) -> None:
        for watched in self._watched.values():
            watched.upstream.tick(now)

    async def stop(self) -> None:
        """Stop checking. The plugins stay in use."""
        self._runs = False
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        for watched in self._watched.values():
            watched.upstream.pool.close()

    # --- inside ---

    def _take_up(self, plugin: ApiPlugin) -> None:
        """Serve a stored plugin, or log why this configuration cannot."""
        if mistake := self.mistake(plugin):
            self._report(plugin, mistake)
            return
        try:
            self._add(plugin)
        except TransportError as error:
            self._report(plugin, error.cause or error.summary)
            return
        self._reported.pop(plugin.name, None)
        self.on_change()

    def _report(self, plugin: ApiPlugin, cause: str) -> None:
        if self._reported.get(plugin.name) != cause:
            self._reported[plugin.name] = cause
            fields = {"plugin": plugin.name, "group": plugin.group, "cause": cause}
            log.warning("an API plugin is not served", extra=fields)

    def mistake(self, plugin: ApiPlugin) -> str:
        """Return why the gateway cannot serve *plugin*, empty if it can."""
        if plugin.upstream not in self.upstreams:
            return "the gateway has no such upstream"
        if self.settings.certificate is None:
            return "the gateway has no client certificate for plugins (apiPlugins.certificate)"
        if plugin.group in self.reserved:
            return "a provider of the gateway serves this group"
        if len(self._watched) >= MOST_PLUGINS:
            return f"there are {MOST_PLUGINS} API plugins already"
        if not plugin.authorities_pem and not plugin.pins:
            return "any server with a public certificate would do: it has neither ca nor pins"
        return group_mistake(plugin.group) or server_mistake(plugin.server)

    def _add(self, plugin: ApiPlugin) -> None:
        key, beside = (plugin.upstream, plugin.group), self.upstreams[plugin.upstream]
        configured = upstream_settings(plugin, beside.settings, self.settings)
        upstream = Upstream(configured, self._loop, self._clock, beside.on_handshake)
        watched = WatchedPlugin(plugin, upstream, beside, on_change=lambda: self._availability_changed(key))
        self._watched[key] = watched
        self._start(key)

    def _availability_changed(self, key: tuple[str, str]) -> None:
        watched = self._watched.get(key)
        if watched is not None and watched.has_conflict:
            # Streams to the plugin would continue in a group that the upstream serves now.
            self.on_removed(watched.upstream)
        self.on_change()

    def _start(self, key: tuple[str, str]) -> None:
        if self._runs and key not in self._tasks:
            self._tasks[key] = self._loop.create_task(self._watched[key].run())

    def _remove(self, key: tuple[str, str]) -> None:
        watched = self._watched.pop(key)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()
        self.on_change()
        self.on_removed(watched.upstream)
        watched.upstream.pool.close()
        log.info("an API plugin was removed", extra={"plugin": watched.plugin.name, "group": watched.plugin.group})


def upstream_settings(plugin: ApiPlugin, beside: UpstreamConfig, settings: ApiPluginSettings) -> UpstreamConfig:
    """Return settings for reaching a plugin like an upstream: identity in headers, over mutually verified TLS."""
    tls = plugin.tls or ClientTls(server_name=plugin.server_name or None, pins=plugin.pins)
    if tls.certificate is None:
        tls = replace(tls, certificate=settings.certificate, key=settings.key)
    return UpstreamConfig(
        name=plugin.name,
        server=plugin.server,
        attributes=beside.attributes,
        prefix=beside.prefix,
        strip_prefix=beside.strip_prefix,
        identity=IdentityMode.REQUEST_HEADER,
        tls=tls,
        authorities_pem=plugin.authorities_pem or None,
        refuses_redirects=True,
        health=plugin.health or f"/apis/{plugin.group}/{plugin.versions[0]}",
        connections=CONNECTIONS,
        queue=QUEUE,
    )
