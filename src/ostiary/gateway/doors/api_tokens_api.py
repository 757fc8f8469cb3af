"""API tokens in the gateway's own API, below ``/apis/ostiary.dev/v1``: everybody's own.

    GET    apitokens             POST apitokens {"spec": {"name": .., "expirationSeconds": .., "scope": ..}}
    DELETE apitokens/<name>      the name, or the id from the list

Served by `admin_api`. The engine has authorized a request before it gets here; whoever is allowed to list or delete
``apitokens`` sees and ends those of their own. All sessions, API tokens included, are the resource ``sessions``.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.gateway.accounts.api_tokens import ApiTokens
from ostiary.gateway.doors.account_json import api_tokens_json, issued_json, revoked_json
from ostiary.gateway.doors.accounts_api import answering, check_maker
from ostiary.wire.ostiary_dev.accounts import decode_token_request
from ostiary.wire.ostiary_dev.operators import PREFIX, decode_body


class ApiTokensApi:
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
