"""Resources that a provider serves itself: a policy that is read by API, the members of a group, quotas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ostiary.model import RequestInfo, UserInfo


@dataclass(frozen=True, slots=True)
class MountedResource:
    """One resource, as discovery shows it. Only verbs that stand here are served."""

    name: str
    kind: str
    namespaced: bool
    verbs: tuple[str, ...]
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """One version of an API group: a domain of one's own, as in ``policies.example.com``."""

    group: str
    version: str
    resources: tuple[MountedResource, ...]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """An allowed request. `query` is as it was sent; `body` is whole, and empty if there is none."""

    user: UserInfo
    info: RequestInfo
    query: str = ""
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class ResourceAnswer:
    """`value` is what can be written as JSON: an object, a list of objects, or a ``Status``."""

    status: int
    value: object


@runtime_checkable
class ServesResources(Protocol):
    """A provider that serves REST resources of its own, below ``/apis/<group>/<version>``.

    The gateway has signed the user in, and has asked the policy, before `serve_resource` is called; the request's verb
    and resource are among `resource_group`. One instance serves all requests at once. A `ValueError` is answered with
    400 and its message, a `ProviderError` with 503, any other exception with 500. The group must be nobody else's, and
    stands in the discovery of the Kubernetes upstreams without a prefix. Watches are not served.

    "One instance" is one per process: each worker and each replica has its own. A provider that keeps all state where
    every process reads it at once, such as in a database, declares ``shared_between_processes = True``
    (`ostiary_gateway.interfaces.token_store.SharedBetweenProcesses`). Without that, the gateway starts only with a
    single worker, and only with a token store that replicas do not share: what a request creates at one process would
    be unknown to the others, and they would decide differently.
    """

    resource_group: ResourceGroup

    async def serve_resource(self, request: ResourceRequest) -> ResourceAnswer: ...
