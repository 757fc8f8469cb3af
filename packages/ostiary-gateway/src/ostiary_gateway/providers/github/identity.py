"""The identity provider ``github``: sign-in with GitHub's OAuth web flow.

    identity: [{name: github, type: github, clientID: Iv1.0123, clientSecretFile: github-secret}]

    /auth                  ->  github.com/login/oauth/authorize, with a random state and a PKCE challenge
    /auth/<name>/provider  ->  state, code  ->  access token  ->  GET /user  ->  login (username) and id (uid)

The OAuth scope is empty: GET /user needs none. With `groupsFrom: [acme]` it is a group provider too:

    groups: [{name: teams, provider: github}]
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_token_header
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect, SignIn
from ostiary_gateway.providers.common.authorization_code import Returned, begin, parse_return
from ostiary_gateway.providers.common.outbound import SECONDS, HttpAnswer, SecretFile
from ostiary_gateway.providers.github.api import (
    GITHUB,
    Caller,
    GitHubAccount,
    GitHubApi,
    GitHubIdentitySettings,
    organizations,
    parse_groups,
)
from ostiary_gateway.settings.declare import read_settings

READ_ORGANIZATIONS = "read:org"
# Each of these scopes includes `read:org`.
_ENOUGH = frozenset((READ_ORGANIZATIONS, "write:org", "admin:org"))
# Tokens of a GitHub App have permissions instead of scopes, and this prefix.
_APP_TOKEN = "ghu_"  # noqa: S105
MAX_ID_DIGITS = 19
HAND_OVER_SECONDS = 60.0
MAX_HANDED_OVER = 1000


class GitHubIdentity:
    """GitHub at *hostname*, or an Enterprise Server. Raises `ConfigurationError` if a setting is invalid.

    Groups and `allowed_organizations` are looked up with the operator's token (`token_file`), or else with the user's,
    which needs the scope ``read:org``. The user's token is never stored: it stays in memory until the groups have been
    looked up, a minute at most. Without `token_file`, a session that needs organisations or groups therefore ends at
    its first refresh, when there is no token of the user.
    """

    sign_in = SignIn.REDIRECT

    def __init__(
        self,
        *,
        client_id: str,
        client_secret_file: str | os.PathLike[str],
        hostname: str = GITHUB,
        allowed_organizations: Iterable[str] | None = None,
        groups_from: Iterable[str] | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api = GitHubApi(hostname, ca=ca, seconds=seconds, clock=clock)
        self._client_id = client_id
        self._client_secret = SecretFile(client_secret_file, "the client secret for GitHub")
        self._token = None if token_file is None else SecretFile(token_file, "the token for GitHub")
        self._allowed = organizations(allowed_organizations, "allowedOrganizations")
        self._groups_from = organizations(groups_from, "groupsFrom")
        self._handed_over = _HandOver(clock)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GitHubIdentitySettings, fields, context.directory)
        try:
            provider = cls(
                client_id=settings.client_id,
                client_secret_file=settings.client_secret_file,
                hostname=settings.hostname,
                allowed_organizations=settings.allowed_organizations,
                groups_from=settings.groups_from,
                token_file=settings.token_file,
                ca=settings.ca,
                clock=context.clock,
            )
        except ConfigurationError as error:
            fields.problem(error.cause or error.summary, str(error.where), error.hint)
            # Never used: after a reported error the gateway does not start.
            return cls(client_id="", client_secret_file="")
        if fields.is_right("clientSecretFile"):
            provider._client_secret.check(fields, "clientSecretFile")
        if provider._token is not None:
            provider._token.check(fields, "tokenFile")
        return provider

    async def close(self) -> None:
        self._handed_over.clear()
        await self._api.close()

    # --- identity provider ---

    async def handle_client(self, request: LoginRequest) -> Redirect:
        if request.method != "GET" or request.query or request.form:
            raise LoginRefused(
                "a sign-in with GitHub must start with a plain GET", cause="another method, or parameters"
            )
        parameters = {"client_id": self._client_id, "scope": self._scope}
        return begin(f"{self._api.web}/login/oauth/authorize", parameters, request)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        token = self._token_of(await self._exchange(parse_return(request, "GitHub"), request.callback_url))
        person = Caller.person(token)
        account = await self._api.own_account(person)
        await self._check_organizations(self._operator() or person, account)
        user = UserInfo(account.login, uid=str(account.id))
        if self._groups_from and self._token is None:
            self._handed_over.put(user.uid, token)
        return user

    async def revalidate(self, user: UserInfo) -> UserInfo:
        """Check that the account still exists, with the same name, and is in an allowed organisation."""
        operator = self._operator()
        if self._allowed and operator is None:
            raise _session_ended("organisations cannot be looked up without an interactive sign-in or a tokenFile")
        caller = operator or Caller.application(self._client_id, self._client_secret.current())
        is_id = user.uid.isascii() and user.uid.isdecimal() and len(user.uid) <= MAX_ID_DIGITS
        account = await self._api.account(caller, int(user.uid)) if is_id else None
        # A login that was given up can be taken by another user, so a changed name means another user.
        if account is None or account.login != user.username:
            raise _session_ended("the account was deleted, suspended or renamed")
        await self._check_organizations(caller, account)
        return user

    # --- group provider ---

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        groups = parse_groups(relevant, self._groups_from)
        handed_over = self._handed_over.take(user.uid)
        if not self._groups_from:
            hint = "name the organisations in groupsFrom of the identity provider"
            raise ProviderError("GitHub is not asked for groups", cause="no organisation is named for it", hint=hint)
        if not groups:
            return ()
        caller = self._operator() or (Caller.person(handed_over) if handed_over is not None else None)
        if caller is None:
            raise _session_ended("groups cannot be looked up without an interactive sign-in or a tokenFile")
        return await self._api.memberships(caller, user.username, groups)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused(
            "there is no sign-in to continue: start again", cause="GitHub is asked for groups without a redirect"
        )

    # --- steps of a sign-in ---

    @property
    def _scope(self) -> str:
        return READ_ORGANIZATIONS if self._token is None and (self._allowed or self._groups_from) else ""

    def _operator(self) -> Caller | None:
        return None if self._token is None else Caller.operator(self._token.current())

    async def _exchange(self, back: Returned, callback_url: str) -> HttpAnswer:
        return await self._api.exchange(
            {
                "client_id": self._client_id,
                "client_secret": self._client_secret.current().reveal(),
                "code": back.code.reveal(),
                "redirect_uri": callback_url,
                "code_verifier": back.verifier.reveal(),
            }
        )

    def _token_of(self, answer: HttpAnswer) -> Secret:
        if error := answer.text("error"):
            raise _exchange_error(error)
        token, kind = answer.text("access_token"), answer.text("token_type")
        if not fits_token_header(token) or kind.lower() != "bearer":
            raise ProviderError("GitHub is unavailable", cause="its answer to the code holds no token")
        granted = set(answer.text("scope").replace(",", " ").split())
        # Without the scope GitHub hides memberships, which must not look like having none.
        if self._scope and not granted & _ENOUGH and not token.startswith(_APP_TOKEN):
            raise LoginRefused("access to your GitHub organisations was not granted", cause="read:org was not granted")
        return Secret(token)

    async def _check_organizations(self, caller: Caller, account: GitHubAccount) -> None:
        for organization in self._allowed:
            if await self._api.is_in_organization(caller, account.login, organization):
                return
        if self._allowed:
            raise LoginRefused("your GitHub account is not a member of an allowed organisation", cause="no membership")


class _HandOver:
    """User tokens passed from `handle_provider` to `groups_of` of the same login, each usable once, for a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[tuple[float, str, Secret]] = deque(maxlen=MAX_HANDED_OVER)

    def put(self, uid: str, token: Secret) -> None:
        self._sweep()
        self._waiting.append((self._clock.monotonic() + HAND_OVER_SECONDS, uid, token))
        # If no policy names a group, `take` is never called. The token must be dropped nevertheless.
        asyncio.get_running_loop().call_later(HAND_OVER_SECONDS + 1, self._sweep)

    def take(self, uid: str) -> Secret | None:
        self._sweep()
        # Concurrent sign-ins of one user leave several tokens; any of them is right.
        waiting = next((entry for entry in self._waiting if entry[1] == uid), None)
        if waiting is None:
            return None
        self._waiting.remove(waiting)
        return waiting[2]

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)

    def _sweep(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._clock.monotonic():
            self._waiting.popleft()


def _exchange_error(error: str) -> LoginRefused | ProviderError:
    if error == "bad_verification_code":
        return LoginRefused(
            "the GitHub sign-in has expired: start again", cause="the code was already used or has expired"
        )
    if error == "unverified_user_email":
        return LoginRefused("GitHub requires a verified e-mail address", cause="unverified_user_email")
    causes = {
        "incorrect_client_credentials": "it does not accept the client id and secret",
        "redirect_uri_mismatch": "the application is registered with another callback URL",
    }
    # An unknown error is not quoted: it is the response to a request with two secrets.
    cause = causes.get(error, "it does not exchange the code for a token")
    hint = "compare with the application's settings there"
    return ProviderError("GitHub is unavailable", cause=cause, hint=hint, reported=error if error in causes else "")


def _session_ended(cause: str) -> LoginRefused:
    return LoginRefused("this session has expired or was revoked: sign in again", cause=cause)
