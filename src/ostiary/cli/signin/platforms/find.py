"""Finds the platform's proof of who this job or pod is. Called by `exchange`."""

from __future__ import annotations

from ostiary.cli.cached_workload_token import FILE, FILE_VARIABLE, GITHUB, GITLAB, KUBERNETES, PROJECTED_TOKEN, SPIFFE
from ostiary.cli.signin.platforms import github, gitlab, kubernetes, spiffe, token_file
from ostiary.cli.signin.platforms.proof import PlatformChoice, PlatformProof, check_proof, no_proof
from ostiary.core.clock import SYSTEM_CLOCK, Clock

_PLATFORMS = {
    KUBERNETES: (kubernetes.find_proof, kubernetes.hint_for),
    GITHUB: (github.find_proof, github.hint_for),
    GITLAB: (gitlab.find_proof, gitlab.hint_for),
    SPIFFE: (spiffe.find_proof, spiffe.hint_for),
    FILE: (token_file.find_proof, token_file.hint_for),
}
LOOKED_FOR = (
    f"file: --token-file or ${FILE_VARIABLE.decode()}",
    "github: $GITHUB_ACTIONS",
    "gitlab: $GITLAB_CI",
    f"kubernetes: {PROJECTED_TOKEN}, or the service account of a pod",
    "spiffe: $SPIFFE_ENDPOINT_SOCKET",
)


def find_proof(choice: PlatformChoice, *, clock: Clock = SYSTEM_CLOCK) -> PlatformProof:
    """The proof that *choice* asks for, fit to be sent to its audience and to nobody else.

    Raises `CredentialError` if there is none, and `ProviderError` if the platform could not be asked.
    """
    platform = choice.platform_here()
    if platform is None:
        raise no_proof(
            "this is no platform that is known; looked for:\n" + "\n".join(LOOKED_FOR),
            "--from auto",
            "name the platform: --from kubernetes, github, gitlab, spiffe or file",
        )
    find, hint_for = _PLATFORMS[platform]
    return check_proof(find(choice), choice.wanted_audience, hint=hint_for(choice), clock=clock)
