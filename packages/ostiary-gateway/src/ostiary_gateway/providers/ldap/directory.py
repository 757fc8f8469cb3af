"""Logins, users and groups of a directory, for the identity and the group provider.

    login   bind as search account -> exactly one entry matches? -> bind as that entry, with the given password
    find    bind as search account -> the entry with exactly this username
    groups  find -> the relevant groups that contain it

Each operation opens a connection in one of a few threads, because the LDAP library blocks. L8: an unknown username
costs a bind as well, as an entry that cannot exist, so that timing does not reveal which usernames exist.
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

# User entries. Not every directory rejects the password of a disabled account, and a session is refreshed without a
# password, so the entry itself is checked, at login and at each refresh.

STATE = ("userAccountControl", "accountExpires", "shadowExpire", "pwdAccountLockedTime", "nsAccountLock")

_DISABLED = 0x2
_NEVER = (0, 0x7FFF_FFFF_FFFF_FFFF)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ACTIVE_DIRECTORY_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
# OpenLDAP's password policy writes this for an account that an administrator has locked.
_LOCKED_FOR_GOOD = "000001010000Z"


def user_of(entry: LdapEntry, users: UserSearch) -> UserInfo | None:
    """Return the user, with the directory's spelling of the name. None if the entry has no name, or several."""
    names = entry.texts(users.username_attribute)
    if len(names) != 1:
        return None
    uid = _uid(entry, users.uid_attribute) if users.uid_attribute else ""
    return None if uid is None else UserInfo(names[0], uid=uid)


def why_unusable(entry: LdapEntry, now: datetime) -> str | None:
    """Return why the account must not be used any more, or None if it may be used."""
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

# Groups.
#
#     none             one query: groups with this member and one of these names
#     recursive        upwards, level by level: the groups of the user, the groups of these groups, ...
#     activeDirectory  two queries, the second with the matching rule that resolves nesting in the directory
#
# Group names come from policies, and the user's name from the directory; L8: all of them are escaped. Results are never
# truncated: too many groups are an error, because a token must not silently lack one.

MAX_LEVELS = 32
MAX_GROUPS = 2000
# LDAP_MATCHING_RULE_IN_CHAIN
IN_CHAIN = ":1.2.840.113556.1.4.1941:"


def memberships(
    connection: LdapConnection, groups: GroupSearch, user: LdapEntry, relevant: AbstractSet[str]
) -> tuple[Membership, ...]:
    """Return each relevant group that contains *user*, once."""
    names = sorted(name for name in relevant if _can_be_asked(name))
    members = (user.dn,) if groups.user_attribute == DN else user.texts(groups.user_attribute)
    if not names or not members:
        return ()
    try:
        sources = dict(_search_memberships(connection, groups, members, names))
    except (TooManyEntries, NoSuchEntry):
        cause = "groupSearch.baseDN is no entry, or has more groups of one user than the directory tells at once"
        raise ProviderError("the groups could not be looked up", cause=cause) from None
    # A directory's matching may ignore case and spaces; group names are compared exactly.
    return tuple(Membership(name, sources[name]) for name in names if name in sources)


def named_filter(groups: GroupSearch, member: str, names: Iterable[str], *, rule: str = "=") -> str:
    """Return the filter for groups with this member and one of these names."""
    name_filters = "".join(f"({groups.name_attribute}={escape(name)})" for name in names)
    return f"(&{groups.filter}({groups.member_attribute}{rule}{escape(member)})(|{name_filters}))"


def member_filter(groups: GroupSearch, member: str) -> str:
    return f"(&{groups.filter}({groups.member_attribute}={escape(member)}))"


def _search_memberships(
    connection: LdapConnection, groups: GroupSearch, members: tuple[str, ...], names: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield (name, source) of groups. A later source replaces an earlier one of the same name."""
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
    """Yield groups from the farthest to the nearest, so that the source of the shortest path wins."""
    visited: set[str] = set()
    levels: list[list[tuple[str, str]]] = []
    # The DN to search for, and the source of its groups.
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
                # Groups can contain each other in a cycle.
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
    """An entry, and the user it describes."""

    entry: LdapEntry
    user: UserInfo


class LdapDirectory:
    """Query the directory in threads, which start with the first query and end with `close`."""

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
        """Connect, and bind as the search account, if there is one. Raise `ProviderError` on failure."""
        return await self._in_thread(self._probe)

    def _probe(self) -> str:
        account, server = self._settings.account, self._settings.server
        with open_connection(server) as connection:
            if account is None:
                return "the directory answers; there is no search account to try"
            connection.bind_account(account)
        return "the directory accepts the search account"

    async def login(self, username: str, password: Secret) -> DirectoryUser | None:
        """Return the user with this name and password. None if there is none, or not exactly one."""
        if not _is_text(username) or not _is_text(password.reveal()):
            return None
        return await self._in_thread(lambda: self._login(username, password))

    async def find(self, user: UserInfo) -> DirectoryUser | None:
        """Return the user with exactly this name, and with this uid if it has one."""
        if not _is_text(user.username):
            return None
        return await self._in_thread(lambda: self._with_account(lambda connection: self._find(connection, user)))

    async def groups(self, user: UserInfo, relevant: AbstractSet[str]) -> tuple[Membership, ...]:
        """Return the relevant groups of the user; none if the directory does not have the user."""
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
                # The template gives the DN. The entry can be read after a bind as that DN.
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
        # Match the username attribute itself: the filter may accept other attributes as a name, too.
        name_filter = f"(&({users.username_attribute}={escape(user.username)}){widen(users.filter)})"
        account = self._only(connection, user.username, name_filter)
        if account is None or account.user.username != user.username:
            return None
        # A name that was reassigned belongs to another user.
        return None if users.uid_attribute and user.uid and user.uid != account.user.uid else account

    def _groups(
        self, connection: LdapConnection, user: UserInfo, search: GroupSearch, relevant: AbstractSet[str]
    ) -> tuple[Membership, ...]:
        account = self._find(connection, user)
        return () if account is None else memberships(connection, search, account.entry, relevant)

    def _only(self, connection: LdapConnection, username: str, text: str) -> DirectoryUser | None:
        """Return the only matching entry. None if there is none, more than one, or it has no unique name."""
        users = self._settings.users
        base = fill(users.user_dn, username) if users.user_dn else users.base_dn
        # Two results suffice to know that the match is not unique.
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
        """Return the DN of an entry that cannot exist, below the users, so that a bind takes as long as for a user."""
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
    """Return whether *text* can be encoded: form decoding may produce lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return text != ""
