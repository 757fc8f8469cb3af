"""Names of the gateway's own service accounts, as users and groups.

    ostiary:serviceaccount:<namespace>:<name>      in the groups ostiary:serviceaccounts[:<namespace>]

They are not cluster service accounts (``system:serviceaccount:...``), which only the cluster can vouch for. Only the
gateway issues names that begin with ``ostiary:``: no identity or group provider may return such a name. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Prefix of names that only the gateway itself issues.
OWN_NAMES = "ostiary:"
ACCOUNT_PREFIX = f"{OWN_NAMES}serviceaccount:"
ACCOUNTS_GROUP = f"{OWN_NAMES}serviceaccounts"

LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
# As in Kubernetes: a namespace is a DNS label, a service account a DNS subdomain.
NAMESPACE_PATTERN = LABEL
NAME_PATTERN = rf"(?=.{{1,253}}$){LABEL}(?:\.{LABEL})*"
_NAMESPACE = re.compile(NAMESPACE_PATTERN, re.ASCII)
_NAME = re.compile(NAME_PATTERN, re.ASCII)


class AccountName(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def username(self) -> str:
        return f"{ACCOUNT_PREFIX}{self.namespace}:{self.name}"

    @property
    def groups(self) -> tuple[str, str]:
        return ACCOUNTS_GROUP, f"{ACCOUNTS_GROUP}:{self.namespace}"


def checked_account_name(namespace: str, name: str) -> AccountName:
    """Return the account name; raises `ValueError` if it is not valid in Kubernetes."""
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            "the namespace must be 1 to 63 small letters, digits and dashes, with a letter or digit at both ends"
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            "the name must be 1 to 253 small letters, digits, dashes and dots, with a letter or digit at both ends"
            " of each part"
        )
    return AccountName(namespace, name)


def parse_account_name(text: str) -> AccountName:
    """Parse ``NAMESPACE/NAME``; raises `ValueError`."""
    namespace, slash, name = text.partition("/")
    if not slash:
        raise ValueError("write a service account as NAMESPACE/NAME")
    return checked_account_name(namespace, name)


def account_of(username: str) -> AccountName | None:
    """Return the service account of *username*; None for any other user."""
    if not username.startswith(ACCOUNT_PREFIX):
        return None
    namespace, _, name = username.removeprefix(ACCOUNT_PREFIX).partition(":")
    try:
        return checked_account_name(namespace, name)
    except ValueError:
        return None


def is_account_group(name: str) -> bool:
    """Return whether *name* is a group of service accounts."""
    namespace = name.removeprefix(f"{ACCOUNTS_GROUP}:")
    return name == ACCOUNTS_GROUP or (name != namespace and _NAMESPACE.fullmatch(namespace) is not None)
