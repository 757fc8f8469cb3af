"""``--from gitlab``: the ID token that GitLab puts into a variable of the job, as ``id_tokens`` of the job says."""

from __future__ import annotations

import os

from ostiary.cli.cached_workload_token import GITLAB, GITLAB_VARIABLE
from ostiary.cli.signin.platforms.proof import PlatformChoice, PlatformProof, no_proof
from ostiary.model import Secret


def find_proof(choice: PlatformChoice) -> PlatformProof:
    variable = choice.token_variable or GITLAB_VARIABLE
    token = os.environ.get(variable, "").strip()
    if not token:
        raise no_proof(f"the job has no ID token in ${variable}", f"${variable}", hint_for(choice))
    return PlatformProof(GITLAB, Secret(token), f"${variable}")


def hint_for(choice: PlatformChoice) -> str:
    variable = choice.token_variable or GITLAB_VARIABLE
    return (
        f"add to the job in .gitlab-ci.yml:\n"
        f"id_tokens:\n  {variable}:\n    aud: {choice.wanted_audience}\n"
        f"(another variable: --token-variable NAME)"
    )
