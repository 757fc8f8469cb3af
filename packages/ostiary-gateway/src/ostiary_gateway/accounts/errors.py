"""Errors of operations on accounts and API tokens. The messages are shown to the caller."""

from __future__ import annotations

from ostiary.core.account_names import AccountName
from ostiary.errors import OstiaryError


class AccountRefusal(OstiaryError):
    """The request is denied or invalid. `status` is the HTTP code, `reason` that of the Kubernetes ``Status``."""

    default_code = "account-refused"
    status = 400
    reason = "BadRequest"


class UnknownAccount(AccountRefusal):
    status, reason = 404, "NotFound"

    def __init__(self, name: AccountName) -> None:
        super().__init__(f'there is no service account "{name}"')


class UnknownToken(AccountRefusal):
    status, reason = 404, "NotFound"

    def __init__(self) -> None:
        super().__init__("there is no such API token")


class AccountConflict(AccountRefusal):
    status, reason = 409, "AlreadyExists"


class NotPossible(AccountRefusal):
    """The request is well-formed, but its values or the current state do not permit it."""

    status, reason = 422, "Invalid"


class NotAllowed(AccountRefusal):
    status, reason = 403, "Forbidden"
