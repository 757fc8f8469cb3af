"""GitHub's REST API for sign-ins and groups: accounts, organisations, teams.

A 404 for a membership means "no". Any unclear response (a rate limit, an organisation that blocks the application, a
redirect of a renamed team) raises, so that a failure neither admits a user nor drops a group.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import Secret
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.providers.common.outbound import SECONDS, HttpAnswer, Outbound, Rest, all_of
from ostiary_gateway.settings.kinds import AnyText, FilePath, Holds, Text, Texts

GITHUB = "github.com"
EMPTY_LIST = "an empty list restricts nothing: remove it if that is intended"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The GitHub server."""

    hostname: Annotated[str, Text("the host of an Enterprise server", empty="")] = GITHUB
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of that server", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHubIdentitySettings(HostSettings):
    """The settings of the identity provider ``github``."""

    client_id: Annotated[
        str,
        Text(
            "of the application that is registered at GitHub",
            name="clientID",
            empty="",
            missing="it is missing: GitHub gives it to a registered application",
        ),
    ]
    client_secret_file: Annotated[
        Path,
        FilePath(
            "the file with the application's secret",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            missing="it is missing: the file with the application's secret",
        ),
    ]
    allowed_organizations: Annotated[
        tuple[str, ...] | None,
        Texts("only members of one of these organisations are let in", empty_list=EMPTY_LIST, unset="everybody"),
    ] = None
    groups_from: Annotated[
        tuple[str, ...] | None,
        Texts("the organisations whose members and teams are groups", empty_list=EMPTY_LIST, unset="none"),
    ] = None
    token_file: Annotated[
        Path | None,
        FilePath(
            "a token that may read memberships",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            unset="the person's own",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHubGroupSettings(HostSettings):
    """The settings of the group provider ``github``."""

    groups_from: Annotated[
        tuple[str, ...],
        Texts(
            "the organisations whose members and teams are groups",
            empty_list=EMPTY_LIST,
            missing="it is missing: the organisations whose members and teams are groups",
        ),
    ]
    token_file: Annotated[
        Path,
        FilePath(
            "a token that may read the organisations",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            missing="it is missing: the file with a token that may read the organisations",
        ),
    ]
    user_prefix: Annotated[
        str, AnyText("what the usernames begin with that are GitHub's; without it they are theirs", unset="none")
    ] = ""


API_VERSION = "2022-11-28"
# One request each. This many checks use up a tenth of GitHub's hourly rate limit.
MAX_CHECKS = 500
# GitHub's documented wait if the response has no retry-after.
REST_SECONDS = 60.0

_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?")
# Logins of users and organisations. Logins of managed users contain an underscore.
_LOGIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_TEAM = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass(frozen=True, slots=True)
class GitHubAccount:
    """A user account at GitHub. The login can be reassigned; the id cannot."""

    id: int
    login: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The credential of a request to GitHub. `is_person` is true for the token of the user who signs in."""

    authorization: Secret
    is_person: bool

    @classmethod
    def person(cls, token: Secret) -> Caller:
        return cls(Secret(f"Bearer {token.reveal()}"), True)

    @classmethod
    def operator(cls, token: Secret) -> Caller:
        return cls(Secret(f"Bearer {token.reveal()}"), False)

    @classmethod
    def application(cls, client_id: str, client_secret: Secret) -> Caller:
        """Authenticate as the application, which can read only the public data of an account."""
        pair = b64encode(f"{client_id}:{client_secret.reveal()}".encode()).decode()
        return cls(Secret(f"Basic {pair}"), False)


@dataclass(frozen=True, slots=True)
class Group:
    """An organisation or one of its teams, named like in policies: ``acme`` and ``acme:platform``."""

    name: str
    organization: str
    team: str = ""


class GitHubApi:
    """The API of GitHub at *hostname*. Raises `ConfigurationError` if the settings are invalid."""

    def __init__(
        self,
        hostname: str = GITHUB,
        *,
        ca: str | os.PathLike[str] | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.web, self.api = addresses(hostname)
        self._clock = clock
        self._outbound = Outbound("GitHub", ca=ca, seconds=seconds)
        self._rest = Rest("GitHub", clock)

    async def close(self) -> None:
        await self._outbound.close()

    # --- signing in ---

    async def exchange(self, form: dict[str, str]) -> HttpAnswer:
        """Exchange a code and return the response. GitHub also reports errors with status 200."""
        url = f"{self.web}/login/oauth/access_token"
        answer = await self._outbound.ask("POST", url, form=form)
        if answer.status != 200:
            raise self._outbound.failure(url, f"it answered the exchange of a code with status {answer.status}")
        return answer

    async def own_account(self, caller: Caller) -> GitHubAccount:
        answer = await self._get(caller, "/user")
        account = _account(answer) if answer.status == 200 else None
        if account is None:
            raise self._outbound.failure(self.api, "its response does not name the user of the token")
        return account

    async def account(self, caller: Caller, account_id: int) -> GitHubAccount | None:
        """Return the account with this id, whatever its login is now; None if it was deleted or suspended."""
        answer = await self._get(caller, f"/user/{account_id}")
        account = _account(answer) if answer.status == 200 else None
        return account if account is not None and account.id == account_id else None

    # --- membership ---

    async def is_in_organization(self, caller: Caller, login: str, organization: str) -> bool:
        """Return whether *login* is an active member of *organization*. If the caller is a user, *login* is theirs."""
        # An operator who is not a member gets a 403 here. The endpoint without a response body returns 404, a "no".
        path = f"/user/memberships/orgs/{organization}" if caller.is_person else _of(organization, "memberships", login)
        return _is_active(await self._get(caller, path))

    async def is_in_team(self, caller: Caller, login: str, organization: str, team: str) -> bool:
        return _is_active(await self._get(caller, _of(organization, "teams", team, "memberships", login)))

    async def memberships(self, caller: Caller, login: str, groups: Iterable[Group]) -> tuple[Membership, ...]:
        """Return those of *groups* that contain *login*: one request per organisation, then one per team inside."""
        ordered = sorted(groups, key=lambda group: group.name)
        if len(ordered) > MAX_CHECKS:
            hint = "use fewer groups in policies, or name fewer organisations in groupsFrom"
            raise ProviderError("GitHub is not asked", cause=f"policies name more than {MAX_CHECKS} groups", hint=hint)
        if not is_login(login):
            return ()
        organizations = sorted({group.organization.lower() for group in ordered})
        members = await all_of(self.is_in_organization(caller, login, name) for name in organizations)
        entered = {name for name, member in zip(organizations, members, strict=True) if member}
        inside = [group for group in ordered if group.organization.lower() in entered]
        memberships = await all_of(self._is_in(caller, login, group) for group in inside)
        return tuple(
            Membership(group.name, _source(group)) for group, member in zip(inside, memberships, strict=True) if member
        )

    async def _is_in(self, caller: Caller, login: str, group: Group) -> bool:
        return not group.team or await self.is_in_team(caller, login, group.organization, group.team)

    # --- requests ---

    async def _get(self, caller: Caller, path: str) -> HttpAnswer:
        """Return the response if its status is 200, 204 or 404. Raise for any other."""
        if not caller.is_person:
            self._rest.check()
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": API_VERSION,
            "Authorization": caller.authorization.reveal(),
        }
        answer = await self._outbound.ask("GET", self.api + path, headers=headers)
        if answer.status in (200, 204, 404):
            return answer
        if answer.status == 401 and caller.is_person:
            raise LoginRefused("the GitHub sign-in has expired: start again", cause="the user's token is rejected")
        if answer.status in (403, 429) and (wait := self._wait(answer)) is not None:
            if not caller.is_person:
                self._rest.begin(wait)
            raise self._outbound.failure(self.api, f"rate limit exceeded; retry in {wait:.0f} seconds")
        raise self._outbound.failure(self.api, *_unclear(answer))

    def _wait(self, answer: HttpAnswer) -> float | None:
        """Return how many seconds to wait for the rate limit; None if the response is not about one."""
        after, reset = (_number(answer.headers.get(name, "")) for name in ("retry-after", "x-ratelimit-reset"))
        if after is not None:
            return float(after)
        if answer.headers.get("x-ratelimit-remaining") == "0":
            return max(reset - self._clock.now().timestamp(), 1.0) if reset is not None else REST_SECONDS
        is_limit = answer.status == 429 or "rate limit" in answer.text("message").lower()
        return REST_SECONDS if is_limit else None


# --- settings and names ---


def addresses(hostname: str) -> tuple[str, str]:
    """Return the URLs of the login pages and of the API. Raise `ConfigurationError` for an invalid host."""
    if not _HOSTNAME.fullmatch(hostname) or ".." in hostname:
        cause = "it must be a host name, perhaps with a port, and nothing else"
        raise ConfigurationError("GitHub's host cannot be used", cause=cause, where="hostname")
    host = hostname.lower()
    if host == GITHUB or host.endswith(".ghe.com"):
        return f"https://{host}", f"https://api.{host}"
    return f"https://{host}", f"https://{host}/api/v3"


def organizations(names: Iterable[str] | None, setting: str) -> tuple[str, ...]:
    """Return the organisations of *setting*. Raise `ConfigurationError` for an empty list or an invalid name."""
    if names is None:
        return ()
    chosen_names = tuple(names)
    cause = None
    if not chosen_names:
        cause = EMPTY_LIST
    elif not all(is_login(name) for name in chosen_names):
        cause = "it must list names of organisations, as they stand in GitHub's URLs"
    if cause is not None:
        raise ConfigurationError("the organisations cannot be used", cause=cause, where=setting)
    return chosen_names


def is_login(text: str) -> bool:
    return _LOGIN.fullmatch(text) is not None


def parse_groups(relevant: AbstractSet[str], sources: Iterable[str]) -> tuple[Group, ...]:
    """Return the *relevant* groups that are an organisation of *sources*, or a team of one."""
    source_names = {name.lower() for name in sources}
    groups = []
    for name in relevant:
        organization, colon, team = name.partition(":")
        if (
            organization.lower() in source_names
            and organization.isascii()
            and bool(colon) == bool(_TEAM.fullmatch(team))
        ):
            groups.append(Group(name, organization, team))
    return tuple(groups)


# --- responses ---


def _of(organization: str, *steps: str) -> str:
    # Each segment consists of letters, digits, hyphens and underscores, so none can change the path.
    return "/".join(("/orgs", organization, *steps))


def _account(answer: HttpAnswer) -> GitHubAccount | None:
    body = answer.body if isinstance(answer.body, dict) else {}
    account_id, login = body.get("id"), answer.text("login")
    # Organisations and bots have accounts too, and suspended accounts are still returned.
    if type(account_id) is not int or account_id < 1 or not is_login(login):
        return None
    return GitHubAccount(account_id, login) if body.get("type") == "User" and not body.get("suspended_at") else None


def _is_active(answer: HttpAnswer) -> bool:
    """Return whether the membership is active. A pending invitation does not count."""
    return answer.status == 200 and answer.text("state") == "active"


def _source(group: Group) -> str:
    return f"GitHub team {group.name}" if group.team else f"GitHub organisation {group.name}"


def _unclear(answer: HttpAnswer) -> tuple[str, str | None]:
    """Return the cause of an unclear response, and a hint."""
    if answer.status == 401:
        return "it does not accept the operator's token", "renew the file that tokenFile or clientSecretFile names"
    if answer.status == 403 and "x-github-sso" in answer.headers:
        return "an organisation asks for single sign-on first", "authorize the token or the application for it"
    if answer.status == 403:
        hint = "an owner of the organisation must approve the application; a token needs to read its members"
        return "it denies access to this resource", hint
    if 300 <= answer.status < 400:
        return (
            "a name was redirected",
            "was an organisation or a team renamed? Policies and settings need the new name",
        )
    return f"it answered with status {answer.status}", None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None
