"""Each refusal has the status code and the reason that Kubernetes has for it."""

from __future__ import annotations

import pytest

from ostiary.core.account_names import AccountName
from ostiary_gateway.accounts.errors import (
    AccountConflict,
    AccountRefusal,
    NotAllowed,
    NotPossible,
    UnknownAccount,
    UnknownToken,
)


@pytest.mark.parametrize(
    ("refusal", "status", "reason"),
    [
        (AccountRefusal("no"), 400, "BadRequest"),
        (UnknownAccount(AccountName("shop", "a")), 404, "NotFound"),
        (UnknownToken(), 404, "NotFound"),
        (AccountConflict("taken"), 409, "AlreadyExists"),
        (NotPossible("too long"), 422, "Invalid"),
        (NotAllowed("off"), 403, "Forbidden"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_a_refusal_says_what_it_is(refusal: AccountRefusal, status: int, reason: str) -> None:
    assert (refusal.status, refusal.reason, refusal.code) == (status, reason, "account-refused")


def test_an_unknown_account_is_named() -> None:
    assert UnknownAccount(AccountName("shop", "a")).summary == 'there is no service account "shop/a"'
