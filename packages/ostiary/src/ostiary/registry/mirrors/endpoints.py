"""The credentials for each endpoint of a pull: those of the image's name at that host, and not of its own name.

podman, skopeo, buildah, CRI-O's auth file, and other programs that store a login per host use them. The kubelet's
credential is for the image's own name; `PullEndpoint.gets_kubelet_credential` says where that is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ostiary.core.text import printable
from ostiary.registry.explain import PULLS_WITHOUT, ImageExplanation
from ostiary.registry.keyring import Keyring, Lookup, Skipped
from ostiary.registry.kubelet.service_account import PodCoordinates
from ostiary.registry.mirrors.plan import NO_NAME, Mirrors, PullEndpoint, PullPlan, RuntimeFamily

if TYPE_CHECKING:
    from ostiary.registry.docker_config import PullSecret


@dataclass(frozen=True, slots=True)
class EndpointLookup:
    """An endpoint, and the credentials to try there, in order."""

    endpoint: PullEndpoint
    lookup: Lookup


@dataclass(frozen=True, slots=True)
class PullLookup:
    """The endpoints of a pull that are contacted, in order, each with its credentials."""

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
    """Return the credentials for every endpoint of *image*; waits for providers that must run.

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
    """Like `lookup_endpoints`, for an event loop. The files of *mirrors* are small, and read in the loop."""
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


# Explanations: PullPlan -> each endpoint -> `explain` of the image's name there -> PullExplanation. No password is
# shown.

# Where the kubelet's own credential, which is for the image's own name, is used.
KUBELET_RULES = {
    RuntimeFamily.CONTAINERD: "the kubelet looks up credentials for the image's own name, and containerd sends them to "
    "every host that it asks, mirrors included",
    RuntimeFamily.CONTAINERS: "the kubelet looks up credentials for the image's own name, and CRI-O sends them to that "
    "host alone; for a mirror it looks in its own auth file",
}


@dataclass(frozen=True, slots=True)
class EndpointExplanation:
    """One endpoint. `position` is 0 for one that is skipped, and then `explanation` is None."""

    position: int
    address: str
    is_mirror: bool
    transport: str
    where: str
    reason: str
    repository: str
    kubelet_credential: str
    explanation: ImageExplanation | None = None


@dataclass(frozen=True, slots=True)
class PullExplanation:
    """The endpoints in order.

    `own_name` explains the lookup of the image's own name, which is what the kubelet does.
    """

    image: str
    names: tuple[str, ...]
    runtime: str
    endpoints: tuple[EndpointExplanation, ...]
    kubelet: str
    own_name: ImageExplanation
    warnings: tuple[str, ...] = ()

    @property
    def has_credential(self) -> bool:
        """Return whether some endpoint has a credential of its own, or a matching provider was not run."""
        explanations = [each.explanation for each in self.endpoints if each.explanation is not None]
        return any(each.candidates or not each.complete for each in explanations)


def explain_endpoints(mirrors: Mirrors, image: str, explain_name: Callable[[str], ImageExplanation]) -> PullExplanation:
    """Explain the pull of *image*. *explain_name* explains the lookup of one name with the caller's keyring and pod."""
    plan = mirrors.plan(image)
    return PullExplanation(
        image,
        plan.names,
        plan.runtime.value,
        tuple(_endpoints(plan, explain_name)),
        KUBELET_RULES[plan.runtime],
        explain_name(image),
        tuple(printable(f"{warning.place}: {warning.message}") for warning in plan.warnings),
    )


def _endpoints(plan: PullPlan, explain_name: Callable[[str], ImageExplanation]) -> list[EndpointExplanation]:
    position = 0
    endpoints = []
    for endpoint in plan.endpoints:
        position += not endpoint.skip
        explanation = explain_name(endpoint.repository) if endpoint.repository and not endpoint.skip else None
        if explanation is not None:
            explanation = replace(explanation, conclusion=explanation.conclusion.removesuffix(PULLS_WITHOUT))
        endpoints.append(_endpoint(endpoint, 0 if endpoint.skip else position, explanation))
    return endpoints


def _endpoint(endpoint: PullEndpoint, position: int, explanation: ImageExplanation | None) -> EndpointExplanation:
    kind = "a mirror" if endpoint.is_mirror else "the registry itself"
    reason = f"{kind}; {endpoint.note}" if endpoint.note else kind
    if endpoint.skip:
        reason = f"{kind}, left out: {endpoint.skip}"
    elif not endpoint.repository:
        reason = f"{reason}; {NO_NAME}"
    sends = "sent here, too" if endpoint.gets_kubelet_credential else "not sent here: it is another host"
    return EndpointExplanation(
        position,
        printable(endpoint.address),
        endpoint.is_mirror,
        endpoint.transport,
        printable(str(endpoint.place)),
        reason,
        printable(endpoint.repository),
        "" if endpoint.skip else sends,
        explanation,
    )
