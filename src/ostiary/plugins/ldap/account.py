"""What an entry says of its user: the name, the uid, and whether the account may be used. Pure.

Called by `ostiary.plugins.ldap.directory`. Not every directory refuses the password of a disabled account, and a
session is renewed without a password. So the entry itself is checked, at login as well as at renewals.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from ostiary.model import UserInfo
from ostiary.plugins.ldap.connection import LdapEntry
from ostiary.plugins.ldap.settings import UserSearch

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
