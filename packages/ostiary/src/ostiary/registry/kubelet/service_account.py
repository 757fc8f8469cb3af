"""Whose token a provider is given: the service account of the pod that wants the image.

Called by the keyring before it looks into a cache, because a cached answer belongs to the account. Where tokens
come from is the caller's business (`TokenSource`); on a node it is the API server's TokenRequest.
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
    """What one run of a provider is told of the pod's service account."""

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
    """Why a provider is not asked for this pod. It is not a failure."""

    reason: str


class TokenSource(Protocol):
    """Gives service accounts and their tokens.

    Called from worker threads, many at once, on every lookup: an implementation keeps tokens while they are
    fresh. Any exception means that the provider is not run; the other providers are.
    """

    def service_account(self, namespace: str, name: str) -> tuple[KubernetesServiceAccount, Mapping[str, str]]:
        """The account, and all of its annotations."""

    def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
        """A token of *account* for one *audience*, bound to *pod*."""


def wants_token(attributes: TokenAttributes | None, pod: PodCoordinates | None) -> bool:
    return attributes is not None and pod is not None and bool(pod.service_account)


def skip_without_account(attributes: TokenAttributes | None) -> Skip | None:
    """For a pod without a service account: whether a provider insists on one."""
    if attributes is not None and attributes.require_service_account:
        return Skip("Service account name is empty, and this provider serves only pods that have one")
    return None


def present(attributes: TokenAttributes, pod: PodCoordinates, tokens: TokenSource | None) -> Presented | Skip:
    """Fetch what a provider is told; raises `CredentialError`. A missing required annotation is a skip."""
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
            # This is how a workload stays out, so it must not look like a mistake.
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
