"""The credential of a user with an ``auth-provider``, kubectl's mechanism before exec plugins.

``oidc`` sends the id-token and refreshes it when it has expired; new tokens are written into the kubeconfig, as kubectl
does. ``gcp`` and ``azure`` were removed from kubectl: they are an error with a hint to the replacement. Any other name
is an error too, because a configured user must not send anonymous requests.
"""

from __future__ import annotations

import binascii
import json
import logging
import os
import ssl
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, quote_plus, urlencode, urlsplit

from ostiary import kubeconfig as kubeconfigs
from ostiary.client.proxy import proxy_for
from ostiary.core.clock import Clock
from ostiary.core.go_text import decode_base64
from ostiary.core.http import NO_REPLY, HttpReply, OutgoingHttp, reason_of
from ostiary.core.platform.open_flags import CLOSE_ON_EXEC
from ostiary.core.platform.private_files import private_files
from ostiary.core.text import printable
from ostiary.core.tls import TlsSettings, build_context
from ostiary.core.yaml import CLIENTCMD, parse
from ostiary.core.yaml.edit import EditRefused, set_value
from ostiary.errors import AnswerInvalid, ConfigurationError, CredentialError, OstiaryError
from ostiary.kubeconfig import AuthProvider, User
from ostiary.model import ClientCertificate, Credential, Secret

# OIDC tokens: expiry and refresh, by the rules of client-go's oidc plugin and golang.org/x/oauth2.

# A token that expires within this time is no longer used, because clocks differ.
EXPIRY_MARGIN = timedelta(seconds=10)
SECONDS = 30.0
MAX_BYTES = 1 << 20
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class TokenError(Exception):
    """No token could be obtained. The message contains no part of a token, and of the response only its error code."""


@dataclass(frozen=True, slots=True)
class OidcClientSettings:
    """The issuer, and the client registration used to refresh tokens."""

    url: str
    client_id: str
    client_secret: Secret | None = None
    authorities_pem: str | None = None


@dataclass(frozen=True, slots=True)
class OidcTokens:
    id_token: Secret | None = None
    refresh_token: Secret | None = None


def usable_until(id_token: str) -> datetime:
    """Return the time until which an id-token is used.

    A token without ``exp`` counts as expired. Raises `TokenError` if it is not a JWT.
    """
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


# --- calls to the issuer ---


def refresh(
    issuer: OidcClientSettings, refresh_token: Secret, *, environ: Mapping[str, str] = os.environ
) -> OidcTokens:
    """Exchange *refresh_token* for new tokens. Raises `TokenError`."""
    context = build_context(TlsSettings(issuer.authorities_pem))
    endpoint = _token_endpoint(issuer, context, environ)
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token.reveal()}
    secret = issuer.client_secret.reveal() if issuer.client_secret else ""
    # Like golang.org/x/oauth2: authenticate the client in the header, and if that fails, in the form.
    pair = f"{quote_plus(issuer.client_id)}:{quote_plus(secret)}"
    basic = {"Authorization": "Basic " + b64encode(pair.encode()).decode("ascii")}
    in_form = {"client_id": issuer.client_id, **({"client_secret": secret} if secret else {})}
    try:
        answer = _ask(endpoint, context, environ, form=form, headers=basic)
    except _Refused:
        answer = _ask(endpoint, context, environ, form={**form, **in_form})
    return _tokens(answer)


class _Refused(TokenError):
    """The issuer responded with a status other than 200."""


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
        # Only the error code: a description may quote the request.
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
            # The metadata is public, so redirects are fine. Refresh token and client secret go to the token endpoint
            # only.
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


# Writing new tokens into the kubeconfig that they came from, under kubectl's lock.

ID_TOKEN, REFRESH_TOKEN = "id-token", "refresh-token"


