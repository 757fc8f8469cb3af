"""``--from spiffe``: a JWT-SVID with the gateway's audience, from a file or from the agent of this machine.

    --token-file or the variable  ->  that file, which an agent or spiffe-helper keeps fresh
    else $SPIFFE_ENDPOINT_SOCKET  ->  the Workload API, which knows the workload by its process

The agent gives the workload nothing that only it has, so what is exchanged for its token is not cached; with a file it
is.
"""

from __future__ import annotations

import os

from ostiary.cli.cached_workload_token import SPIFFE, SPIFFE_SOCKET
from ostiary.cli.signin.platforms.proof import PlatformChoice, PlatformProof, no_proof
from ostiary.cli.signin.platforms.token_file import VARIABLE, named_file, proof_in
from ostiary.cli.signin.platforms.workload_api import fetch_jwt_svid
from ostiary.core.text import printable
from ostiary.model import Secret

SOCKET_VARIABLE = SPIFFE_SOCKET.decode()


def find_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice)
    if path is not None:
        return proof_in(path, SPIFFE)
    endpoint = os.environ.get(SOCKET_VARIABLE, "")
    if not endpoint:
        cause = "neither a file with a JWT-SVID nor the socket of an agent is named"
        raise no_proof(cause, f"--token-file, ${VARIABLE}, ${SOCKET_VARIABLE}", hint_for(choice))
    token = fetch_jwt_svid(endpoint, choice.wanted_audience, hint=hint_for(choice))
    return PlatformProof(SPIFFE, Secret(token), printable(endpoint))


def hint_for(choice: PlatformChoice) -> str:
    return (
        f"set {SOCKET_VARIABLE}=unix:///run/spire/agent.sock, where the workload is registered; or have spiffe-helper "
        f"write a JWT-SVID with the audience {choice.wanted_audience}, and name it: --token-file FILE"
    )
