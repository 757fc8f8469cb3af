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
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from ostiary.errors import ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.providers.ldap.connection import (
    BATCH,
    LdapConnection,
    LdapEntry,
    NoSuchEntry,
    Search,
    TooManyEntries,
    open_connection,
    server_failure,
)
from ostiary_gateway.providers.ldap.escape import escape, fill, widen
from ostiary_gateway.providers.ldap.settings import DN, GroupSearch, LdapSettings, Nested, UserSearch

# What an entry says of its user: the name, the uid, and whether the account may be used. Pure.
#
# Called by `ostiary_gateway.providers.ldap.directory`. Not every directory refuses the password of a disabled account,
# and a session is renewed without a password. So the entry itself is checked, at login as well as at renewals.

STATE = ("userAccountControl", "accountExpires", "shadowExpire", "pwdAccountLockedTime", "nsAccountLock")

_DISABLED = 0x2
_NEVER = (0, 0x7FFF_FFFF_FFFF_FFFF)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ACTIVE_DIRECTORY_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
# What OpenLDAP's password policy writes for an account that an administrator has locked.
_LOCKED_FOR_GOOD = "000001010000Z"


def user_of(entry: LdapEntry, users: UserSearch) -> UserInfo | None:
    """The user as the directory spells the name; None if the entry has no name, or several to choose from."""
    names = entry.texts(users.username_attribute)
    if len(names) != 1:
        return None
    uid = _uid(entry, users.uid_attribute) if users.uid_attribute else ""
    return None if uid is None else UserInfo(names[0], uid=uid)


def why_unusable(entry: LdapEntry, now: datetime) -> str | None:
    """Why nobody may use this account any more; None if it may be used."""
    for name, is_unusable in _RULES:
        for value in entry.texts(name):
            try:
                if is_unusable(value, now):
                    return f"{name} says that the account is disabled or has expired"
            except (ValueError, OverflowError):
                return f"{name} cannot be understood"
    return None


def _uid(entry: LdapEntry, attribute: str) -> str | None:
    values = entry.attributes.get(attribute.lower(), ())
    if len(values) != 1:
        return None
    if attribute.lower() == "objectguid" and len(values[0]) == 16:
        return str(UUID(bytes_le=values[0]))
    texts = entry.texts(attribute)
    return texts[0] if texts and texts[0].isprintable() else values[0].hex()


def _is_disabled(value: str, now: datetime) -> bool:
    return bool(int(value) & _DISABLED)