def write_tokens(path: str, user_name: str, tokens: OidcTokens) -> None:
    """Write *tokens* into the kubeconfig at *path*, under kubectl's lock. Every other byte is preserved."""
    with _lock(path):
        text = _read_text(path)
        config = cast("dict[str, Any]", parse(text, file=path, dialect=CLIENTCMD).value)
        users = config.get("users") if isinstance(config, dict) else None
        position = next((at for at, user in enumerate(users or ()) if user.get("name") == user_name), None)
        if position is None:
            raise EditRefused("the user is no longer in it")
        for name, token in ((ID_TOKEN, tokens.id_token), (REFRESH_TOKEN, tokens.refresh_token)):
            if token is not None:
                text = set_value(text, ("users", position, "user", "auth-provider", "config", name), token.reveal())
        _replace(path, text)


def _read_text(path: str) -> str:
    # newline="" preserves line endings.
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        pass
    # Raised outside of the handler, because the UnicodeDecodeError contains the whole text.
    raise EditRefused("it is not UTF-8 text")


@contextmanager
def _lock(path: str) -> Iterator[None]:
    lock = f"{path}.lock"
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600))
    try:
        yield
    finally:
        os.unlink(lock)


def _replace(path: str, text: str) -> None:
    # Replace the target of a symbolic link, not the link.
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        raise EditRefused("it is a device or a pipe, and not a file")
    temporary = f"{real}.ostiary-{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, os.stat(real).st_mode & 0o777)
        private_files().replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise


log = logging.getLogger("ostiary.client")

ISSUER, CLIENT_ID, CLIENT_SECRET = "idp-issuer-url", "client-id", "client-secret"
AUTHORITY, AUTHORITY_DATA = "idp-certificate-authority", "idp-certificate-authority-data"
_SETTINGS = frozenset({ISSUER, CLIENT_ID, CLIENT_SECRET, AUTHORITY, AUTHORITY_DATA, ID_TOKEN, REFRESH_TOKEN})

_REMOVED = {
    "gcp": "use the exec plugin gke-gcloud-auth-plugin: install it, then run "
    "gcloud container clusters get-credentials CLUSTER, which writes it into the kubeconfig",
    "azure": "use the exec plugin kubelogin (https://github.com/Azure/kubelogin): install it, then run "
    "kubelogin convert-kubeconfig, which writes it into the kubeconfig",
}


def oidc_issuer(user: User, provider: AuthProvider) -> OidcClientSettings:
    """Return the issuer of an ``oidc`` provider.

    Raises `ConfigurationError` for an incomplete or any other provider.
    """
    if provider.name in _REMOVED:
        raise _unusable(
            user, provider, f"kubectl no longer has the auth-provider {provider.name!r}", _REMOVED[provider.name]
        )
    if provider.name != "oidc":
        raise _unusable(
            user,
            provider,
            f"unknown auth-provider {provider.name!r}",
            "oidc is the only supported one; otherwise use exec",
        )
    for name in (ISSUER, CLIENT_ID):
        if not provider.get(name):
            raise _unusable(user, provider, f"the oidc auth-provider has no {name}", f"add {name} to its config")
    return OidcClientSettings(
        provider.get(ISSUER),
        provider.get(CLIENT_ID),
        Secret(provider.get(CLIENT_SECRET)) if provider.get(CLIENT_SECRET) else None,
        _authorities(user, provider),
    )


def _authorities(user: User, provider: AuthProvider) -> str | None:
    if text := provider.get(AUTHORITY_DATA):
        data = decode_base64(text)
        if data is None:
            raise _unusable(user, provider, f"{AUTHORITY_DATA} is not base64")
        return data.decode("utf-8", "replace")
    try:
        path = provider.get(AUTHORITY)
        return Path(path).read_text("utf-8", "replace") if path else None
    except (OSError, ValueError) as error:
        cause = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not a usable file name"
        raise _unusable(user, provider, f"{AUTHORITY} cannot be read: {cause}") from None


def _warn_of_unused(user: User, provider: AuthProvider) -> None:
    """Warn about settings that take no effect, as in kubectl. One is extra-scopes: a refresh sends no scopes."""
    unused = [name for name, _ in provider.config if name not in _SETTINGS]
    if provider.get(AUTHORITY) and provider.get(AUTHORITY_DATA):
        unused.append(AUTHORITY)
    for name in unused:
        log.warning("user %r: %s of the auth-provider takes no effect", user.name, printable(name))


