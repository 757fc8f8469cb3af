"""``--from kubernetes``: a projected token of the pod, or one that the pod asks its API server for.

    --token-file or the variable  ->  that file
    else the projected token      ->  /var/run/secrets/ostiary/token
    else TokenRequest             ->  as the pod's own service account, bound to the pod; needs a role

The kubelet renews a projected token in place, so the file is read every time.
"""

from __future__ import annotations

import os
from pathlib import Path

from ostiary.cli.cached_workload_token import KUBERNETES, POD_TOKEN, PROJECTED_TOKEN
from ostiary.cli.signin.platforms.proof import (
    PlatformChoice,
    PlatformProof,
    no_proof,
    token_from_file,
    unverified_claims,
)
from ostiary.cli.signin.platforms.token_file import named_file, proof_in
from ostiary.core.secrets.redact import redact

# The shortest that an API server gives; it is used at once.
SECONDS = 600
_ACCOUNT = "system:serviceaccount:"
_CLAIMS = "kubernetes.io"
MESSAGE_SHOWN = 300


def find_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice) or (PROJECTED_TOKEN if os.path.exists(PROJECTED_TOKEN) else None)
    return _request_token(choice) if path is None else proof_in(path, KUBERNETES)


def hint_for(choice: PlatformChoice) -> str:
    return (
        f"give the pod a projected volume with serviceAccountToken: audience: {choice.wanted_audience}, "
        f"mounted so that {PROJECTED_TOKEN} exists; another file: --token-file"
    )


def _request_token(choice: PlatformChoice) -> PlatformProof:
    # Imported here: with a projected token nobody asks the API server.
    from ostiary.client.access import ClusterAccess
    from ostiary.client.api_requests import ApiRequests
    from ostiary.client.kubeconfig import in_cluster
    from ostiary.wire.service_account import (
        UnusableAnswer,
        decode_token_request,
        encode_token_request,
        token_path,
    )
    from ostiary.wire.status import message_of

    selection = in_cluster(os.environ, Path(POD_TOKEN).parent)
    account = _own_account()
    if selection is None or account is None:
        cause = f"there is no projected token at {PROJECTED_TOKEN}, and no service account of a pod"
        raise no_proof(cause, PROJECTED_TOKEN, hint_for(choice))
    namespace, name, pod = account
    server = ApiRequests(ClusterAccess(selection))
    body = encode_token_request(choice.wanted_audience, pod_name=pod, seconds=SECONDS)
    reply = server.send("POST", token_path(namespace, name), body)
    if reply.status not in (200, 201):
        message = redact(message_of(reply.body))[:MESSAGE_SHOWN] or f"status {reply.status}"
        cause = f"there is no projected token at {PROJECTED_TOKEN}, and the API server gives none: {message}"
        raise no_proof(cause, server.server, hint_for(choice))
    try:
        bound_token = decode_token_request(reply.body, audience=choice.wanted_audience)
    except UnusableAnswer as unusable:
        raise no_proof(str(unusable), server.server, hint_for(choice)) from None
    return PlatformProof(KUBERNETES, bound_token.token, server.server)


def _own_account() -> tuple[str, str, str] | None:
    """Namespace and name of the pod's account, and the pod's name, as the mounted token says them."""
    try:
        claims = unverified_claims(token_from_file(POD_TOKEN)) or {}
    except (OSError, ValueError):
        return None
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(_ACCOUNT) or subject.count(":") != 3:
        return None
    _, _, namespace, name = subject.split(":")
    kubernetes_claims = claims.get(_CLAIMS)
    pod = kubernetes_claims.get("pod") if isinstance(kubernetes_claims, dict) else None
    pod_name = pod.get("name") if isinstance(pod, dict) else None
    return namespace, name, pod_name if isinstance(pod_name, str) else ""
