"""Service accounts and API tokens in the built-in API, below ``/apis/ostiary.dev/v1``.

    GET    serviceaccounts[?limit=..][&continue=..]               all namespaces
    GET    namespaces/<namespace>/serviceaccounts                 POST: create
    GET    namespaces/<namespace>/serviceaccounts/<name>          PATCH: disable, enable    DELETE: with its tokens
    POST   namespaces/<namespace>/serviceaccounts/<name>/token    a token of the account; with a name, an API token
    GET    namespaces/<namespace>/serviceaccounts/<name>/token    its API tokens
    DELETE namespaces/<namespace>/serviceaccounts/<name>/token?token=<name or id>

    GET    apitokens                                              the caller's own; POST: create
    DELETE apitokens/<name>                                       by name, or by the id from the list

The engine has authorized a request before it gets here. *create* of ``serviceaccounts/token`` is the right to act as
the account. ``apitokens`` are always those of the caller; all sessions, API tokens included, are the resource
``sessions``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.core.account_names import AccountName, checked_account_name
from ostiary.errors import LoginRefused, ScopeError
from ostiary.wire.status import failure_object
from ostiary_gateway.accounts.api_tokens import ApiTokens
from ostiary_gateway.accounts.errors import AccountRefusal, NotAllowed
from ostiary_gateway.accounts.json import account_json, accounts_json, api_tokens_json, issued_json, revoked_json
from ostiary_gateway.accounts.service_accounts import MOST_LISTED, AccountState, ServiceAccounts
from ostiary_gateway.wire.ostiary_dev import (
    PREFIX,
    AccountRequest,
    TokenRequest,
    decode_account_request,
    decode_body,
    decode_token_request,
)


def failure(code: int, reason: str, message: str) -> Response:
    return JSONResponse(failure_object(code, reason, message), status_code=code)


Endpoint = Callable[[Request], Awaitable[Response]]
_IN_NAMESPACE = f"{PREFIX}/namespaces/{{namespace}}/serviceaccounts"


class AccountsApi:
    """Endpoints of service accounts and their tokens."""

    def __init__(self, accounts: ServiceAccounts, api_tokens: ApiTokens) -> None:
        self._accounts = accounts
        self._api_tokens = api_tokens
        account_path = f"{_IN_NAMESPACE}/{{name}}"
        self.routes = [
            Route(f"{PREFIX}/serviceaccounts", answering(self._list), methods=["GET"]),
            Route(_IN_NAMESPACE, answering(self._list), methods=["GET"]),
            Route(_IN_NAMESPACE, answering(self._create), methods=["POST"]),
            Route(account_path, answering(self._show), methods=["GET"]),
            Route(account_path, answering(self._change), methods=["PATCH"]),
            Route(account_path, answering(self._delete), methods=["DELETE"]),
            Route(f"{account_path}/token", answering(self._issue), methods=["POST"]),
            Route(f"{account_path}/token", answering(self._list_tokens), methods=["GET"]),
            Route(f"{account_path}/token", answering(self._revoke_token), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        if request.state.info.verb != "list" or query.get("labelSelector") or query.get("fieldSelector"):
            raise ValueError("service accounts can be listed by namespace: without selector or watch")
        namespace = request.path_params.get("namespace", "")
        page = await self._accounts.list(namespace, after=query.get("continue", ""), limit=_limit(query.get("limit")))
        return JSONResponse(accounts_json(page))

    async def _create(self, request: Request) -> Response:
        account_request = await _account_request(request)
        if account_request.disabled:
            raise ValueError("an account is created active: disable it afterwards")
        name = checked_account_name(request.path_params["namespace"], account_request.name or "")
        account = await self._accounts.create(name, description=account_request.description or "", by=_caller(request))
        return JSONResponse(account_json(account), status_code=201)

    async def _show(self, request: Request) -> Response:
        return JSONResponse(account_json(await self._accounts.get(_account_name(request))))

    async def _change(self, request: Request) -> Response:
        name, account_request = _account_name(request), await _account_request(request)
        if (
            account_request.name not in (None, name.name)
            or account_request.description is not None
            or account_request.disabled is None
        ):
            raise ValueError("only spec.disabled can be changed")
        state = AccountState.DISABLED if account_request.disabled else AccountState.ACTIVE
        return JSONResponse(account_json(await self._accounts.set_state(name, state, by=_caller(request))))

    async def _delete(self, request: Request) -> Response:
        ended = await self._accounts.delete(_account_name(request), by=_caller(request))
        answer = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "ended": ended}
        return JSONResponse(answer)

    async def _issue(self, request: Request) -> Response:
        name = _account_name(request)
        token_request = decode_token_request(decode_body(await request.body() or b"{}"))
        client = f"requested by {_caller(request)}"
        if token_request.name:
            return await self._create_token(request, name, token_request, client)
        issued = await self._accounts.issue(
            name, lifetime=token_request.lifetime, scope=token_request.scope, client=client
        )
        return JSONResponse(issued_json(issued), status_code=201)

    async def _create_token(self, request: Request, name: AccountName, wanted: TokenRequest, client: str) -> Response:
        check_maker(request)
        issued = await self._api_tokens.create_for_account(
            request.state.session,
            self._accounts,
            name,
            wanted.name,
            lifetime=wanted.lifetime,
            scope=wanted.scope,
            client=client,
        )
        return JSONResponse(issued_json(issued, kind="APIToken"), status_code=201)

    async def _list_tokens(self, request: Request) -> Response:
        account = await self._accounts.get(_account_name(request))
        return JSONResponse(api_tokens_json(await self._api_tokens.list(account.name.username)))

    async def _revoke_token(self, request: Request) -> Response:
        username, token = _account_name(request).username, request.query_params.get("token", "")
        session = await self._api_tokens.revoke(username, token, by=f"{_caller(request)} (API token)")
        return JSONResponse(revoked_json(session))


def check_maker(request: Request) -> None:
    """Raise `NotAllowed` unless the caller acts as themselves and with a token that is not scoped."""
    if request.state.impersonates or request.state.delegation:
        raise NotAllowed("an API token is made in one's own name, and not with a narrowed token")


def answering(endpoint: Endpoint) -> Endpoint:
    """Wrap *endpoint* so that its errors become a Kubernetes ``Status``. The surrounding API handles outages."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except AccountRefusal as refusal:
            return failure(refusal.status, refusal.reason, refusal.summary)
        except LoginRefused as refusal:
            # The session was revoked concurrently, or there are too many tokens.
            return failure(409, "Conflict", refusal.summary)
        except ScopeError as error:
            return failure(400, "BadRequest", f"{error.summary}: {error.cause}" if error.cause else error.summary)
        except ValueError as error:
            return failure(400, "BadRequest", str(error))

    return answer


