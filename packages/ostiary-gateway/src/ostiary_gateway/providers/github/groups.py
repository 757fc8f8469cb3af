"""The group provider ``github``: organisations and teams as groups, ``acme`` and ``acme:platform``.

    groups: [{name: teams, type: github, groupsFrom: [acme], tokenFile: github-token}]

With the identity provider ``github`` this one is not needed: that is a group provider, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.common.outbound import SECONDS, SecretFile
from ostiary_gateway.providers.github.api import (
    GITHUB,
    Caller,
    GitHubApi,
    GitHubGroupSettings,
    organizations,
    parse_groups,
)
from ostiary_gateway.settings.declare import read_settings


class GitHubGroups:
    """Look up memberships with the operator's token, at login and at each refresh.

    Users may come from any identity provider whose usernames are GitHub logins. *user_prefix* is removed from
    usernames; users without it have no groups. Raises `ConfigurationError` if a setting is invalid.
    """

    def __init__(
        self,
        *,
        groups_from: Iterable[str],
        token_file: str | os.PathLike[str],
        user_prefix: str = "",
        hostname: str = GITHUB,
        ca: str | os.PathLike[str] | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._api = GitHubApi(hostname, ca=ca, seconds=seconds, clock=clock)
        self._groups_from = organizations(groups_from, "groupsFrom")
        self._token = SecretFile(token_file, "the token for GitHub")
        self._user_prefix = user_prefix

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(GitHubGroupSettings, fields, context.directory)
        try:
            provider = cls(
                groups_from=settings.groups_from or ("missing",),
                token_file=settings.token_file,
                user_prefix=settings.user_prefix,
                hostname=settings.hostname,
                ca=settings.ca,
                clock=context.clock,
            )
        except ConfigurationError as error:
            fields.problem(error.cause or error.summary, str(error.where), error.hint)
            # Never used: after a reported error the gateway does not start.
            return cls(groups_from=("missing",), token_file="")
        if fields.is_right("tokenFile"):
            provider._token.check(fields, "tokenFile")
        return provider

    async def close(self) -> None:
        await self._api.close()

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        groups = parse_groups(relevant, self._groups_from)
        if not groups or not user.username.startswith(self._user_prefix):
            return ()
        login = user.username[len(self._user_prefix) :]
        return await self._api.memberships(Caller.operator(self._token.current()), login, groups)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused(
            "there is no sign-in to continue: start again", cause="GitHub is asked for groups without a redirect"
        )
