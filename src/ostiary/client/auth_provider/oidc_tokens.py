"""The tokens of the ``oidc`` auth-provider: is the id-token still good, and asking the issuer for a new one.

Pure but for `refresh`, which asks the issuer. Called by `provider`; knows nothing of kubeconfig files. The rules
are those of client-go's oidc plugin and of golang.org/x/oauth2.
"""

from __future__ import annotations

import binascii
import json
import os
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote_plus, urlencode, urlsplit

from ostiary.client.proxy import proxy_for
from ostiary.core.net.outgoing import NO_REPLY, HttpReply, OutgoingHttp, reason_of
from ostiary.core.text import printable
from ostiary.core.tls import TlsSettings, build_context
from ostiary.model import Secret

# A token is used no longer when it expires within this time: clocks differ.
EXPIRY_MARGIN = timedelta(seconds=10)
SECONDS = 30.0
MAX_BYTES = 1 << 20
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class TokenError(Exception):
    """There is no token. The message never holds a part of one, nor what the issuer answered beyond its error code."""


@dataclass(frozen=True, slots=True)
class OidcClientSettings:
    """The issuer of new tokens, and the client as which we ask it."""

    url: str
    client_id: str
    client_secret: Secret | None = None
    authorities_pem: str | None = None


@dataclass(frozen=True, slots=True)
class OidcTokens:
    id_token: Secret | None = None
    refresh_token: Secret | None = None


def usable_until(id_token: str) -> datetime:
    """Until when an id-token is used. One without ``exp`` has expired. Raises `TokenError` if it is no JWT."""
    parts = id_token.split(".")
    if len(parts) != 3:
        raise TokenError("the id-token is not a JWT: it does not have three parts")
    try:
        claims = json.loads(_decode_base64url(parts[1]))
        expiry = claims.get("exp") if isinstance(claims, dict) else None
        seconds = 0 if expiry is None else int(float(expiry))
    except (ValueError, TypeError, OverflowError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        raise TokenError("the id-token is not a JWT: its claims cannot be read")
    try:
        return datetime.fromtimestamp(seconds, UTC) - EXPIRY_MARGIN
    except (OverflowError, ValueError, OSError):
        return _LAST if seconds > 0 else _FIRST


def _decode_base64url(text: str) -> bytes:
    if "=" in text:
        raise binascii.Error("padded")
    return b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


# --- asking the issuer ---


def refresh(
    issuer: OidcClientSettings, refresh_token: Secret, *, environ: Mapping[str, str] = os.environ
) -> OidcTokens:
    """New tokens for *refresh_token*; raises `TokenError`."""
    context = build_context(TlsSettings(issuer.authorities_pem))
    endpoint = _token_endpoint(issuer, context, environ)
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token.reveal()}
    secret = issuer.client_secret.reveal() if issuer.client_secret else ""
    # As golang.org/x/oauth2: the client proves itself in the header, and if that is refused, in the form.
    pair = f"{quote_plus(issuer.client_id)}:{quote_plus(secret)}"
    basic = {"Authorization": "Basic " + b64encode(pair.encode()).decode("ascii")}
    in_form = {"client_id": issuer.client_id, **({"client_secret": secret} if secret else {})}
    try:
        answer = _ask(endpoint, context, environ, form=form, headers=basic)
    except _Refused:
        answer = _ask(endpoint, context, environ, form={**form, **in_form})
    return _tokens(answer)


class _Refused(TokenError):
    """The issuer answered, and not with 200."""


def _token_endpoint(issuer: OidcClientSettings, context: ssl.SSLContext, environ: Mapping[str, str]) -> str:
    metadata = _ask(issuer.url.removesuffix("/") + "/.well-known/openid-configuration", context, environ)
    endpoint = metadata.get("token_endpoint")
    if not isinstance(endpoint, str) or not endpoint:
        raise TokenError("the issuer's metadata has no token_endpoint")
    if issuer.url.startswith("https://") and not endpoint.startswith("https://"):
        raise TokenError("the issuer's token_endpoint is not https, and a refresh token goes nowhere else")
    return endpoint


def _tokens(answer: Mapping[str, object]) -> OidcTokens:
    if not answer.get("access_token"):
        raise TokenError("the issuer's answer has no access_token")
    id_token, newer = answer.get("id_token"), answer.get("refresh_token")
    if not isinstance(id_token, str) or not id_token:
        raise TokenError(
            "the issuer's answer has no id_token: the scope openid was not asked for at login, "
            "or the issuer gives none at a refresh"
        )
    return OidcTokens(Secret(id_token), Secret(newer) if isinstance(newer, str) and newer else None)


def _ask(
    url: str,
    context: ssl.SSLContext,
    environ: Mapping[str, str],
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Mapping[str, object]:
    reply = _send(url, context, environ, form=form, headers=headers)
    kind = (reply.headers["Content-Type"] or "").partition(";")[0].strip().lower()
    answer = _decode(kind if form is not None else "", reply.body)
    if reply.status != 200:
        # The code of the error alone: a description may quote what was sent.
        code = answer.get("error")
        code_text = f" ({printable(code)[:80]})" if isinstance(code, str) else ""
        raise _Refused(f"the issuer answered with status {reply.status}{code_text}")
    return answer


def _send(
    url: str,
    context: ssl.SSLContext,
    environ: Mapping[str, str],
    *,
    form: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
) -> HttpReply:
    try:
        server = urlsplit(url)
        if server.scheme not in ("https", "http") or not server.hostname:
            raise TokenError("the issuer's address is not an https:// URL")
        proxy = proxy_for(server, configured=None, environ=environ)
        http = OutgoingHttp(
            context=context,
            seconds=SECONDS,
            largest=MAX_BYTES,
            proxies={server.scheme: proxy} if proxy else {},
            # The metadata is public. A refresh token and a client secret go to the token endpoint and no further.
            follow_redirects=form is None,
        )
        if form is None:
            return http.send("GET", url, headers=headers)
        return http.send("POST", url, urlencode(form).encode("ascii"), headers=headers)
    except NO_REPLY as error:
        cause = reason_of(error)
        failure = type(cause).__name__ if isinstance(cause, ValueError) else printable(str(cause))
    raise TokenError(f"the issuer cannot be reached: {failure}")


def _decode(kind: str, body: bytes) -> Mapping[str, object]:
    try:
        if kind in ("application/x-www-form-urlencoded", "text/plain"):
            return {name: values[0] for name, values in parse_qs(body.decode()).items()}
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
