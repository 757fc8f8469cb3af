"""Login sources over HTTPS: the credential server of a cluster, and OAuth token exchange. Bounded in time and size."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import quote, urlencode, urlsplit

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.http import NO_REPLY, OutgoingHttp, reason_of
from ostiary.core.redaction import redact
from ostiary.core.text import fits_token_header, printable
from ostiary.errors import ConfigurationError, CredentialError
from ostiary.model import Secret
from ostiary.registry.kubelet.source_response import json_object, no_credential
from ostiary.registry.kubelet.sources import CredentialServer, TokenExchange
from ostiary.wire.credential_provider import CREDENTIALS_PATH, BasicAuth, Request, ResponseRefused, decode_response

REPLY_SECONDS = 20.0
LARGEST_REPLY = 1 << 20
LARGEST_SECRET_FILE = 1 << 16


class NoReply(Exception):
    """There is no response; the message is the reason, as the end of a sentence."""


def post(url: str, body: bytes, headers: Mapping[str, str], context: ssl.SSLContext) -> tuple[int, bytes]:
    """Send a POST and return status and body of the response; raises `NoReply`.

    The scheme of *url* was validated with the configuration.
    """
    http = OutgoingHttp(context=context, seconds=REPLY_SECONDS, largest=LARGEST_REPLY)
    try:
        reply = http.send("POST", url, body, headers=headers)
    except NO_REPLY as error:
        why = _why(error)
    else:
        if reply.is_whole:
            return reply.status, reply.body
        why = f"answered with more than {LARGEST_REPLY} bytes"
    # Raised outside of the handler: the exception's traceback holds the request, and so the token.
    raise NoReply(why)


def client_context(authority: str, *, of: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return a context that trusts the CA file *authority*, or the system's CAs, and presents *certificate*, if any.

    *of* names the owner of the files in errors.
    """
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError:
        raise _unreadable(f"the certificate authority of {of} cannot be loaded", authority) from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, password="")
        except OSError:
            raise _unreadable(f"the client certificate for {of} cannot be loaded", certificate) from None
    return context


def secret_in_file(path: str, *, what: str) -> str:
    """Read the text of a file that holds a secret; raises `ConfigurationError`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST_SECRET_FILE).strip()
    except (OSError, ValueError):
        raise ConfigurationError(f"{what} cannot be read", where=printable(path), code="config-unreadable") from None


def _unreadable(summary: str, path: str) -> ConfigurationError:
    hint = "it is a file of PEM certificates"
    return ConfigurationError(summary, where=printable(path), hint=hint, code="config-unreadable")


def _why(error: Exception) -> str:
    reason = reason_of(error)
    if isinstance(reason, TimeoutError):
        return "did not answer in time"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {redact(reason.verify_message)}"
    text = getattr(reason, "strerror", None) or type(reason).__name__
    return f"cannot be reached: {redact(str(text))}"


# The credential server of a cluster: ``ostiary registry serve --listen``, through a gateway. The node presents a
# gateway token or a client certificate, and the gateway's policy decides whether it may have the credentials of the
# image.

# The meaning of a status for the operator of the node.
MEANINGS = {
    401: ("does not know this node's token", "renew the token: ostiary get-token --watch keeps one fresh in a file"),
    403: ("does not let this node have the credentials of this image", "its policy says who may create which paths"),
    503: ("could not ask its credential providers", "its log says why"),
}


def ask_server(server: CredentialServer, request: Request) -> tuple[BasicAuth, timedelta | None] | None:
    """Return the server's login for the image, if there is one; raises `CredentialError`."""
    headers = {"Accept": "application/json"}
    if server.token_file:
        token = secret_in_file(server.token_file, what="the token for the credential server")
        if not fits_token_header(token):
            raise _failure(server, request.image, "cannot be asked: the token file holds no token")
        headers["Authorization"] = f"Bearer {token}"
    context = client_context(
        server.certificate_authority,
        of="the credential server",
        certificate=server.client_certificate,
        key=server.client_key,
    )
    try:
        status, body = post(server.url.rstrip("/") + CREDENTIALS_PATH + request.image, b"", headers, context)
    except NoReply as error:
        raise _failure(server, request.image, str(error)) from None
    if status != 200:
        why, hint = MEANINGS.get(status, (f"answered with status {status}", "its log says why"))
        raise _failure(server, request.image, why, hint)
    try:
        response = decode_response(body, Request(request.image), now=SYSTEM_CLOCK.now())
    except ResponseRefused as refused:
        raise _failure(server, request.image, f"gave an answer that cannot be used: {refused.cause}") from None
    # The response is for the requested image; ignore anything else in it.
    basic = response.auth.get(request.image)
    return None if basic is None else (basic, response.cache_duration)


def _failure(server: CredentialServer, image: str, why: str, hint: str | None = None) -> CredentialError:
    return CredentialError(
        no_credential(image),
        cause=f"the credential server at {printable(urlsplit(server.url).netloc.rpartition('@')[2])} {why}",
        hint=hint,
        code="credential-server-failed",
    )


# Token exchange (RFC 8693): a pod's service account token for one that a registry accepts as a password. The token is
# sent only to the configured address, and is in no error.

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
# RFC 6749, section 5.2, and RFC 8693, section 2.2.2. Nothing else of an error response is quoted.
EXCHANGE_ERRORS = (
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
    "invalid_target",
)
# Remaining lifetime of a token when the kubelet requests the next one.
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
    # RFC 6749, section 2.3.1: both parts are form-encoded before they are joined.
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