async def _account_request(request: Request) -> AccountRequest:
    account_request = decode_account_request(decode_body(await request.body()))
    if account_request.namespace not in (None, request.path_params["namespace"]):
        raise ValueError("metadata.namespace is not that of the path")
    return account_request


def _account_name(request: Request) -> AccountName:
    return checked_account_name(request.path_params["namespace"], request.path_params["name"])


def _caller(request: Request) -> str:
    return str(request.state.user.username)


def _limit(text: str | None) -> int:
    if text is None:
        return MOST_LISTED
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError("limit is not a number")
    return int(text) or MOST_LISTED


class ApiTokensApi:
    """Endpoints with which users create, list and revoke their own API tokens."""

    def __init__(self, api_tokens: ApiTokens) -> None:
        self._api_tokens = api_tokens
        self.routes = [
            Route(f"{PREFIX}/apitokens", answering(self._list), methods=["GET"]),
            Route(f"{PREFIX}/apitokens", answering(self._create), methods=["POST"]),
            Route(f"{PREFIX}/apitokens/{{name}}", answering(self._revoke), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        if request.state.info.verb != "list" or query.get("labelSelector") or query.get("fieldSelector"):
            raise ValueError("API tokens can only be listed, all of yours: without selector or watch")
        return JSONResponse(api_tokens_json(await self._api_tokens.list(request.state.user.username)))

    async def _create(self, request: Request) -> Response:
        state = request.state
        check_maker(request)
        token_request = decode_token_request(decode_body(await request.body()))
        issued = await self._api_tokens.create(
            state.session,
            token_request.name,
            lifetime=token_request.lifetime,
            scope=token_request.scope,
            client=f"made by API from {state.address}",
        )
        return JSONResponse(issued_json(issued, kind="APIToken"), status_code=201)

    async def _revoke(self, request: Request) -> Response:
        username = request.state.user.username
        session = await self._api_tokens.revoke(username, request.path_params["name"], by=f"{username} (API token)")
        return JSONResponse(revoked_json(session))
