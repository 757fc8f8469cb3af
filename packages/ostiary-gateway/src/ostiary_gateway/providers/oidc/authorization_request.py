"""The authorization request: in the redirect URL, or pushed to the issuer beforehand (RFC 9126).

    parameters -> Redirect with all of them                           the browser carries the request
    parameters -> POST to the issuer -> Redirect with a request_uri   the browser carries a reference to it

The module also maps ``acr``, ``amr`` and ``auth_time`` between ID tokens, requests and `AuthenticationContext`.
"""

from __future__ import annotations

import html
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ostiary_gateway.interfaces.identity import LoginRequest, Redirect, RequiredAuthentication
from ostiary_gateway.providers.common.authorization_code import PreparedRequest, prepare, reported_error
from ostiary_gateway.providers.common.jwt import Claims, TokenRefused, time_of
from ostiary_gateway.providers.common.outbound import HttpAnswer, Outbound
from ostiary_gateway.providers.oidc.metadata import IssuerMetadata
from ostiary_gateway.providers.oidc.settings import ALWAYS, FORM_POST, NEVER
from ostiary_gateway.providers.oidc.token_endpoint import Client, client_hint, with_reported
from ostiary_gateway.sessions.authentication_context import MAX_AHEAD, AuthenticationContext

NONCE = "nonce"
# Errors with which an issuer that accepts the redirect URI reports that sign-ins cannot work either. Other errors mean
# that it needs to interact with the user, or does not support ``prompt=none``.
_REJECTING = frozenset(("unauthorized_client", "invalid_scope", "unsupported_response_type"))
MAX_REQUEST_URI = 2048


class AuthorizationRequests:
    """Build and push the authorization requests of *client*.

    *response_mode* and *pushed* are the settings ``responseMode`` and ``pushedAuthorization``. A pushed request
    cannot be read or changed in the browser, and the issuer has authenticated the client. If pushing fails, the
    sign-in fails: with a fallback, an attacker who disturbs the push could choose the weaker method.
    """

    def __init__(self, client: Client, outbound: Outbound, *, response_mode: str, pushed: str) -> None:
        self._client = client
        self._outbound = outbound
        self._response_mode = response_mode
        self._pushed = pushed

    async def redirect(
        self, parameters: Mapping[str, str], request: LoginRequest, metadata: IssuerMetadata
    ) -> Redirect:
        """Return the redirect to the issuer's login page, with *parameters* added to the standard ones."""
        nonce = secrets.token_urlsafe(32)
        asked = {"response_type": "code", "client_id": self._client.id, "nonce": nonce, **parameters}
        if self._response_mode == FORM_POST:
            self._check_form_post(metadata)
            asked["response_mode"] = FORM_POST
        prepared = prepare(asked, request)
        shown = prepared.parameters
        if self.pushes(metadata):
            shown = {"client_id": self._client.id, "request_uri": await self._push(prepared, metadata)}
        url = _with_query(metadata.authorization_endpoint, shown)
        return Redirect(url, remember=(*prepared.remember, (NONCE, nonce)), state=prepared.state)

    def _check_form_post(self, metadata: IssuerMetadata) -> None:
        modes = metadata.response_modes
        if modes is not None and FORM_POST not in modes:
            why, hint = "it does not announce the response mode form_post", "leave out responseMode"
            raise self._outbound.failure(metadata.authorization_endpoint, why, hint)

    async def accepts(self, redirect_uri: str, parameters: Mapping[str, str], metadata: IssuerMetadata) -> bool:
        """Return whether the issuer accepts *redirect_uri*; False also if it shows its login page before checking it.

        No user interacts (``prompt=none``; OpenID Connect Core, 3.1.2.1): an issuer that accepts the request redirects
        back with an error. Raise `ProviderError` if it rejects the request.
        """
        request = LoginRequest("GET", "/auth", callback_url=redirect_uri)
        away = await self.redirect({**parameters, "prompt": "none"}, request, metadata)
        if self.pushes(metadata):
            # The issuer checked it as at the authorization endpoint (RFC 9126, 2.1), or `redirect` would have raised.
            return True
        status, headers, content = await self._outbound.visit(away.url)
        location = headers.get("location", "") if status in (302, 303, 307) else ""
        is_ours = location.partition("?")[0].partition("#")[0] == redirect_uri
        answer = dict(parse_qsl(urlsplit(location).query)) if location else _json_object(content)
        error, description = answer.get("error", ""), answer.get("error_description", "")
        rejected = bool(error) if not is_ours else error in _REJECTING
        if rejected or status in (400, 422) or (status in (401, 403) and b"redirect" in content.lower()):
            reported = reported_error(error, description)
            cause = with_reported(f"it rejected an authorization request with status {status}", reported)
            hint = "check clientID and scopes" if is_ours else registration_hint(redirect_uri)
            raise self._outbound.failure(away.url, cause, hint, reported=reported)
        return is_ours or f'action="{redirect_uri}"' in html.unescape(content.decode("utf-8", "replace"))

    def pushes(self, metadata: IssuerMetadata) -> bool:
        if self._pushed == NEVER:
            if metadata.requires_pushed_requests:
                why, hint = "it takes pushed requests only", "leave out pushedAuthorization"
                raise self._outbound.failure(metadata.authorization_endpoint, why, hint)
            return False
        if metadata.pushed_request_endpoint:
            return True
        if self._pushed == ALWAYS or metadata.requires_pushed_requests:
            needed_by = "pushedAuthorization: always" if self._pushed == ALWAYS else "what it announces"
            why = f"it has no endpoint for pushed requests, which {needed_by} calls for"
            raise self._outbound.failure(metadata.authorization_endpoint, why)
        return False

    async def _push(self, prepared: PreparedRequest, metadata: IssuerMetadata) -> str:
        """Push the request and return its ``request_uri``. No user has signed in yet, so any rejection is an outage."""
        url, form = metadata.pushed_request_endpoint, dict(prepared.parameters)
        headers = self._client.authenticate(form, metadata)
        answer = await self._outbound.ask("POST", url, headers=headers, form=form)
        # RFC 9126 requires 201; some issuers return 200.
        if answer.status not in (200, 201):
            reported = self._client.reported(answer, form)
            cause = with_reported(f"it answered a pushed request with status {answer.status}", reported)
            hint = client_hint(answer) or registration_hint(form["redirect_uri"])
            raise self._outbound.failure(url, cause, hint, reported=reported)
        if not _is_usable(answer):
            raise self._outbound.failure(url, "it answered a pushed request without a usable request_uri")
        return answer.text("request_uri")


