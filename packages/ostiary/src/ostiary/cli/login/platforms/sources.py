"""Find the platform's identity token for this job or pod: Kubernetes, GitHub, GitLab, SPIFFE, or a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from ostiary.cli.cached_workload_token import (
    FILE,
    FILE_VARIABLE,
    GITHUB,
    GITHUB_SECRET,
    GITLAB,
    GITLAB_VARIABLE,
    KUBERNETES,
    POD_TOKEN,
    PROJECTED_TOKEN,
    SPIFFE,
    SPIFFE_SOCKET,
    named_token_file,
)
from ostiary.cli.login.platforms.proof import (
    PlatformChoice,
    PlatformProof,
    check_proof,
    no_proof,
    token_from_file,
    unverified_claims,
)
from ostiary.cli.login.platforms.spiffe_workload_api import fetch_jwt_svid
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.http import NO_REPLY, OutgoingHttp, reason_of
from ostiary.core.loopback import is_loopback
from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.core.tls import TlsSettings, build_context
from ostiary.errors import ProviderError
from ostiary.model import Secret

# ``--from file``: a JWT that another process keeps fresh in a file.

VARIABLE = FILE_VARIABLE.decode()


def find_token_file_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice)
    if path is None:
        raise no_proof("no token file is named", f"--token-file, ${VARIABLE}", "name it: --token-file FILE")
    return proof_in(path, FILE)


def token_file_hint(choice: PlatformChoice) -> str:
    return f"the file must hold a JWT whose audience is {choice.wanted_audience}; --audience names another one"


def named_file(choice: PlatformChoice) -> str | None:
    """Return the token file named on the command line or in the environment."""
    return named_token_file(choice.as_options(), dict(os.environb))


def proof_in(path: str, platform: str) -> PlatformProof:
    cause: str | None = None
    try:
        token = token_from_file(path)
    except OSError as error:
        cause = f"the token file cannot be read: {error.strerror}"
    except ValueError:
        cause = "what is there is not a JWT"
    if cause is not None:
        # Raised outside of the handlers: what could not be decoded may be the token.
        raise no_proof(cause, path, "check the path, and that this user may read the file")
    return PlatformProof(platform, Secret(token), path)


# ``--from github``: requests an ID token for the gateway's audience from the token endpoint of the GitHub Actions job.

URL_VARIABLE, SECRET_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_URL", GITHUB_SECRET.decode()
SECONDS, LARGEST = 20.0, 1 << 20


def find_github_proof(choice: PlatformChoice) -> PlatformProof:
    url, secret = os.environ.get(URL_VARIABLE, ""), os.environ.get(SECRET_VARIABLE, "")
    if not url or not secret:
        missing = URL_VARIABLE if not url else SECRET_VARIABLE
        raise no_proof("the job may not ask GitHub for an ID token", f"${missing}", github_hint(choice))
    _check_address(url)
    status, body = _ask(f"{url}{'&' if '?' in url else '?'}audience={quote(choice.wanted_audience, safe='')}", secret)
    token = _value(body) if status == 200 else None
    if token is None:
        why = f"it answered with status {status}" if status != 200 else "its answer holds no token"
        raise no_proof(f"GitHub gave no ID token: {why}", _host_of(url), github_hint(choice))
    return PlatformProof(GITHUB, Secret(token), _host_of(url))


def github_hint(choice: PlatformChoice) -> str:
    return "add to the workflow, or to the job:\npermissions:\n  id-token: write\n  contents: read"


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    if not host or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not is_loopback(host)):
        # Not quoted: it was not set by GitHub, and may be anything.
        raise no_proof(f"${URL_VARIABLE} is not an https address", f"${URL_VARIABLE}", "unset it; GitHub sets it")


def _host_of(url: str) -> str:
    return printable(urlsplit(url).netloc.rpartition("@")[2])


def _ask(url: str, secret: str) -> tuple[int, bytes]:
    http = OutgoingHttp(context=build_context(TlsSettings()), seconds=SECONDS, largest=LARGEST)
    headers = {"Authorization": f"bearer {secret}", "Accept": "application/json; api-version=2.0"}
    try:
        reply = http.send("GET", url, headers=headers)
        return reply.status, reply.body if reply.is_whole else b""
    except NO_REPLY as error:
        reason = reason_of(error)
        cause = redact(str(getattr(reason, "strerror", None) or type(reason).__name__))
    # Raised outside of the handler: the exception references the request and so the secret.
    raise ProviderError(
        "GitHub's token endpoint is unreachable",
        cause=cause,
        where=_host_of(url),
        hint="retry later; a proxy of the runner must let it through",
        code="platform-unreachable",
    )


def _value(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    value = document.get("value") if isinstance(document, dict) else None
    return value if isinstance(value, str) and value else None


# ``--from gitlab``: the ID token in a variable of the job, as configured in ``id_tokens``.


def find_gitlab_proof(choice: PlatformChoice) -> PlatformProof:
    variable = choice.token_variable or GITLAB_VARIABLE
    token = os.environ.get(variable, "").strip()
    if not token:
        raise no_proof(f"the job has no ID token in ${variable}", f"${variable}", gitlab_hint(choice))
    return PlatformProof(GITLAB, Secret(token), f"${variable}")


def gitlab_hint(choice: PlatformChoice) -> str:
    variable = choice.token_variable or GITLAB_VARIABLE
    return (
        f"add to the job in .gitlab-ci.yml:\n"
        f"id_tokens:\n  {variable}:\n    aud: {choice.wanted_audience}\n"
        f"(another variable: --token-variable NAME)"
    )


# ``--from kubernetes``: a projected token of the pod, or one that the pod requests from its API server.
#
#     --token-file or the variable  ->  that file
#     else the projected token      ->  /var/run/secrets/ostiary/token
#     else TokenRequest             ->  as the pod's own service account, bound to the pod; needs a role
#
# The kubelet rotates a projected token in place, so the file is read every time.

# The shortest lifetime that an API server accepts; the token is used immediately.
KUBERNETES_SECONDS = 600
_ACCOUNT = "system:serviceaccount:"
_CLAIMS = "kubernetes.io"
MESSAGE_SHOWN = 300


def find_kubernetes_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice) or (PROJECTED_TOKEN if os.path.exists(PROJECTED_TOKEN) else None)
    return _request_token(choice) if path is None else proof_in(path, KUBERNETES)


def kubernetes_hint(choice: PlatformChoice) -> str:
    return (
        f"give the pod a projected volume with serviceAccountToken: audience: {choice.wanted_audience}, "
        f"mounted so that {PROJECTED_TOKEN} exists; another file: --token-file"
    )


def _request_token(choice: PlatformChoice) -> PlatformProof:
    # Lazy import: not needed with a projected token.
    from ostiary.client.access import ClusterAccess
    from ostiary.client.api_requests import ApiRequests
    from ostiary.kubeconfig import in_cluster
    from ostiary.wire.service_account import UnusableAnswer, decode_token_request, encode_token_request, token_path
    from ostiary.wire.status import message_of

    selection = in_cluster(os.environ, Path(POD_TOKEN).parent)
    account = _own_account()
    if selection is None or account is None:
        cause = f"there is no projected token at {PROJECTED_TOKEN}, and no service account of a pod"
        raise no_proof(cause, PROJECTED_TOKEN, kubernetes_hint(choice))
    namespace, name, pod = account
    server = ApiRequests(ClusterAccess(selection))
    body = encode_token_request(choice.wanted_audience, pod_name=pod, seconds=KUBERNETES_SECONDS)
    reply = server.send("POST", token_path(namespace, name), body)
    if reply.status not in (200, 201):
        message = redact(message_of(reply.body))[:MESSAGE_SHOWN] or f"status {reply.status}"
        cause = f"there is no projected token at {PROJECTED_TOKEN}, and the API server gives none: {message}"
        raise no_proof(cause, server.server, kubernetes_hint(choice))
    try:
        bound_token = decode_token_request(reply.body, audience=choice.wanted_audience)
    except UnusableAnswer as unusable:
        raise no_proof(str(unusable), server.server, kubernetes_hint(choice)) from None
    return PlatformProof(KUBERNETES, bound_token.token, server.server)


def _own_account() -> tuple[str, str, str] | None:
    """Return namespace and name of the pod's account, and the pod's name, from the mounted token."""
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


# ``--from spiffe``: a JWT-SVID with the gateway's audience, from a file or from the agent of this machine.
#
#     --token-file or the variable  ->  that file, which an agent or spiffe-helper keeps fresh
#     else $SPIFFE_ENDPOINT_SOCKET  ->  the Workload API, which identifies the workload by its process
#
# The agent gives the workload no secret of its own, so the exchanged token is not cached; with a file it is.

SOCKET_VARIABLE = SPIFFE_SOCKET.decode()


def find_spiffe_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice)
    if path is not None:
        return proof_in(path, SPIFFE)
    endpoint = os.environ.get(SOCKET_VARIABLE, "")
    if not endpoint:
        cause = "neither a file with a JWT-SVID nor the socket of an agent is named"
        raise no_proof(cause, f"--token-file, ${VARIABLE}, ${SOCKET_VARIABLE}", spiffe_hint(choice))
    token = fetch_jwt_svid(endpoint, choice.wanted_audience, hint=spiffe_hint(choice))
    return PlatformProof(SPIFFE, Secret(token), printable(endpoint))


def spiffe_hint(choice: PlatformChoice) -> str:
    return (
        f"set {SOCKET_VARIABLE}=unix:///run/spire/agent.sock, where the workload is registered; or have spiffe-helper "
        f"write a JWT-SVID with the audience {choice.wanted_audience}, and name it: --token-file FILE"
    )


_PLATFORMS = {
    KUBERNETES: (find_kubernetes_proof, kubernetes_hint),
    GITHUB: (find_github_proof, github_hint),
    GITLAB: (find_gitlab_proof, gitlab_hint),
    SPIFFE: (find_spiffe_proof, spiffe_hint),
    FILE: (find_token_file_proof, token_file_hint),
}
LOOKED_FOR = (
    f"file: --token-file or ${FILE_VARIABLE.decode()}",
    "github: $GITHUB_ACTIONS",
    "gitlab: $GITLAB_CI",
    f"kubernetes: {PROJECTED_TOKEN}, or the service account of a pod",
    "spiffe: $SPIFFE_ENDPOINT_SOCKET",
)


def find_proof(choice: PlatformChoice, *, clock: Clock = SYSTEM_CLOCK) -> PlatformProof:
    """Return the proof for *choice*, validated for its audience.

    Raises `CredentialError` if there is none, and `ProviderError` if the platform is unavailable.
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