def _is_past_windows_time(value: str, now: datetime) -> bool:
    ticks = int(value)
    return ticks not in _NEVER and now >= _ACTIVE_DIRECTORY_EPOCH + timedelta(microseconds=ticks // 10)


def _is_past_day(value: str, now: datetime) -> bool:
    day = int(value)
    return day >= 0 and (now - _EPOCH).days >= day


_RULES: tuple[tuple[str, Callable[[str, datetime], bool]], ...] = (
    ("userAccountControl", _is_disabled),
    ("accountExpires", _is_past_windows_time),
    ("shadowExpire", _is_past_day),
    ("pwdAccountLockedTime", lambda value, now: value == _LOCKED_FOR_GOOD),
    ("nsAccountLock", lambda value, now: value.lower() == "true"),
)

# Looks up which of the relevant groups an entry is in. Called by `ostiary_gateway.providers.ldap.directory`, after its
# bind.
#
#     none             one question: groups with this member and one of these names
#     recursive        upwards, level by level: the groups of the user, the groups of these groups, ...
#     activeDirectory  two questions, the second by the matching rule that follows nested groups in the directory
#
# Names of groups come from policies, and the user's from the directory; L8: all of them are escaped. No answer is cut
# short: too many groups are an error, because a token must not lack one silently.

MAX_LEVELS = 32
MAX_GROUPS = 2000
# LDAP_MATCHING_RULE_IN_CHAIN
IN_CHAIN = ":1.2.840.113556.1.4.1941:"


def memberships(
    connection: LdapConnection, groups: GroupSearch, user: LdapEntry, relevant: AbstractSet[str]
) -> tuple[Membership, ...]:
    """Each relevant group that *user* is in, once."""
    names = sorted(name for name in relevant if _can_be_asked(name))
    members = (user.dn,) if groups.user_attribute == DN else user.texts(groups.user_attribute)
    if not names or not members:
        return ()
    try:
        sources = dict(_search_memberships(connection, groups, members, names))
    except (TooManyEntries, NoSuchEntry):
        cause = "groupSearch.baseDN is no entry, or has more groups of one user than the directory tells at once"
        raise ProviderError("the groups could not be looked up", cause=cause) from None
    # What a directory finds equal may differ in case or blanks; names of groups do not.
    return tuple(Membership(name, sources[name]) for name in names if name in sources)


def named_filter(groups: GroupSearch, member: str, names: Iterable[str], *, rule: str = "=") -> str:
    """Groups with this member and one of these names."""
    name_filters = "".join(f"({groups.name_attribute}={escape(name)})" for name in names)
    return f"(&{groups.filter}({groups.member_attribute}{rule}{escape(member)})(|{name_filters}))"


def member_filter(groups: GroupSearch, member: str) -> str:
    return f"(&{groups.filter}({groups.member_attribute}={escape(member)}))"


def _search_memberships(
    connection: LdapConnection, groups: GroupSearch, members: tuple[str, ...], names: list[str]
) -> Iterator[tuple[str, str]]:
    """(name, source) of groups; a later source replaces an earlier one of the same name."""
    if groups.nested is Nested.RECURSIVE:
        yield from _walk_nested(connection, groups, members[0])
        return
    if groups.nested is Nested.ACTIVE_DIRECTORY:
        nested = _search_by_name(connection, groups, members, names, f"{IN_CHAIN}=")
        yield from ((name, "via a nested group") for name in nested)
    yield from ((name, "") for name in _search_by_name(connection, groups, members, names, "="))


def _search_by_name(
    connection: LdapConnection, groups: GroupSearch, members: tuple[str, ...], names: list[str], rule: str
) -> Iterator[str]:
    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    filters = [named_filter(groups, member, batch, rule=rule) for member in members for batch in batches]
    for entries in connection.search_all([_search(groups, text) for text in filters]):
        for entry in entries:
            yield from entry.texts(groups.name_attribute)


def _walk_nested(connection: LdapConnection, groups: GroupSearch, user_dn: str) -> Iterator[tuple[str, str]]:
    """Groups from the farthest to the nearest, so that the source of the shortest path wins."""
    visited: set[str] = set()
    levels: list[list[tuple[str, str]]] = []
    # The DN to search for, and how its groups are named as a source.
    frontier = [(user_dn, "")]
    while frontier:
        if len(levels) == MAX_LEVELS or len(visited) > MAX_GROUPS:
            cause = f"they are nested deeper than {MAX_LEVELS} levels, or are more than {MAX_GROUPS}"
            raise ProviderError("the groups could not be looked up", cause=cause)
        answers = connection.search_all([_search(groups, member_filter(groups, dn)) for dn, _ in frontier])
        level: list[tuple[str, str]] = []
        after: list[tuple[str, str]] = []
        for (_, source), entries in zip(frontier, answers, strict=True):
            for entry in entries:
                # A group can be in itself, by way of others.
                if entry.dn.lower() in visited:
                    continue
                visited.add(entry.dn.lower())
                names = entry.texts(groups.name_attribute)
                level += [(name, source) for name in names]
                after.append((entry.dn, f'via nested group "{names[0] if names else entry.dn}"'))
        levels.append(level)
        frontier = after
    for level in reversed(levels):
        yield from level


def _search(groups: GroupSearch, text: str) -> Search:
    return Search(groups.base_dn, text, (groups.name_attribute,))


def _can_be_asked(name: str) -> bool:
    try:
        return name.encode() != b""
    except UnicodeEncodeError:
        return False


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
