"""The credentials for each endpoint of a pull: those of the image's name at that host, and not of its own name.

podman, skopeo, buildah, CRI-O's auth file, and everybody who keeps a login for each host look them up so. What the
kubelet hands over is for the image's own name; `PullEndpoint.gets_kubelet_credential` says where that is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostiary.registry.keyring import Keyring, Lookup, Skipped
from ostiary.registry.kubelet.service_account import PodCoordinates
from ostiary.registry.mirrors.plan import NO_NAME, Mirrors, PullEndpoint, PullPlan

if TYPE_CHECKING:
    from ostiary.registry.docker.config import PullSecret


@dataclass(frozen=True, slots=True)
class EndpointLookup:
    """An endpoint that is asked, and the credentials to try there, in order."""

    endpoint: PullEndpoint
    lookup: Lookup


@dataclass(frozen=True, slots=True)
class PullLookup:
    """The endpoints of a pull that are asked, in order, each with its credentials."""

    plan: PullPlan
    endpoints: tuple[EndpointLookup, ...]

    @property
    def has_credential(self) -> bool:
        return any(each.lookup.found for each in self.endpoints)


def lookup_endpoints(
    keyring: Keyring,
    mirrors: Mirrors,
    image: str,
    *,
    pod: PodCoordinates | None = None,
    pull_secrets: Sequence[PullSecret] = (),
) -> PullLookup:
    """The credentials for every place that *image* is pulled from; waits for providers that must run.

    Raises what `Mirrors.plan` and `Keyring.lookup` raise.
    """
    plan = mirrors.plan(image)
    return PullLookup(
        plan,
        tuple(
            EndpointLookup(
                endpoint,
                keyring.lookup(endpoint.repository, pod=pod, pull_secrets=pull_secrets)
                if endpoint.repository
                else _without_name(endpoint),
            )
            for endpoint in plan.asked
        ),
    )


async def lookup_endpoints_async(
    keyring: Keyring,
    mirrors: Mirrors,
    image: str,
    *,
    pod: PodCoordinates | None = None,
    pull_secrets: Sequence[PullSecret] = (),
) -> PullLookup:
    """`lookup_endpoints` for an event loop. The files of *mirrors* are small, and read in the loop."""
    plan = mirrors.plan(image)
    endpoints = [
        EndpointLookup(
            endpoint,
            await keyring.lookup_async(endpoint.repository, pod=pod, pull_secrets=pull_secrets)
            if endpoint.repository
            else _without_name(endpoint),
        )
        for endpoint in plan.asked
    ]
    return PullLookup(plan, tuple(endpoints))


def _without_name(endpoint: PullEndpoint) -> Lookup:
    return Lookup(endpoint.host, skipped=(Skipped(endpoint.host, NO_NAME),))
