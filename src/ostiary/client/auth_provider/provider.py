"""Obtains the credential of a user with an ``auth-provider``: what kubectl had before exec plugins, and still obeys.

``oidc`` sends the id-token, and asks the issuer for a new one when it has expired; new tokens are written into the
kubeconfig, as kubectl does. ``gcp`` and ``azure`` were removed from kubectl and are refused with where to go. Any other
name is refused too: a user who is configured must not go out anonymously.

Called by `client.credentials`. The authenticator decides when `OidcProvider` runs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ostiary.client import kubeconfig as kubeconfigs
from ostiary.client.auth_provider.oidc_tokens import OidcClientSettings, OidcTokens, TokenError, refresh, usable_until
from ostiary.client.auth_provider.stored_tokens import ID_TOKEN, REFRESH_TOKEN, write_tokens
from ostiary.client.kubeconfig import AuthProvider, User
from ostiary.core.clock import Clock
from ostiary.core.config.edit import EditRefused
from ostiary.core.go.text import decode_base64
from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid, ConfigurationError, CredentialError, OstiaryError
from ostiary.model import ClientCertificate, Credential, Secret

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
    """The issuer of an ``oidc`` provider; raises `ConfigurationError` for any other, and for one that is incomplete."""
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
    """As kubectl, we go on without them: extra-scopes above all, since a refresh asks for no scopes."""
    unused = [name for name, _ in provider.config if name not in _SETTINGS]
    if provider.get(AUTHORITY) and provider.get(AUTHORITY_DATA):
        unused.append(AUTHORITY)
    for name in unused:
        log.warning("user %r: %s of the auth-provider takes no effect", user.name, printable(name))


def _unusable(user: User, provider: AuthProvider, cause: str, hint: str | None = None) -> ConfigurationError:
    summary = f"user {user.name!r} cannot sign in"
    return ConfigurationError(summary, cause=cause, where=provider.place, hint=hint, code="auth-provider-unusable")


class OidcProvider:
    """Obtains the credential of a user with an ``oidc`` auth-provider. The authenticator decides when it runs."""

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
        """The id-token of the kubeconfig, or a new one if that has expired."""
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

    # --- the kubeconfig, where the tokens are kept ---

    def _read_again(self) -> None:
        """Another program may have refreshed them, and a refresh token is often good for one use only."""
        if self._user.place.file is None:
            return
        try:
            user = kubeconfigs.load(self._user.place.file).users.get(self._user.name)
        except OstiaryError:
            # In the middle of being replaced, perhaps. What we have serves as well.
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
            # They serve this program. Failing here would lose them, and the old refresh token may be spent.
            cause = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error).partition("\n")[0]
            log.warning("the new tokens of user %r cannot be written into %s: %s", self._user.name, path, cause)


def _tokens_of(provider: AuthProvider) -> OidcTokens:
    id_token, refresh_token = provider.get(ID_TOKEN), provider.get(REFRESH_TOKEN)
    return OidcTokens(Secret(id_token) if id_token else None, Secret(refresh_token) if refresh_token else None)
