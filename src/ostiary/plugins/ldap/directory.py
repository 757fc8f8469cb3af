"""The directory as the identity and the group provider see it: is this the password, is this a user, which groups?

    login   search account binds -> one entry fits the name? -> bind as that entry, with the password given
    find    search account binds -> the entry whose name this is, exactly
    groups  find -> which relevant groups is it in?

Each question has a connection of its own, in one of a few threads, because the LDAP library blocks. L8: a name that
nobody has costs a bind as well, of an entry that cannot exist, so that the time tells nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ostiary.errors import ProviderError
from ostiary.interfaces.group import Membership
from ostiary.model import Secret, UserInfo
from ostiary.plugins.ldap.account import STATE, user_of
from ostiary.plugins.ldap.connection import (
    LdapConnection,
    LdapEntry,
    NoSuchEntry,
    Search,
    TooManyEntries,
    open_connection,
    server_failure,
)
from ostiary.plugins.ldap.declared_settings import DN
from ostiary.plugins.ldap.escape import escape, fill, widen
from ostiary.plugins.ldap.membership import memberships
from ostiary.plugins.ldap.settings import GroupSearch, LdapSettings

MAX_WAITING = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DirectoryUser:
    """An entry, and the user it stands for."""

    entry: LdapEntry
    user: UserInfo


class LdapDirectory:
    """Threads begin with the first question, and end with `close`."""

    def __init__(self, settings: LdapSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.server.connections, thread_name_prefix="ldap")
        self._pending = 0

    @property
    def can_search(self) -> bool:
        return self._settings.account is not None

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def probe(self) -> str:
        """Connects, and signs the search account in, if there is one. Raises `ProviderError`."""
        return await self._in_thread(self._probe)

    def _probe(self) -> str:
        account, server = self._settings.account, self._settings.server
        with open_connection(server) as connection:
            if account is None:
                return "the directory answers; there is no search account to try"
            connection.bind_account(account)
        return "the directory accepts the search account"

    async def login(self, username: str, password: Secret) -> DirectoryUser | None:
        """The user whose name and password these are; None if there is none, or not exactly one."""
        if not _is_text(username) or not _is_text(password.reveal()):
            return None
        return await self._in_thread(lambda: self._login(username, password))

    async def find(self, user: UserInfo) -> DirectoryUser | None:
        """The user of this very name, and of this uid if there is one."""
        if not _is_text(user.username):
            return None
        return await self._in_thread(lambda: self._with_account(lambda connection: self._find(connection, user)))

    async def groups(self, user: UserInfo, relevant: AbstractSet[str]) -> tuple[Membership, ...]:
        """The relevant groups of the user; none for a user whom the directory does not know."""
        search = self._settings.groups
        if search is None:
            hint = "name groupSearch.baseDN in the settings of the provider"
            raise server_failure(self._settings.server, "the settings do not say where groups are", hint)
        if not relevant or not _is_text(user.username):
            return ()
        names, groups = frozenset(relevant), search
        return await self._in_thread(
            lambda: self._with_account(lambda connection: self._groups(connection, user, groups, names))
        )

    # --- in a thread ---

    def _login(self, username: str, password: Secret) -> DirectoryUser | None:
        users = self._settings.users
        with open_connection(self._settings.server) as connection:
            if self._settings.account is None:
                # The template names the entry; after a bind as that entry, it can be read.
                if not connection.bind(fill(users.user_dn, username), password):
                    return None
                return self._only(connection, username, users.filter)
            connection.bind_account(self._settings.account)
            account = self._only(connection, username, fill(users.filter, username))
            dn = self._nobody() if account is None else account.entry.dn
            return account if connection.bind(dn, password) else None

    def _with_account(self, ask: Callable[[LdapConnection], T]) -> T:
        if self._settings.account is None:
            raise server_failure(self._settings.server, "there is no search account", "set bindDN and bindPasswordFile")
        with open_connection(self._settings.server) as connection:
            connection.bind_account(self._settings.account)
            return ask(connection)

    def _find(self, connection: LdapConnection, user: UserInfo) -> DirectoryUser | None:
        users = self._settings.users
        # By the attribute that names come from: the filter may take other things for a name as well.
        name_filter = f"(&({users.username_attribute}={escape(user.username)}){widen(users.filter)})"
        account = self._only(connection, user.username, name_filter)
        if account is None or account.user.username != user.username:
            return None
        # A name that was given to somebody else is another user.
        return None if users.uid_attribute and user.uid and user.uid != account.user.uid else account

    def _groups(
        self, connection: LdapConnection, user: UserInfo, search: GroupSearch, relevant: AbstractSet[str]
    ) -> tuple[Membership, ...]:
        account = self._find(connection, user)
        return () if account is None else memberships(connection, search, account.entry, relevant)

    def _only(self, connection: LdapConnection, username: str, text: str) -> DirectoryUser | None:
        """The only entry that fits; None if there is none, or another one, or it has no name to go by."""
        users = self._settings.users
        base = fill(users.user_dn, username) if users.user_dn else users.base_dn
        # Two are enough to know that it is not one.
        search = Search(base, text, self._attributes_to_read(), only_base=bool(users.user_dn), limit=2)
        try:
            entries = connection.search(search)
        except TooManyEntries:
            return None
        except NoSuchEntry:
            if users.user_dn:
                return None
            raise server_failure(self._settings.server, "userSearch.baseDN is no entry that it shows") from None
        if len(entries) != 1:
            return None
        user = user_of(entries[0], users)
        return None if user is None else DirectoryUser(entries[0], user)

    def _attributes_to_read(self) -> tuple[str, ...]:
        users, groups = self._settings.users, self._settings.groups
        also = [users.uid_attribute, groups.user_attribute if groups and groups.user_attribute != DN else ""]
        return (users.username_attribute, *STATE, *(name for name in also if name))

    def _nobody(self) -> str:
        """Below the users, so that whatever the directory does to tell entries apart, it does."""
        _, _, below = self._settings.users.user_dn.partition(",")
        return f"cn={secrets.token_hex(16)},{self._settings.users.base_dn or below}"

    # --- threads ---

    async def _in_thread(self, job: Callable[[], T]) -> T:
        if self._pending >= self._settings.server.connections + MAX_WAITING:
            raise ProviderError("too many requests to the directory", cause=f"{MAX_WAITING} wait for a connection")
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, job)
        finally:
            self._pending -= 1


def _is_text(text: str) -> bool:
    """Whether it can be sent: what a form decodes may be half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return text != ""
