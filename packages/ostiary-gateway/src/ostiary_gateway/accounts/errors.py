"""Why something cannot be done with an account or an API token. The messages are for whoever asked."""

from __future__ import annotations

from ostiary.core.account_names import AccountName
from ostiary.errors import OstiaryError


class AccountRefusal(OstiaryError):
    """The answer is no. `status` is the HTTP code for it, `reason` that of a Kubernetes ``Status``."""

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
    """It is understood, and cannot be done as things are."""

    status, reason = 422, "Invalid"


class NotAllowed(AccountRefusal):
    status, reason = 403, "Forbidden"
