"""Looks up which of the relevant groups an entry is in. Called by `ostiary.plugins.ldap.directory`, after its bind.

    none             one question: groups with this member and one of these names
    recursive        upwards, level by level: the groups of the user, the groups of these groups, ...
    activeDirectory  two questions, the second by the matching rule that follows nested groups in the directory

Names of groups come from policies, and the user's from the directory; L8: all of them are escaped. No answer is cut
short: too many groups are an error, because a token must not lack one silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from ostiary.errors import ProviderError
from ostiary.interfaces.group import Membership
from ostiary.plugins.ldap.connection import BATCH, LdapConnection, LdapEntry, NoSuchEntry, Search, TooManyEntries
from ostiary.plugins.ldap.declared_settings import DN, Nested
from ostiary.plugins.ldap.escape import escape
from ostiary.plugins.ldap.settings import GroupSearch

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
