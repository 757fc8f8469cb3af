"""API groups beside those of the upstreams: plugins, their registration, and what is merged. Made by the app."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from ostiary.core.clock import Clock
from ostiary.gateway.config.api_groups.rules import providers_with_resources
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.doors.api_plugins.api import ApiPluginsApi
from ostiary.gateway.doors.api_plugins.merging import Merging
from ostiary.gateway.doors.api_plugins.provider_resources import ProviderResources
from ostiary.gateway.doors.api_plugins.registrations import Registrations
from ostiary.gateway.doors.api_plugins.routing import GroupRoutes
from ostiary.gateway.upstream.api_plugins.registry import ApiPlugins
from ostiary.gateway.upstream.own_requests import OwnRequests
from ostiary.gateway.upstream.upstreams import Upstream

KeepRunning = Callable[[str, Callable[[], Awaitable[None]]], None]


class ApiGroupsSetup:
    def __init__(
        self,
        config: GatewayConfig,
        upstreams: Mapping[str, Upstream],
        requests: OwnRequests,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        own = [ProviderResources(provider) for provider in providers_with_resources(config)]
        self.own_apis = [each.own_api for each in own]
        groups = [each.group for each in own]
        self.plugins = ApiPlugins(
            config.api_plugins,
            upstreams,
            requests.objects,
            loop=loop,
            clock=clock,
            reserved=[group.name for group in groups],
        )
        # What is counted in a group is where the group is.
        requests.find_plugin = self.plugins.find_place
        asking = OwnRequests(upstreams)
        self.routes = GroupRoutes(self.plugins, Merging(self.plugins, asking, groups), groups)
        self.api_routes = ApiPluginsApi(Registrations(self.plugins, asking, clock)).routes

    def start(self, keep_running: KeepRunning) -> None:
        self.plugins.start()
        if self.plugins.accepts_registrations:
            keep_running("reading the API plugins in the token store", self.plugins.follow_store)
