"""Service accounts and their tokens, and API tokens, in the gateway's own API group: JSON to model and back. Pure.

Called by the API (`ostiary.gateway.doors.accounts_api`). Every decoder raises `ValueError` with a message that the
sender may read. A field that we do not know is an error: what somebody asked for must not be left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ostiary.wire.ostiary_dev.body_fields import check_kind, object_fields, text_field
from ostiary.wire.ostiary_dev.operators import API_VERSION

LONGEST_SECONDS = 100 * 366 * 24 * 3600
LONGEST_DESCRIPTION = 500
LONGEST_TOKEN_NAME = 100


@dataclass(frozen=True, slots=True)
class AccountRequest:
    """What a body says of an account; None where it says nothing."""

    name: str | None = None
    namespace: str | None = None
    description: str | None = None
    disabled: bool | None = None


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """`name` makes it a named API token; `scope` makes it less than its owner."""

    lifetime: timedelta | None = None
    scope: str = ""
    name: str = ""


def decode_account_request(value: Any) -> AccountRequest:
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec"))
    check_kind(fields, "ServiceAccount")
    metadata = object_fields(fields.get("metadata", {}), "metadata", ("name", "namespace"))
    spec = object_fields(fields.get("spec", {}), "spec", ("description", "disabled"))
    disabled = spec.get("disabled")
    if disabled is not None and not isinstance(disabled, bool):
        raise ValueError("spec.disabled is not true or false")
    description = text_field(spec, "description", "spec.description", LONGEST_DESCRIPTION)
    return AccountRequest(
        text_field(metadata, "name", "metadata.name", 253),
        text_field(metadata, "namespace", "metadata.namespace", 63),
        description,
        disabled,
    )


def decode_token_request(value: Any) -> TokenRequest:
    """A ``TokenRequest`` as Kubernetes has it, without audiences: these tokens are for this gateway."""
    fields = object_fields(value, "the body", ("kind", "apiVersion", "metadata", "spec", "status"))
    check_kind(fields, "TokenRequest", "APIToken")
    spec = object_fields(fields.get("spec", {}), "spec", ("expirationSeconds", "scope", "name"))
    return TokenRequest(
        _lifetime(spec.get("expirationSeconds")),
        text_field(spec, "scope", "spec.scope", 8192) or "",
        text_field(spec, "name", "spec.name", LONGEST_TOKEN_NAME) or "",
    )


def _lifetime(seconds: object) -> timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= LONGEST_SECONDS:
        raise ValueError("spec.expirationSeconds is not a number of seconds")
    return timedelta(seconds=seconds)


# --- to JSON ---


def time_text(moment: datetime) -> str:
    """As Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_json(kind: str, items: Sequence[Mapping[str, object]], *, after: str = "") -> dict[str, object]:
    metadata = {"continue": after} if after else {}
    return {"kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "items": list(items)}