def _json_object(content: bytes) -> dict[str, str]:
    """Return the string members of a JSON object; empty if *content* is not one."""
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return {str(name): each for name, each in value.items() if isinstance(each, str)} if isinstance(value, dict) else {}


def registration_hint(redirect_uri: str) -> str:
    return f"register the redirect URI {redirect_uri} for this client at the issuer"


def _is_usable(answer: HttpAnswer) -> bool:
    uri = answer.text("request_uri")
    seconds = answer.body.get("expires_in") if isinstance(answer.body, dict) else None
    has_time = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0
    # An absolute URI. It is only passed on, never fetched.
    return has_time and len(uri) <= MAX_REQUEST_URI and ":" in uri and uri.isascii() and uri.isprintable()


def _with_query(page: str, parameters: Mapping[str, str]) -> str:
    endpoint = urlsplit(page)
    # The authorization endpoints of some issuers have query parameters of their own.
    query = {**dict(parse_qsl(endpoint.query, keep_blank_values=True)), **parameters}
    return urlunsplit(endpoint._replace(query=urlencode(query)))


# The authentication context of a sign-in, from the ID token: ``acr``, ``amr``, ``auth_time``.

MAX_TEXT = 256
MAX_METHODS = 32
NOTHING_KNOWN = AuthenticationContext()


def sign_in_context(id_token: Claims, before: AuthenticationContext = NOTHING_KNOWN) -> AuthenticationContext:
    """Return the authentication context of *id_token*. What it omits comes from *before*, if the sign-in is the same.

    At a refresh the issuer may omit claims that it sent at the sign-in (OpenID Connect Core, 12.2); claims that it
    sends replace the stored ones. Another ``auth_time`` means another sign-in, so nothing of *before* applies. An
    ``auth_time`` well after the token's ``iat`` is ignored.
    """
    auth_time = _auth_time(id_token)
    if auth_time not in (None, before.auth_time):
        before = NOTHING_KNOWN
    return AuthenticationContext(
        acr=_text(id_token.get("acr")) or before.acr,
        amr=_texts(id_token.get("amr")) or before.amr,
        auth_time=auth_time or before.auth_time,
    )


def required_parameters(required: RequiredAuthentication | None) -> dict[str, str]:
    """Return the parameters that request a sign-in satisfying *required* (OpenID Connect Core, 3.1.2.1).

    There is no parameter for methods (``amr``). If only methods are required, the user must sign in again: an issuer
    with an existing session would otherwise repeat the methods of an earlier sign-in, which were not enough.
    """
    if required is None:
        return {}
    parameters = {"acr_values": " ".join(required.acr_values)} if required.acr_values else {}
    if required.max_age is not None:
        parameters["max_age"] = str(int(required.max_age.total_seconds()))
    if required.amr_values and not required.acr_values:
        parameters["prompt"] = "login"
    return parameters


def _text(value: object) -> str:
    """Return *value* if it is text that fits into a header, else an empty string."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable() or value != value.strip():
        return ""
    return value


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = tuple(text for item in values if (text := _text(item)))
    # A list that is only partly readable does not describe the sign-in.
    return texts if len(texts) == len(values) <= MAX_METHODS else ()


def _auth_time(id_token: Claims) -> datetime | None:
    try:
        seconds, issued = time_of(id_token, "auth_time"), time_of(id_token, "iat")
    except TokenRefused:
        return None
    if not seconds or issued is None or seconds > issued + MAX_AHEAD.total_seconds():
        return None
    # The clocks of two servers of one issuer may differ by seconds.
    return datetime.fromtimestamp(min(seconds, issued), UTC)
