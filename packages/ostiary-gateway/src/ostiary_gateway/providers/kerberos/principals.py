"""Kerberos principals, and their mapping to usernames.

    alice@EXAMPLE.COM        alice
    alice@PARTNER.COM        alice@PARTNER.COM      (realms: [..., {name: PARTNER.COM, suffix: "@PARTNER.COM"}])
    alice/admin@EXAMPLE.COM  denied                 (alice/admin, with instances: [admin])

Two principals never get the same username, and each username maps back to its principal, which refreshes check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostiary.errors import LoginRefused

# A component of a principal, with the escapes of the Kerberos library.
_COMPONENT = re.compile(r"(?:[^\\/@\0]|\\.)*", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "b": "\b", "0": "\0"}
# If a name contained one of these, the prefix or suffix of a realm could be part of the name.
_RESERVED = frozenset(":@/\\")


@dataclass(frozen=True, slots=True)
class Principal:
    components: tuple[str, ...]
    realm: str

    def __str__(self) -> str:
        return "/".join(map(_escape, self.components)) + "@" + _escape(self.realm)


@dataclass(frozen=True, slots=True)
class Realm:
    """A realm whose users may sign in. The username is `prefix`, name, `suffix`.

    A prefix ends with a colon, and a suffix begins with ``@``. With `lowercase`, names that differ only in case are the
    same user, as in Active Directory.
    """

    name: str
    prefix: str = ""
    suffix: str = ""
    lowercase: bool = False


class PrincipalNames:
    """Map principals of *realms* to usernames. A name may have one of *instances*: ``alice/admin``."""

    def __init__(self, realms: Sequence[Realm], *, instances: Iterable[str] = ()) -> None:
        self._realms = {realm.name: realm for realm in realms}
        self._instances = frozenset(instances)

    def username(self, principal: Principal) -> str:
        """Return the username. Raise `LoginRefused` for a principal that may not sign in."""
        realm = self._realms.get(principal.realm)
        if realm is None:
            raise _refusal(principal, "its realm is not among the realms of the provider")
        name, *instance = principal.components or ("",)
        if len(instance) > 1 or (instance and instance[0] not in self._instances):
            raise _refusal(principal, "it is a service or has an instance that is not among the instances")
        if not is_plain(name):
            raise _refusal(principal, "its name has characters that are not accepted")
        if name.endswith("$"):
            raise _refusal(principal, "it is the account of a computer or of a managed service")
        name = name.lower() if realm.lowercase else name
        return realm.prefix + "/".join((name, *instance)) + realm.suffix

    def principal(self, username: str) -> Principal | None:
        """Return the principal with this *username*, or None if no configured realm has one."""
        for realm in self._realms.values():
            if not username.startswith(realm.prefix) or not username.endswith(realm.suffix):
                continue
            name = username[len(realm.prefix) : len(username) - len(realm.suffix)]
            principal = Principal(tuple(name.split("/")), realm.name)
            try:
                if self.username(principal) == username:
                    return principal
            except LoginRefused:
                continue
        return None


def is_plain(name: str) -> bool:
    return name.isprintable() and name == name.strip() != "" and _RESERVED.isdisjoint(name)


def parse_principal(text: str) -> Principal | None:
    """Parse a principal, with its realm, as written by the Kerberos library. None if it is invalid."""
    components, position = [], 0
    while True:
        match = _COMPONENT.match(text, position)
        assert match is not None
        components.append(_unescape(match[0]))
        position = match.end()
        if position == len(text):
            break
        if text[position] == "@":
            realm = _COMPONENT.fullmatch(text, position + 1)
            return None if realm is None or not realm[0] else Principal(tuple(components), _unescape(realm[0]))
        if text[position] != "/":
            return None
        position += 1
    return None


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPED.get(match[1], match[1]), text, flags=re.DOTALL)


def _escape(text: str) -> str:
    for char, escaped in {"\\": "\\\\", "/": "\\/", "@": "\\@", "\n": "\\n", "\t": "\\t", "\b": "\\b"}.items():
        text = text.replace(char, escaped)
    return text.replace("\0", "\\0")


def _refusal(principal: Principal, cause: str) -> LoginRefused:
    return LoginRefused(
        "your Kerberos principal may not sign in here: ask the administrator of this gateway",
        cause=f"{str(principal)!a}: {cause}",
    )
