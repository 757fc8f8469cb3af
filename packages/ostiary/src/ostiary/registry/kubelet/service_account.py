"""The service account token for a provider: that of the pod that pulls the image.

The keyring fetches it before the cache lookup, because a cached response belongs to the account. The caller provides
the tokens (`TokenSource`); on a node they come from the API server's TokenRequest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.errors import CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.registry.kubelet.model import TokenAttributes

CODE = "service-account-token-unavailable"


@dataclass(frozen=True, slots=True)
class PodCoordinates:
    """The pod for which an image is looked up. `service_account` is a name, or empty."""

    namespace: str
    name: str
    uid: str
    service_account: str = ""


@dataclass(frozen=True, slots=True)
class KubernetesServiceAccount:
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Presented:
    """The data about the pod's service account for one run of a provider."""

    account: KubernetesServiceAccount
    token: Secret
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def token_hash(self) -> str:
        if not self.token:
            return ""
        return "sha256:" + hashlib.sha256(self.token.reveal().encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Skip:
    """Why a provider is not run for this pod. It is not a failure."""

    reason: str


class TokenSource(Protocol):
    """Provides service accounts and their tokens.

    Called from worker threads, concurrently, on every lookup, so an implementation caches fresh tokens. After any
    exception the provider is not run; the other providers are.
    """

    def service_account(self, namespace: str, name: str) -> tuple[KubernetesServiceAccount, Mapping[str, str]]:
        """Return the account and all of its annotations."""

    def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
        """Return a token of *account* for one *audience*, bound to *pod*."""


def wants_token(attributes: TokenAttributes | None, pod: PodCoordinates | None) -> bool:
    return attributes is not None and pod is not None and bool(pod.service_account)


def skip_without_account(attributes: TokenAttributes | None) -> Skip | None:
    """Return whether a provider is skipped for a pod without a service account, because it requires one."""
    if attributes is not None and attributes.require_service_account:
        return Skip("Service account name is empty, and this provider serves only pods that have one")
    return None


def present(attributes: TokenAttributes, pod: PodCoordinates, tokens: TokenSource | None) -> Presented | Skip:
    """Fetch the data for a provider; raises `CredentialError`. A missing required annotation gives a `Skip`."""
    if tokens is None:
        raise _unavailable(pod, "there is no source of service account tokens", "give the keyring a TokenSource")
    try:
        account, annotations = tokens.service_account(pod.namespace, pod.service_account)
    except Exception as error:
        cause = f"failed to get the service account: {_reason_of(error)}"
        raise _unavailable(pod, cause, _hint_of(error)) from error
    selected = _select_annotations(attributes, annotations)
    if isinstance(selected, Skip):
        return selected
    try:
        token = tokens.token(account, pod=pod, audience=attributes.audience)
    except Exception as error:
        hint = f'see that this node may request tokens for the audience "{printable(attributes.audience)}"'
        cause = f"failed to get service account token: {_reason_of(error)}"
        raise _unavailable(pod, cause, _hint_of(error) or hint) from error
    return Presented(account, token, selected)


def _select_annotations(attributes: TokenAttributes, annotations: Mapping[str, str]) -> dict[str, str] | Skip:
    for key in attributes.required_annotation_keys:
        if key not in annotations:
            # Workloads opt out this way, so it must not be reported as an error.
            return Skip(f"required annotation {printable(key)} not found")
    keys = (*attributes.required_annotation_keys, *attributes.optional_annotation_keys)
    return {key: annotations[key] for key in keys if key in annotations}


def _reason_of(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OstiaryError):
        text = f"{error.summary}: {error.cause}" if error.cause else error.summary
    return redact(text) or type(error).__name__


def _hint_of(error: Exception) -> str | None:
    return error.hint if isinstance(error, OstiaryError) else None


def _unavailable(pod: PodCoordinates, cause: str, hint: str | None = None) -> CredentialError:
    name = printable(f"{pod.namespace}/{pod.service_account}")
    return CredentialError(f'no token for service account "{name}"', cause=cause, hint=hint, code=CODE)
