"""Health and discovery of one API plugin in a worker.

Polls the plugin's discovery, and checks whether the upstream has begun to serve the group itself. A plugin is less
trusted than an upstream: its responses are bounded and validated (`wire.discovery`), and never fetched while a user
waits for discovery.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from ostiary.core.account_names import OWN_NAMES
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.proxy.api_plugin import ApiPlugin
from ostiary_gateway.proxy.upstream_client import UpstreamClient
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.wire.discovery import ListedGroup, ListedVersion, decode_openapi_hashes, decode_resources

log = logging.getLogger("ostiary.gateway")

EVERY_SECONDS = 5.0
# Initial retry interval of a failing plugin, and the number of consecutive failures before its paths return 503.
RETRY_SECONDS = 1.0
ANSWER_SECONDS = 5.0
MOST_FAILURES = 2
# Check every so many polls whether the upstream serves the group itself.
CONFLICT_CHECKS = 6
LARGEST_DISCOVERY = 512 * 1024
LARGEST_OPENAPI = 4 * 1024 * 1024
# The gateway's identity at plugins and upstreams that require one for discovery.
GATEWAY_USER = UserInfo(f"{OWN_NAMES}gateway", groups=("system:authenticated",))
JSON_ONLY = (("Accept", "application/json"),)

UNCHECKED = "it has not been asked yet"
NOT_ASKED_BESIDE = "the upstream has not said yet whether it serves the group itself"
CONFLICT = "the upstream serves this group itself"


async def serves_group(requests: UpstreamClient, upstream: Upstream, group: str) -> bool | None:
    """Return whether *upstream* serves *group* itself; None if unknown.

    Sent with the gateway's own identity. A caller without permission for discovery gets no 404, so only a 404 means no.
    """
    user = GATEWAY_USER if upstream.settings.identity is IdentityMode.REQUEST_HEADER else None
    try:
        answer = await requests.ask_place(
            upstream, f"/apis/{group}", headers=JSON_ONLY, user=user, largest=LARGEST_DISCOVERY
        )
    except ProviderError:
        return None
    return answer.status == 200 if answer.status in (200, 404) else None


class WatchedPlugin:
    """The state of an API plugin. `trouble` is why it is not served, or empty. `group` is its discovery document."""

    def __init__(
        self,
        plugin: ApiPlugin,
        upstream: Upstream,
        beside: Upstream,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.plugin = plugin
        self.upstream = upstream
        self.beside = beside
        self.trouble = UNCHECKED
        self.group = ListedGroup(plugin.group, tuple(map(ListedVersion, plugin.versions)), is_fresh=False)
        # A client of its own: a plugin that hangs blocks no requests to others.
        self._requests = UpstreamClient({}, seconds=ANSWER_SECONDS)
        self._on_change = on_change
        self._failures = 0
        # None: not known yet.
        self._is_free: bool | None = None
        self._checks = 0
        # Consecutive checks that found the plugin unavailable.
        self._troubles = 0

    @property
    def is_available(self) -> bool:
        return not self.trouble

    @property
    def has_conflict(self) -> bool:
        return self._is_free is False

    def adopt(self, old: WatchedPlugin) -> None:
        """Adopt the state of the same plugin from the previous configuration."""
        self.trouble, self.group = old.trouble, old.group
        self._failures, self._is_free, self._checks = old._failures, old._is_free, old._checks

    def record_conflict(self) -> None:
        """Record that the upstream serves the group itself."""
        self._is_free = False
        self._set_trouble(CONFLICT)

    async def run(self) -> None:
        """Check the plugin periodically."""
        while True:
            try:
                await self.check()
            except Exception as error:
                log.error("an API plugin cannot be checked", extra={"plugin": self.plugin.name}, exc_info=error)
                self._set_trouble("it cannot be checked")
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the time until the next check: short after a failure, then doubling, to limit the load."""
        self._troubles = 0 if self.is_available else self._troubles + 1
        if not self._troubles and not self._failures:
            return EVERY_SECONDS
        return min(RETRY_SECONDS * float(1 << min(self._troubles, 10)), EVERY_SECONDS)

    async def check(self) -> None:
        """Check the upstream and the plugin once."""
        if self._is_free is not True or self._checks % CONFLICT_CHECKS == 0:
            await self._ask_beside()
        self._checks += 1
        if self._is_free is not True:
            self._set_trouble(NOT_ASKED_BESIDE if self._is_free is None else CONFLICT)
            return
        try:
            versions = await self._discover()
        except (ProviderError, ValueError) as error:
            self._failures += 1
            self.group = replace(self.group, is_fresh=False)
            if self._failures >= MOST_FAILURES or self.trouble:
                self._set_trouble(error.cause or error.summary if isinstance(error, ProviderError) else str(error))
            return
        self._failures = 0
        self.group = ListedGroup(self.plugin.group, versions)
        self._set_trouble("")

    # --- requests ---

    async def _ask_beside(self) -> None:
        is_served = await serves_group(self._requests, self.beside, self.plugin.group)
        if is_served is not None:
            self._is_free = not is_served

    async def _discover(self) -> tuple[ListedVersion, ...]:
        """Return the served versions; raises `ProviderError` or `ValueError` if the plugin is unhealthy."""
        group = self.plugin.group
        if self.plugin.health is not None:
            await self._get(self.plugin.health)
        resources = {
            version: decode_resources(await self._get(f"/apis/{group}/{version}"), f"{group}/{version}")
            for version in self.plugin.versions
        }
        hashes = await self._openapi_hashes()
        return tuple(ListedVersion(version, resources[version], hashes.get(version)) for version in resources)

    async def _openapi_hashes(self) -> dict[str, str]:
        """Return the OpenAPI hashes, empty without OpenAPI: `kubectl explain` then does not work for the plugin."""
        try:
            return dict(decode_openapi_hashes(await self._get("/openapi/v3"), self.plugin.group))
        except (ProviderError, ValueError):
            return {}

    async def openapi_v2(self) -> bytes:
        """Return the OpenAPI v2 document; raises `ProviderError` or `ValueError` if there is none."""
        return await self._get("/openapi/v2", largest=LARGEST_OPENAPI)

    async def _get(self, path: str, *, largest: int = LARGEST_DISCOVERY) -> bytes:
        answer = await self._requests.ask_place(
            self.upstream, path, headers=JSON_ONLY, user=GATEWAY_USER, largest=largest
        )
        if answer.status != 200:
            raise ValueError(f"it answered {answer.status} at {path}")
        return answer.body

    def _set_trouble(self, trouble: str) -> None:
        before, self.trouble = self.trouble, trouble
        if trouble:
            self.group = replace(self.group, is_fresh=False)
        if bool(before) == bool(trouble) and before != UNCHECKED and (trouble == CONFLICT) == (before == CONFLICT):
            return
        fields = {"plugin": self.plugin.name, "group": self.plugin.group, "cause": trouble}
        if trouble:
            log.warning("an API plugin is not served", extra=fields)
        else:
            log.info("an API plugin is served", extra={"plugin": self.plugin.name, "group": self.plugin.group})
        self._on_change()
