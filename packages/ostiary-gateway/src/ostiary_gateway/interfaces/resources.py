"""Resources that a provider serves itself: a policy readable by API, the members of a group, quotas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import RequestInfo, UserInfo


@dataclass(frozen=True, slots=True)
class MountedResource:
    """One resource, as discovery shows it. Only the listed verbs are served."""

    name: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """One version of an API group. The group is a domain of its own, as in ``policies.example.com``."""

    group: str
    version: str
    resources: tuple[MountedResource, ...]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """An authorized request. `query` is not decoded; `body` is complete, and empty if there is none."""

    user: UserInfo
    info: RequestInfo
    query: str = ""
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ResourceAnswer:
    """The response. `value` must be serializable as JSON: an object, a list of objects, or a ``Status``."""

    status: int
    value: object


@runtime_checkable
class ServesResources(Protocol):
    """A provider that serves its own REST resources, below ``/apis/<group>/<version>``.

    The gateway authenticates and authorizes the request before it calls `serve_resource`; the verb and resource are
    among `resource_group`. One instance serves all requests concurrently. A `ValueError` becomes a 400 with its
    message, a `ProviderError` a 503, any other exception a 500. The group must be unique, and appears in the discovery
    of the Kubernetes upstreams without a prefix. Watches are not served.

    There is one instance per process: each worker and each replica has its own. A provider that stores all state where
    every process reads it immediately, such as in a database, declares ``shared_between_processes = True``
    (`ostiary_gateway.interfaces.token_store.SharedBetweenProcesses`). Otherwise the gateway starts only with a single
    worker and with a token store that replicas do not share: other processes would not see what a request created, and
    would decide differently.
    """

    resource_group: ResourceGroup

    async def serve_resource(self, request: ResourceRequest) -> ResourceAnswer: ...
