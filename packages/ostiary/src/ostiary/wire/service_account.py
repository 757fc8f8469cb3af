"""Service accounts, and ``TokenRequest`` of ``authentication.k8s.io/v1``: requests and responses. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from ostiary.core.text import fits_token_header
from ostiary.model import Secret

API_VERSION = "authentication.k8s.io/v1"
KIND = "TokenRequest"


class UnusableAnswer(ValueError):
    """The response does not match the request. The message says why, and never quotes what may be a token."""


@dataclass(frozen=True, slots=True)
class BoundToken:
    """A service account token. `lifetime` is what the server granted, which may differ from the request."""

    token: Secret
    expires_at: datetime
    lifetime: timedelta


def service_account_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/serviceaccounts/{quote(name, safe='')}"


def token_path(namespace: str, name: str) -> str:
    return f"{service_account_path(namespace, name)}/token"


def decode_service_account(body: bytes) -> tuple[str, dict[str, str]]:
    """Return the uid and the annotations of a ServiceAccount; raises `UnusableAnswer`."""
    metadata = _fields(_json_object(body), "metadata")
    uid, annotations = metadata.get("uid"), _fields(metadata, "annotations")
    if not isinstance(uid, str) or not uid:
        raise UnusableAnswer("the answer is not a service account")
    return uid, {key: text for key, text in annotations.items() if isinstance(text, str)}


def encode_token_request(
    audience: str, *, account_uid: str = "", pod_name: str = "", pod_uid: str = "", seconds: int | None = None
) -> bytes:
    """Return the body of a request. With *account_uid* the server rejects it if the account was replaced meanwhile.

    Without *seconds* the server's default lifetime applies, which is an hour.
    """
    spec: dict[str, object] = {"audiences": [audience]}
    if seconds is not None:
        spec["expirationSeconds"] = seconds
    if pod_name:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": pod_uid}
        spec["boundObjectRef"] = {key: text for key, text in reference.items() if text}
    metadata = {"metadata": {"uid": account_uid}} if account_uid else {}
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, **metadata, "spec": spec}).encode()


def decode_token_request(body: bytes, *, audience: str) -> BoundToken:
    """Return the token of a response; raises `UnusableAnswer`, also if its audience is not *audience*."""
    document = _json_object(body)
    spec, status = _fields(document, "spec"), _fields(document, "status")
    token = status.get("token")
    if document.get("kind") != KIND or not isinstance(token, str) or not fits_token_header(token):
        raise UnusableAnswer("the answer holds no token")
    audiences = spec.get("audiences")
    if not isinstance(audiences, list) or audience not in audiences:
        raise UnusableAnswer("the token is for another audience than was asked for")
    seconds = spec.get("expirationSeconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 < seconds < 10**10:
        raise UnusableAnswer("the answer does not say how long the token is good for")
    return BoundToken(Secret(token), _moment(status.get("expirationTimestamp")), timedelta(seconds=seconds))


def _json_object(body: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        # Continue outside of the handler: the decoder's exception holds the whole text.
        document = None
    if not isinstance(document, dict):
        raise UnusableAnswer("the answer is not a JSON object")
    return document


def _fields(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UnusableAnswer("the answer does not say when the token expires")
    return moment.astimezone(UTC)
