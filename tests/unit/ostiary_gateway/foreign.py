"""Providers of other packages that differ from the bundled ones in one point each; `ENTRY_POINTS` declares them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ostiary.core.yaml import ConfigSection
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.audit import Batches
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.resources import MountedResource, ResourceAnswer, ResourceGroup, ResourceRequest
from ostiary_gateway.providers.allow_all import AllowAllAuthorization
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.providers.single_user import SingleUserIdentity
from ostiary_gateway.stores.memory import MemoryTokenStore

HERE = "tests.unit.ostiary_gateway.foreign"
ENTRY_POINTS = f"""
[ostiary.identity]
misspelt = {HERE}:Misspelt
not_async = {HERE}:NotAsync
anybody = {HERE}:Anybody
by_certificate = {HERE}:ByCertificate
[ostiary.authorization]
everything = {HERE}:Everything
grants = {HERE}:PolicyWithGrants
shared_grants = {HERE}:PolicyWithSharedGrants
[ostiary.token_store]
dictionary = {HERE}:UndeclaredStore
shared = {HERE}:SharedStore
[ostiary.attributes]
cluster = {HERE}:ClusterAttributes
[ostiary.audit]
held_up = {HERE}:HeldUpAudit
raising = {HERE}:RaisingAudit
misspelt = {HERE}:MisspeltAudit
"""


class Plain:
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Any:
        return cls()

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        return UserInfo("alice")

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        return UserInfo("alice")


class Misspelt(Plain):
    async def revalidates(self, user: UserInfo) -> UserInfo:
        return user


class NotAsync(Plain):
    def revalidate(self, user: UserInfo) -> UserInfo:
        return user


class ByCertificate(Plain):
    needs_client_certificate = True


class Anybody(SingleUserIdentity):
    pass


class Everything(AllowAllAuthorization):
    pass


class PolicyWithGrants(AllowAllAuthorization):
    """Serves its grants as resources, and keeps them in the process."""

    resource_group = ResourceGroup("grants.example.com", "v1", (MountedResource("grants", "Grant", False, ("list",)),))

    async def serve_resource(self, request: ResourceRequest) -> ResourceAnswer:
        return ResourceAnswer(200, {})


class PolicyWithSharedGrants(PolicyWithGrants):
    shared_between_processes = True


class ClusterAttributes(KubernetesAttributes):
    pass


class HeldUpAudit(Plain):
    """Waits in `store` until it is let go, and does not give way to anything else in its thread."""

    batches = Batches(buffer=2, size=1)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.kept: list[str] = []

    async def store(self, events: Sequence[str]) -> None:
        self.gate.wait(30)
        self.kept += events


class RaisingAudit(Plain):
    """Takes each event at once, and cannot."""

    dropped = 0

    async def store(self, events: Sequence[str]) -> None: ...

    def accept(self, line: str) -> None:
        raise RuntimeError("canary-91b2")

    async def flush(self) -> None: ...


class MisspeltAudit(Plain):
    async def stores(self, events: Sequence[str]) -> None: ...


# As somebody writes it who has never heard of traits.
_TRAITS = ("shared_between_processes", "survives_restart")
UndeclaredStore = type(
    "UndeclaredStore",
    (),
    {
        name: value
        for name, value in vars(MemoryTokenStore).items()
        if name not in (*_TRAITS, "__dict__", "__weakref__")
    },
)


class SharedStore(MemoryTokenStore):
    shared_between_processes = True
    survives_restart = True