def _unusable(user: User, provider: AuthProvider, cause: str, hint: str | None = None) -> ConfigurationError:
    summary = f"user {user.name!r} cannot sign in"
    return ConfigurationError(summary, cause=cause, where=provider.place, hint=hint, code="auth-provider-unusable")


class OidcProvider:
    """Obtain the credential of a user with an ``oidc`` auth-provider. The authenticator decides when it runs."""

    def __init__(
        self, user: User, provider: AuthProvider, *, clock: Clock, certificate: ClientCertificate | None = None
    ) -> None:
        self._user, self._provider, self._clock, self._certificate = user, provider, clock, certificate
        self._issuer = oidc_issuer(user, provider)
        self._tokens = self._stored = _tokens_of(provider)
        _warn_of_unused(user, provider)

    def is_interactive(self) -> bool:
        return False

    def run(self, rejection: object = None) -> Credential:
        """Return the id-token of the kubeconfig, or a new one if that has expired."""
        self._read_again()
        try:
            credential = self._credential()
            if credential.expires_at is not None and self._clock.now() < credential.expires_at:
                return credential
            self._refresh()
            return self._credential()
        except TokenError as error:
            raise self._unavailable(str(error)) from None

    def expired_error(self, cause: str) -> CredentialError:
        return AnswerInvalid(
            f"no credential for user {self._user.name!r}",
            cause=f"the issuer {cause}",
            where=self._provider.place,
            hint="compare this machine's clock with the issuer's",
            code="oidc-token-unavailable",
        )

    def _credential(self) -> Credential:
        id_token = self._tokens.id_token
        if id_token is None:
            return Credential(certificate=self._certificate)
        return Credential(id_token, self._certificate, usable_until(id_token.reveal()))

    def _refresh(self) -> None:
        old = self._tokens.refresh_token
        if old is None:
            raise TokenError("the id-token has expired, and there is no refresh-token to get a new one")
        newer = refresh(self._issuer, old)
        self._tokens = OidcTokens(newer.id_token, newer.refresh_token or old)
        self._write()

    def _unavailable(self, cause: str) -> CredentialError:
        return CredentialError(
            f"no credential for user {self._user.name!r}",
            cause=cause,
            where=self._provider.place,
            hint="sign in again with the program that wrote the tokens into this kubeconfig",
            code="oidc-token-unavailable",
        )

    # --- tokens in the kubeconfig ---

    def _read_again(self) -> None:
        """Read the tokens again: another process may have refreshed them, and many refresh tokens are single-use."""
        if self._user.place.file is None:
            return
        try:
            user = kubeconfigs.load(self._user.place.file).users.get(self._user.name)
        except OstiaryError:
            # The file may be in the middle of being replaced. The cached tokens still serve.
            log.warning("the kubeconfig %s cannot be read again for its tokens", self._user.place.file)
            return
        stored = _tokens_of(user.auth_provider) if user is not None and user.auth_provider is not None else self._stored
        if stored != self._stored:
            self._tokens = self._stored = stored

    def _write(self) -> None:
        path = self._user.place.file
        if path is None:
            return
        try:
            write_tokens(path, self._user.name, self._tokens)
            self._stored = self._tokens
        except (OSError, EditRefused, OstiaryError) as error:
            # This process can still use the tokens. An error would lose them, and the old refresh token may be used up.
            cause = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error).partition("\n")[0]
            log.warning("the new tokens of user %r cannot be written into %s: %s", self._user.name, path, cause)


def _tokens_of(provider: AuthProvider) -> OidcTokens:
    id_token, refresh_token = provider.get(ID_TOKEN), provider.get(REFRESH_TOKEN)
    return OidcTokens(Secret(id_token) if id_token else None, Secret(refresh_token) if refresh_token else None)
