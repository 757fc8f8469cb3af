"""A service account, and its form in the token store. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

from ostiary.core.users.account_names import AccountName, checked_account_name
from ostiary.errors import ProviderError
from ostiary.interfaces.store_abilities.stored_objects import StoredObject

# The kind of the objects that hold accounts.
KIND = "serviceaccount"


class AccountState(Enum):
    ACTIVE = "active"
    DISABLED = "disabled"
    # Its tokens are being revoked. Whoever deletes it again finishes what was interrupted.
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """`created_at` and `version` are None for one that the configuration declares: it is not in the store."""

    name: AccountName
    state: AccountState = AccountState.ACTIVE
    description: str = ""
    created_at: datetime | None = None
    created_by: str = ""
    version: int | None = None

    @property
    def is_active(self) -> bool:
        return self.state is AccountState.ACTIVE

    @property
    def is_declared(self) -> bool:
        return self.version is None

    def encode(self) -> bytes:
        assert self.created_at is not None
        fields = {
            "state": self.state.value,
            "description": self.description,
            "createdAt": self.created_at.astimezone(UTC).isoformat(),
            "createdBy": self.created_by,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def in_state(self, state: AccountState) -> ServiceAccount:
        return replace(self, state=state)


def decode_account(stored: StoredObject) -> ServiceAccount:
    """Raises `ProviderError` for an object that we did not write: what it says must not be guessed."""
    try:
        fields = json.loads(stored.data)
        namespace, _, name = stored.name.partition("/")
        return ServiceAccount(
            checked_account_name(namespace, name),
            AccountState(fields["state"]),
            str(fields["description"]),
            datetime.fromisoformat(fields["createdAt"]),
            str(fields["createdBy"]),
            stored.version,
        )
    except (ValueError, KeyError, TypeError):
        raise ProviderError(
            "the token store holds a service account that cannot be read",
            cause=f'the object "{stored.name}" has another form',
            code="token-store-unavailable",
        ) from None
