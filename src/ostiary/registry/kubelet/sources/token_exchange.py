"""RFC 8693: a pod's service account token, exchanged for one that a registry takes as a password.

Called by `respond`. The token goes to the configured address and nowhere else, and is in no error.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from urllib.parse import quote, urlencode, urlsplit

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, CredentialError
from ostiary.model import Secret
from ostiary.registry.kubelet.sources.config import TokenExchange
from ostiary.registry.kubelet.sources.login_answer import json_object, no_credential
from ostiary.registry.kubelet.sources.sending import NoReply, client_context, post, secret_in_file
from ostiary.wire.credential_provider import BasicAuth, Request

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
# RFC 6749, section 5.2, and RFC 8693, section 2.2.2. Nothing else of a refusal is quoted.
EXCHANGE_ERRORS = (
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
    "invalid_target",
)
# How much of a token's life is left when the kubelet asks again.
MARGIN = timedelta(seconds=30)


def exchange_token(exchange: TokenExchange, request: Request) -> tuple[BasicAuth, timedelta | None]:
    """Exchange the service account token of *request*; raises `CredentialError`."""
    subject = request.service_account_token
    if not subject:
        raise ConfigurationError(
            no_credential(request.image),
            cause="the request has no service account token, and a tokenExchange needs one",
            hint="add tokenAttributes to this provider in the kubelet's CredentialProviderConfig",
            code="credential-provider-request-invalid",
        )
    fields = {"grant_type": GRANT_TYPE, "subject_token": subject.reveal(), "subject_token_type": JWT, **exchange.form}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if exchange.client_id and not exchange.client_secret_file:
        fields["client_id"] = exchange.client_id
    elif exchange.client_id:
        headers["Authorization"] = _client_header(exchange)
    try:
        context = client_context(exchange.certificate_authority, of="the token exchange")
        status, body = post(exchange.url, urlencode(fields).encode(), headers, context)
    except NoReply as error:
        raise _exchange_failed(request.image, exchange, str(error)) from None
    reply = json_object(body)
    token = reply.get("access_token")
    if status != 200 or not isinstance(token, str) or not token:
        refusal = reply.get("error")
        quoted_error = f": {refusal}" if refusal in EXCHANGE_ERRORS else ""
        why = f"answered with status {status}{quoted_error}" if status != 200 else "answered without an access_token"
        raise _exchange_failed(request.image, exchange, why)
    return BasicAuth(exchange.username, Secret(token)), _lifetime(reply.get("expires_in"))


def _client_header(exchange: TokenExchange) -> str:
    secret = secret_in_file(exchange.client_secret_file, what="the client secret")
    # RFC 6749, section 2.3.1: both halves are encoded as in a form, before they are joined.
    pair = f"{quote(exchange.client_id, safe='')}:{quote(secret, safe='')}"
    return "Basic " + b64encode(pair.encode()).decode()


def _lifetime(value: object) -> timedelta | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
        return None
    return max(timedelta(0), timedelta(seconds=value) - MARGIN)


def _exchange_failed(image: str, exchange: TokenExchange, why: str) -> CredentialError:
    return CredentialError(
        no_credential(image),
        cause=f"the token exchange at {printable(urlsplit(exchange.url).netloc.rpartition('@')[2])} {why}",
        hint="see that the audience of tokenAttributes is one that this server takes",
        code="token-exchange-failed",
    )
