"""The request with which a browser is sent to the issuer: in the address, or pushed there beforehand (RFC 9126).

    parameters -> Redirect with all of them                           the browser carries the request
    parameters -> POST to the issuer -> Redirect with a request_uri   the browser carries a reference to it

Called by `oidc.identity`. A pushed request cannot be read or changed in the browser, and the issuer knows that it is
the client's. It is made anew for each sign-in, and its answer has to bring back the state of this sign-in, as always.
Where pushing fails the sign-in fails: falling back would let whoever disturbs the one way choose the other.
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
# With which an issuer that knows the redirect URI says that a sign-in cannot work either. Other errors mean that it
# needs the person, or does not know ``prompt=none``.
_REJECTING = frozenset(("unauthorized_client", "invalid_scope", "unsupported_response_type"))
MAX_REQUEST_URI = 2048


class AuthorizationRequests:
    """Requests of *client*; *response_mode* and *pushed* are settings of the same names."""

    def __init__(self, client: Client, outbound: Outbound, *, response_mode: str, pushed: str) -> None:
        self._client = client
        self._outbound = outbound
        self._response_mode = response_mode
        self._pushed = pushed

    async def redirect(
        self, parameters: Mapping[str, str], request: LoginRequest, metadata: IssuerMetadata
    ) -> Redirect:
        """The way to the issuer's page, with *parameters* beside those that every such request has."""
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
        """Whether the issuer accepts *redirect_uri*; False if it shows its login page before it looks at it.

        No person is asked (``prompt=none``; OpenID Connect Core, 3.1.2.1): an issuer that accepts the request sends the
        browser back with an error that says so. Raises `ProviderError` if it rejects the request.
        """
        request = LoginRequest("GET", "/auth", callback_url=redirect_uri)
        away = await self.redirect({**parameters, "prompt": "none"}, request, metadata)
        if self.pushes(metadata):
            # It was checked as at the authorization endpoint (RFC 9126, 2.1), or `redirect` had raised.
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
        """The issuer's name for the request. Nobody has signed in yet, so whatever it refuses is an outage."""
        url, form = metadata.pushed_request_endpoint, dict(prepared.parameters)
        headers = self._client.authenticate(form, metadata)
        answer = await self._outbound.ask("POST", url, headers=headers, form=form)
        # RFC 9126 says 201; some issuers say 200.
        if answer.status not in (200, 201):
            reported = self._client.reported(answer, form)
            cause = with_reported(f"it answered a pushed request with status {answer.status}", reported)
            hint = client_hint(answer) or registration_hint(form["redirect_uri"])
            raise self._outbound.failure(url, cause, hint, reported=reported)
        if not _is_usable(answer):
            raise self._outbound.failure(url, "it answered a pushed request without a usable request_uri")
        return answer.text("request_uri")


def _json_object(content: bytes) -> dict[str, str]:
    """The texts of a JSON object; nothing if *content* is none."""
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
    # An absolute URI, which we only pass on: it is not fetched.
    return has_time and len(uri) <= MAX_REQUEST_URI and ":" in uri and uri.isascii() and uri.isprintable()


def _with_query(page: str, parameters: Mapping[str, str]) -> str:
    endpoint = urlsplit(page)
    # Some issuers have parameters of their own in the address of the page.
    query = {**dict(parse_qsl(endpoint.query, keep_blank_values=True)), **parameters}
    return urlunsplit(endpoint._replace(query=urlencode(query)))


# How a person signed in, as an ID token says it: ``acr``, ``amr``, ``auth_time``. Pure; called by `oidc.identity`.
#
# At a renewal the person was not there, so what is known stays, unless the issuer itself says something else. An issuer
# may leave out at a refresh what it said at the sign-in (OpenID Connect Core, 12.2); what it does say takes the place
# of the old. If it names another time, the person has signed in there again: then nothing of the earlier sign-in
# counts. A time that is well after the issuance of the token which says so is not believed.

MAX_TEXT = 256
MAX_METHODS = 32
NOTHING_KNOWN = AuthenticationContext()


def sign_in_context(id_token: Claims, before: AuthenticationContext = NOTHING_KNOWN) -> AuthenticationContext:
    """What *id_token* says, and for what it does not say *before*, if it is about the same sign-in."""
    auth_time = _auth_time(id_token)
    if auth_time not in (None, before.auth_time):
        before = NOTHING_KNOWN
    return AuthenticationContext(
        acr=_text(id_token.get("acr")) or before.acr,
        amr=_texts(id_token.get("amr")) or before.amr,
        auth_time=auth_time or before.auth_time,
    )


def required_parameters(required: RequiredAuthentication | None) -> dict[str, str]:
    """How the issuer is asked for a sign-in as *required* says (OpenID Connect Core, 3.1.2.1).

    It cannot be asked for methods (``amr``). Where only these are required the person signs in anew: an issuer that
    remembers them would otherwise repeat the methods of an earlier sign-in, which were not enough.
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
    """*value*, if it is a text that a header can carry."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable() or value != value.strip():
        return ""
    return value


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = tuple(text for item in values if (text := _text(item)))
    # A list of which a part cannot be read does not say how somebody signed in.
    return texts if len(texts) == len(values) <= MAX_METHODS else ()


def _auth_time(id_token: Claims) -> datetime | None:
    try:
        seconds, issued = time_of(id_token, "auth_time"), time_of(id_token, "iat")
    except TokenRefused:
        return None
    if not seconds or issued is None or seconds > issued + MAX_AHEAD.total_seconds():
        return None
    # Two machines of one issuer may differ by seconds.
    return datetime.fromtimestamp(min(seconds, issued), UTC)
