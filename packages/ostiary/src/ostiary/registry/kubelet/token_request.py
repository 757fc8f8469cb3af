"""Service account tokens from the API server: the `TokenSource` of callers that may request them, like a kubelet.

    account -> GET serviceaccounts/NAME -> its uid and annotations
    token   -> cached and fresh? -> use it;  else POST serviceaccounts/NAME/token, bound to the account's uid and pod

A token is cached like in the kubelet: until a fifth of its lifetime is left, or for a day; and until it expires if the
API server cannot issue another one. The caller provides the connection to the server (`ApiServer`), so that this module
does not depend on the client. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.redaction import redact
from ostiary.core.single_flight import SingleFlight, wait
from ostiary.core.text import printable
from ostiary.errors import CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.registry.kubelet.service_account import CODE, KubernetesServiceAccount, PodCoordinates
from ostiary.wire.service_account import (
    BoundToken,
    UnusableAnswer,
    decode_service_account,
    decode_token_request,
    encode_token_request,
    service_account_path,
    token_path,
)
from ostiary.wire.status import message_of

LONGEST_KEPT = timedelta(hours=24)
# The kubelet has no limit; each pod's token is one entry.
TOKEN_LIMIT = 4096
MESSAGE_SHOWN = 300

_Key = tuple[KubernetesServiceAccount, str, str, str]


class ApiServerReply(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...


class ApiServer(Protocol):
    """Sends one signed request; raises an `OstiaryError` if there is no response."""

    def send(self, method: str, path: str, body: bytes | None = None) -> ApiServerReply: ...


class ApiServerTokens:
    """A `TokenSource` that uses an API server. Two pods, or two audiences, never share a token."""

    def __init__(self, server: ApiServer, *, clock: Clock | None = None, limit: int = TOKEN_LIMIT) -> None:
        self._server = server
        self._clock = clock or SYSTEM_CLOCK
        self._limit = limit
        self._runs: SingleFlight[Future[BoundToken]] = SingleFlight(thread_name="ostiary-token-request")
        self._kept: dict[_Key, BoundToken] = {}

    def service_account(self, namespace: str, name: str) -> tuple[KubernetesServiceAccount, Mapping[str, str]]:
        """Return the current account. Never cached, like in the kubelet: an annotation may be removed."""
        reply = self._server.send("GET", service_account_path(namespace, name))
        if reply.status != 200:
            raise _refusal(reply, f'"get" on serviceaccounts in namespace {printable(namespace)}')
        try:
            uid, annotations = decode_service_account(reply.body)
        except UnusableAnswer as unusable:
            raise _no_token(f"the API server's answer cannot be used: {unusable}") from None
        return KubernetesServiceAccount(namespace, name, uid), annotations

    def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
        """Return a token bound to *account* and, if it has a name, to *pod*."""
        key = (account, pod.name, pod.uid, audience)
        with self._runs.lock:
            cached = self._kept.get(key)
            if cached is not None and self._is_fresh(cached):
                return cached.token
            run = self._runs.running(key)
            if run is None:
                run = self._runs.start(Future(), partial(self._request, key), settle=partial(self._keep, key), key=key)
        try:
            return wait(run).token
        except OstiaryError:
            # Like the kubelet: an old token stays in use until it expires if no newer one is available.
            if cached is not None and self._clock.now() < cached.expires_at:
                return cached.token
            raise

    def _request(self, key: _Key) -> BoundToken:
        account, pod_name, pod_uid, audience = key
        body = encode_token_request(audience, account_uid=account.uid, pod_name=pod_name, pod_uid=pod_uid)
        reply = self._server.send("POST", token_path(account.namespace, account.name), body)
        if reply.status not in (200, 201):
            raise _refusal(
                reply, f'"create" on serviceaccounts/token in namespace {printable(account.namespace)}', audience
            )
        try:
            bound_token = decode_token_request(reply.body, audience=audience)
        except UnusableAnswer as unusable:
            raise _no_token(f"the API server's answer cannot be used: {unusable}") from None
        if bound_token.expires_at <= self._clock.now():
            raise _no_token("the API server gave a token that has expired already", "correct the clock of this machine")
        return bound_token

    def _keep(self, key: _Key, bound: BoundToken | None, error: BaseException | None) -> None:
        """Store the result. The caller holds the lock."""
        if bound is None:
            return
        self._kept.pop(key, None)
        while len(self._kept) >= self._limit:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = bound

    def _is_fresh(self, bound: BoundToken) -> bool:
        return self._clock.now() < _refresh_at(bound)


def _refresh_at(bound: BoundToken) -> datetime:
    issued_at = bound.expires_at - bound.lifetime
    return min(issued_at + LONGEST_KEPT, bound.expires_at - bound.lifetime / 5)


# --- error responses ---


def _refusal(reply: ApiServerReply, permission: str, audience: str | None = None) -> CredentialError:
    quoted = redact(message_of(reply.body))[:MESSAGE_SHOWN] or f"status {reply.status}"
    match reply.status:
        case 401:
            return _no_token("the API server rejects the credential of the kubeconfig", "sign in again")
        case 403:
            return _no_token(f"permission denied: {quoted}", _permission_hint(permission, audience))
        case 404:
            hint = "check the namespace and the name: kubectl get serviceaccounts -A"
            return _no_token(f"there is no such service account or pod: {quoted}", hint)
        case 409:
            return _no_token(f"the account or the pod was replaced meanwhile: {quoted}", "try again")
        case status if status == 429 or status >= 500:
            return _no_token(f"the API server could not answer: {quoted}", "try again later")
    return _no_token(f"the API server refused the request: {quoted}")


def _permission_hint(permission: str, audience: str | None) -> str:
    hint = f"the user of the kubeconfig needs {permission}"
    if audience is None:
        return hint
    return f'{hint}; a node also "request-serviceaccounts-token-audience" on {printable(audience)}'


def _no_token(cause: str, hint: str | None = None) -> CredentialError:
    return CredentialError(cause, hint=hint, code=CODE)
