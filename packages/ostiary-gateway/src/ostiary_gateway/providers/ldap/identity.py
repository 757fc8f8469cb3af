"""The identity provider ``ldap``: passwords of OpenLDAP, Active Directory, 389 and other LDAP directories.

    identity:
    - name: staff
      type: ldap
      url: ldaps://ldap.example.com
      bindDN: cn=gateway,dc=example,dc=com
      bindPasswordFile: ldap-password
      userSearch: {baseDN: "ou=people,dc=example,dc=com", filter: "(uid={username})"}

    Basic, or the form fields username and password  ->  attempts left?  ->  `LdapDirectory.login`  ->  UserInfo

With `groupSearch` it is a group provider too (``groups: [{name: teams, provider: staff}]``). L8: user input is escaped,
an empty password never reaches the directory, and passwords are sent over verified TLS.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, SignIn
from ostiary_gateway.interfaces.shared_counts import SharedCounts
from ostiary_gateway.providers.common.lockout import Lockout, LockoutSettings
from ostiary_gateway.providers.common.password_proof import basic_challenge, password_proof, realm_of
from ostiary_gateway.providers.ldap.directory import DirectoryUser, LdapDirectory, why_unusable
from ostiary_gateway.providers.ldap.settings import (
    LdapIdentitySettings,
    LdapSettings,
    directory_settings,
    placeholder_settings,
)
from ostiary_gateway.settings.declare import read_settings


class LdapIdentity:
    """Checks a name and a password with a bind. The username has the directory's spelling."""

    sign_in = SignIn.PASSWORD

    def __init__(
        self,
        settings: LdapSettings,
        *,
        realm: str = "ostiary",
        lockout: LockoutSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        counts: SharedCounts | None = None,
        name: str = "",
    ) -> None:
        self._directory = LdapDirectory(settings)
        self._challenge = basic_challenge(realm)
        self._lockout = Lockout(lockout or LockoutSettings(), clock=clock, counts=counts, name=name)
        self._clock = clock

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(LdapIdentitySettings, fields, context.directory)
        return cls(
            directory_settings(settings, fields) or placeholder_settings(),
            realm=realm_of(settings.realm, context),
            lockout=settings.lockout,
            clock=context.clock,
            counts=context.counts,
            name=context.name,
        )

    async def close(self) -> None:
        await self._directory.close()

    async def probe(self) -> str:
        return await self._directory.probe()

    async def handle_client(self, request: LoginRequest) -> UserInfo | Challenge:
        proof = password_proof(request)
        if proof is None:
            return Challenge(self._challenge)
        username, password = proof
        async with self._lockout.attempt(username, request.remote_address) as attempt:
            account = await self._directory.login(username, password)
            attempt.settle(right=account is not None)
        if account is None:
            cause = "no entry fits, or several do, or the directory refuses the password"
            raise LoginRefused("wrong user name or password", cause=cause, www_authenticate=self._challenge)
        return self._usable(account)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a directory sends nobody elsewhere")

    async def revalidate(self, user: UserInfo) -> UserInfo:
        if not self._directory.can_search:
            raise LoginRefused("sign in again", cause="without bindDN nobody can be looked up at a renewal")
        account = await self._directory.find(user)
        if account is None:
            raise LoginRefused("the user is no longer known", cause="no entry has this name, or it is somebody else's")
        return self._usable(account)

    # --- group provider ---

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        return await self._directory.groups(user, relevant)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a directory sends nobody elsewhere")

    def _usable(self, found: DirectoryUser) -> UserInfo:
        # Disclosed only to a user who has the password or a session.
        if (why := why_unusable(found.entry, self._clock.now())) is not None:
            raise LoginRefused("this account is disabled or has expired", cause=why)
        return found.user
