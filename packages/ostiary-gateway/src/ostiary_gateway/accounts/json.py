"""JSON of service accounts, their tokens and API tokens, for the built-in API and the commands. Pure.

Only `issued_json` contains a token, which is shown once.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostiary_gateway.accounts.api_tokens import maker_of, scope_of
from ostiary_gateway.accounts.service_accounts import AccountPage, ServiceAccount
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.sessions import IssuedToken
from ostiary_gateway.wire.ostiary_dev import API_VERSION, list_json, time_text


def account_json(account: ServiceAccount) -> dict[str, object]:
    metadata: dict[str, object] = {"name": account.name.name, "namespace": account.name.namespace}
    if account.created_at is not None:
        metadata["creationTimestamp"] = time_text(account.created_at)
    if account.version is not None:
        metadata["resourceVersion"] = str(account.version)
    return {
        "kind": "ServiceAccount",
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {"description": account.description, "disabled": not account.is_active},
        "status": {
            "username": account.name.username,
            "state": account.state.value,
            "source": "configuration" if account.is_declared else "api",
            "createdBy": account.created_by,
        },
    }


def accounts_json(page: AccountPage) -> dict[str, object]:
    return list_json("ServiceAccountList", [account_json(each) for each in page.accounts], after=page.after)


def issued_json(issued: IssuedToken, *, kind: str = "TokenRequest") -> dict[str, object]:
    session = issued.session
    metadata: dict[str, object] = {"creationTimestamp": time_text(session.created_at)}
    return {
        "kind": kind,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "status": {
            "id": session.id,
            "name": session.name,
            "user": session.user.username,
            "token": issued.token.reveal(),
            "expirationTimestamp": time_text(issued.expires_at),
        },
    }


def api_tokens_json(sessions: Iterable[Session]) -> dict[str, object]:
    return list_json("APITokenList", [api_token_json(each) for each in sessions])


def api_token_json(session: Session) -> dict[str, object]:
    return {
        "kind": "APIToken",
        "apiVersion": API_VERSION,
        "metadata": {"name": session.name, "creationTimestamp": time_text(session.created_at)},
        "status": {
            "id": session.id,
            "user": session.user.username,
            "scope": scope_of(session),
            "madeBy": maker_of(session),
            "lastUsed": None if session.last_used_at is None else time_text(session.last_used_at),
            "expirationTimestamp": time_text(session.expires_at),
        },
    }


def revoked_json(session: Session) -> dict[str, object]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {"name": session.name}, "status": "Success"}
