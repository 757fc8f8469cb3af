"""Google Groups: one question per relevant group, whether the user's address is in it, directly or through others.

    groups: [{name: google, type: google, keyFile: service-account.json, subject: admin@example.com}]

A group is named by its address, as in policies: ``platform@example.com``. A user is asked about by name, so the
identity provider must be one whose names are addresses that Google itself vouches for: limit the rest with
`identities`. Where names have a prefix, `userPrefix` says which, and only users who have it are asked about.

With ``consent: true`` there is no service account. The person is sent to Google, allows the reading of groups, and
returns to ``/auth/<name>/groups/provider``. Such a session ends at its first renewal, since nobody is there to ask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.interfaces.group import Membership
from ostiary.interfaces.identity import LoginRequest, Redirect
from ostiary.model import Secret, UserInfo
from ostiary.plugins.common.authorization_code import begin, parse_return
from ostiary.plugins.common.outbound import SECONDS, Outbound, SecretFile, all_of, is_safe
from ostiary.plugins.google.group_api import (
    TOKEN_URI,
    CloudIdentity,
    Directory,
    GoogleApi,
    GoogleServiceAccount,
    MembershipApi,
    TokenRejected,
    domain_of,
    token_of,
)
from ostiary.plugins.google.settings import APIS, BAD_API, BAD_ENDPOINT, EMPTY_LIST, GoogleGroupSettings

AUTHORIZE_URL = "https://accounts.google.com/o/oauth2/v2/auth"
MAX_CHECKS = 500


@dataclass(frozen=True, slots=True)
class Consent:
    """The registered application as which people are asked for their consent."""

    client_id: str
    client_secret_file: str | os.PathLike[str]
    authorize_url: str = AUTHORIZE_URL
    token_url: str = TOKEN_URI


class GoogleGroups:
    """Asks as a service account (*key_file*, *subject*), or with the person's *consent*.

    *domains* are those whose groups are asked about; without it every relevant group that is an address is.
    *endpoint* takes the place of the API's public address. Raises `ConfigurationError` if a setting is wrong.
    """

    def __init__(
        self,
        *,
        key_file: str | os.PathLike[str] | None = None,
        subject: str | None = None,
        consent: Consent | None = None,
        api: str = "cloudIdentity",
        domains: Iterable[str] | None = None,
        user_prefix: str = "",
        endpoint: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbound = Outbound("Google", ca=ca, seconds=seconds)
        self._api = _api(api, self._outbound, _endpoint(endpoint), clock)
        self._domains = _domains(domains)
        self._user_prefix = user_prefix
        self._consent = consent
        self._secret = None if consent is None else SecretFile(consent.client_secret_file, "the secret for Google")
        if (key_file is None) == (consent is None):
            raise _unusable("keyFile", "set either a service account's key or consent: true, not both")
        self._account: GoogleServiceAccount | None = None
        if key_file is not None:
            scope = self._api.scope
            self._account = GoogleServiceAccount(
                key_file, scope=scope, subject=subject, outbound=self._outbound, clock=clock
            )

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(GoogleGroupSettings, fields, context.directory)
        consent = None
        if settings.consent:
            consent = Consent(settings.client_id, settings.client_secret_file or context.directory)
        key_file = settings.key_file
        try:
            provider = cls(
                key_file=key_file or context.directory if consent is None else key_file,
                subject=settings.subject or None,
                consent=consent,
                api=settings.api,
                domains=settings.domains,
                user_prefix=settings.user_prefix,
                endpoint=settings.endpoint,
                ca=settings.ca,
                clock=context.clock,
            )
        except ConfigurationError as error:
            fields.problem(error.cause or error.summary, str(error.where), error.hint)
            # Never asked: with a problem noted, the gateway does not start.
            return cls(key_file="")
        if provider._account is not None and key_file:
            provider._account.file.check(fields, "keyFile")
        if provider._secret is not None:
            provider._secret.check(fields, "clientSecretFile")
        return provider

    async def close(self) -> None:
        await self._outbound.close()

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...] | Redirect:
        member, groups = self._member(user), self._groups(relevant)
        if member is None or not groups:
            return ()
        if self._consent is not None:
            parameters = {
                "client_id": self._consent.client_id,
                "response_type": "code",
                "scope": self._api.scope,
                "login_hint": member,
            }
            return begin(self._consent.authorize_url, parameters, request)
        try:
            return await self._ask(await self._service_token(), groups, member)
        except TokenRejected:
            pass
        # Once more, with a new token: the key may have been used elsewhere to withdraw the old one.
        try:
            return await self._ask(await self._service_token(), groups, member)
        except TokenRejected:
            raise ProviderError("Google is unavailable", cause="it refuses the token it has just given") from None

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if self._consent is None or self._secret is None:
            raise LoginRefused(
                "there is no sign-in to continue: start again", cause="a service account sends nobody elsewhere"
            )
        token = await self._exchange(self._consent, self._secret, request)
        member, groups = self._member(user), self._groups(relevant)
        if member is None or not groups:
            return ()
        try:
            return await self._ask(token, groups, member)
        except TokenRejected:
            raise LoginRefused("the Google consent has expired: start again", cause="it refuses the token") from None

    # --- the steps ---

    def _member(self, user: UserInfo) -> str | None:
        if not user.username.startswith(self._user_prefix):
            return None
        address = user.username[len(self._user_prefix) :]
        return address if domain_of(address) is not None else None

    def _groups(self, relevant: AbstractSet[str]) -> list[str]:
        domains = {group: domain_of(group) for group in relevant}
        return sorted(
            group
            for group, domain in domains.items()
            if domain is not None and (not self._domains or domain in self._domains)
        )

    async def _ask(self, token: Secret, groups: list[str], member: str) -> tuple[Membership, ...]:
        if len(groups) > MAX_CHECKS:
            hint = "use fewer groups in policies, or name fewer domains"
            raise ProviderError("Google is not asked", cause=f"policies name more than {MAX_CHECKS} groups", hint=hint)
        try:
            answers = await all_of(self._api.is_member(token, group, member) for group in groups)
        except TokenRejected:
            if self._account is not None:
                self._account.reject(token)
            raise
        return tuple(Membership(group, "Google group") for group, is_in in zip(groups, answers, strict=True) if is_in)

    async def _service_token(self) -> Secret:
        assert self._account is not None, "without consent there is a service account"
        return await self._account.token()

    async def _exchange(self, consent: Consent, secret: SecretFile, request: LoginRequest) -> Secret:
        back = parse_return(request, "Google")
        form = {
            "grant_type": "authorization_code",
            "client_id": consent.client_id,
            "client_secret": secret.current().reveal(),
            "code": back.code.reveal(),
            "code_verifier": back.verifier.reveal(),
            "redirect_uri": request.callback_url,
        }
        answer = await self._outbound.ask("POST", consent.token_url, form=form)
        if answer.status == 400 and answer.text("error") == "invalid_grant":
            raise LoginRefused(
                "the Google consent has expired: start again", cause="the code was already used or has expired"
            )
        if answer.status != 200:
            hint = "compare clientID, secret and redirect URI with the application's settings there"
            raise self._outbound.failure(consent.token_url, f"it returned no token (status {answer.status})", hint)
        granted = answer.text("scope").split()
        # People can untick what they are asked for; then every group would look hidden, one by one.
        if self._api.scope not in granted:
            raise LoginRefused("access to your Google groups was not granted", cause="the scope was not granted")
        return token_of(answer, self._outbound, consent.token_url)[0]


# --- settings ---


def _api(name: str, outbound: Outbound, endpoint: str | None, clock: Clock) -> MembershipApi:
    if name not in APIS:
        raise _unusable("api", BAD_API)
    common = GoogleApi(outbound, clock=clock)
    return Directory(common, endpoint) if name == "directory" else CloudIdentity(common, endpoint, clock=clock)


def _endpoint(url: str | None) -> str | None:
    if url is not None and (not is_safe(url) or "?" in url or "#" in url):
        raise _unusable("endpoint", BAD_ENDPOINT)
    return None if url is None else url.rstrip("/")


def _domains(names: Iterable[str] | None) -> frozenset[str]:
    domains = None if names is None else [name.lower() for name in names]
    if domains is not None and not domains:
        raise _unusable("domains", EMPTY_LIST)
    if domains is not None and not all(domain_of(f"group@{name}") == name for name in domains):
        raise _unusable("domains", "it must list domains, as in example.com")
    return frozenset(domains or ())


def _unusable(setting: str, cause: str) -> ConfigurationError:
    return ConfigurationError("Google's groups cannot be used", cause=cause, where=setting)
