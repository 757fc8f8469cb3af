"""The group provider ``ldap``: groups of users who sign in elsewhere with the usernames of the directory.

    groups:
    - name: teams
      type: ldap
      url: ldaps://ldap.example.com
      bindDN: cn=gateway,dc=example,dc=com
      bindPasswordFile: ldap-password
      userSearch: {baseDN: "ou=people,dc=example,dc=com"}
      groupSearch: {baseDN: "ou=groups,dc=example,dc=com", nested: recursive}

With the identity provider ``ldap`` this one is not needed: that is a group provider, too. L8: names are escaped.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.ldap.directory import LdapDirectory, why_unusable
from ostiary_gateway.providers.ldap.settings import (
    LdapGroupSettings,
    LdapSettings,
    directory_settings,
    placeholder_settings,
)
from ostiary_gateway.settings.declare import read_settings


class LdapGroups:
    """Look up relevant groups, at login and at each refresh.

    *user_prefix* is removed from usernames; users without it have no groups. With *require_user*, a user who is unknown
    to the directory or disabled there is denied: Kerberos, a proxy or a certificate cannot detect that at a refresh.
    """

    def __init__(
        self,
        settings: LdapSettings,
        *,
        user_prefix: str = "",
        require_user: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = LdapDirectory(settings)
        self._user_prefix = user_prefix
        self._clock = clock
        if require_user:
            self.check_user = self._check_user

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(LdapGroupSettings, fields, context.directory)
        return cls(
            directory_settings(settings, fields) or placeholder_settings(),
            user_prefix=settings.user_prefix,
            require_user=settings.require_user,
            clock=context.clock,
        )

    async def close(self) -> None:
        await self._directory.close()

    async def probe(self) -> str:
        return await self._directory.probe()

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        if not user.username.startswith(self._user_prefix):
            return ()
        return await self._directory.groups(self._own(user), relevant)

    async def _check_user(self, user: UserInfo) -> None:
        account = None
        if user.username.startswith(self._user_prefix):
            account = await self._directory.find(self._own(user))
        if account is None:
            raise LoginRefused(
                "the directory does not know this user: ask the administrator of this gateway",
                cause="no entry has this name, or several have, and requireUser is set",
            )
        if (why := why_unusable(account.entry, self._clock.now())) is not None:
            raise LoginRefused("this account is disabled or has expired", cause=why)

    def _own(self, user: UserInfo) -> UserInfo:
        """Return the user with the directory's username, without the uid, which is another identity provider's."""
        return replace(user, username=user.username[len(self._user_prefix) :], uid="")

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a directory sends nobody elsewhere")
