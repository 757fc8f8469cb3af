"""What kube-apiserver checks before it gives a token of a service account, and what it fills in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.cluster.resources import Asked
from tests.support.cluster.status import Refused, bad_request
from tests.support.cluster.store import Object, Store

DEFAULT_SECONDS = 3600
SHORTEST_SECONDS = 600
API_SERVER_AUDIENCE = "https://kubernetes.default.svc"


def checked_token_request(request: Object, asked: Asked, account: Object, store: Store) -> dict[str, Any]:
    """The spec of a request for a token of *account*, as the answer repeats it; raises `Refused`."""
    uid = (request.get("metadata") or {}).get("uid", "")
    if uid and uid != account["metadata"]["uid"]:
        raise _conflict(
            asked.name,
            f"the UID in the token request ({uid}) does not match the UID of the service account"
            f" ({account['metadata']['uid']})",
        )
    spec = {"audiences": [API_SERVER_AUDIENCE], "expirationSeconds": DEFAULT_SECONDS, **(request.get("spec") or {})}
    if spec["expirationSeconds"] < SHORTEST_SECONDS:
        why = "may not specify a duration less than 10 minutes"
        message = f"spec.expirationSeconds: Invalid value: {spec['expirationSeconds']}: {why}"
        raise Refused(422, "Invalid", f'TokenRequest.authentication.k8s.io "" is invalid: {message}', {})
    reference = spec.get("boundObjectRef") or {}
    if reference.get("kind") == "Pod":
        spec["boundObjectRef"] = {**reference, "uid": _pod_uid(reference, asked, store)}
    return spec


def _pod_uid(reference: Object, asked: Asked, store: Store) -> str:
    name = reference["name"]
    pod = store.get(replace(asked, resource="pods", subresource="", name=name))
    if pod["spec"].get("serviceAccountName") != asked.name:
        account = f'"{asked.name}"'
        raise bad_request(
            f"cannot bind token for serviceaccount {account} to pod running with different serviceaccount name."
        )
    uid: str = pod["metadata"]["uid"]
    if reference.get("uid") not in (None, "", uid):
        raise _conflict(
            name, f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record ({uid})"
        )
    return uid


def _conflict(name: str, why: str) -> Refused:
    message = f'Operation cannot be fulfilled on TokenRequest.authentication.k8s.io "{name}": {why}'
    return Refused(409, "Conflict", message, {"name": name, "group": "authentication.k8s.io", "kind": "TokenRequest"})
