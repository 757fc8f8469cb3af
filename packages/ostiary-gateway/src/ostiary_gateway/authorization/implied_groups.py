"""Groups that are implied and not attested by a provider, like in Kubernetes.

    authenticated users              system:authenticated
    impersonated users, in addition  system:unauthenticated for system:anonymous; the service account groups for a
                                     service account without requested groups

The only place for this: authorization, TokenReviews, whoami, self reviews and audit events use the same groups.
Impersonation at an API server is the reverse: the API server adds these groups itself, and requires a permission for
each group that it is sent.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ostiary.model import UserInfo

AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = "system:anonymous"
_ACCOUNT, _ACCOUNTS = "system:serviceaccount", "system:serviceaccounts"

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE_ACCOUNT = re.compile(rf"system:serviceaccount:({_LABEL}):((?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*)", re.ASCII)


def implied_groups(user: UserInfo) -> tuple[str, ...]:
    """Return the implied groups of *user*: ``system:authenticated`` for an authenticated user."""
    groups = user.groups
    is_known = user.username not in ("", ANONYMOUS)
    return (AUTHENTICATED,) if is_known and AUTHENTICATED not in groups and UNAUTHENTICATED not in groups else ()


def with_implied_groups(user: UserInfo) -> UserInfo:
    """Return *user* with all groups, the implied ones last."""
    implied = implied_groups(user)
    # Not `replace`, which takes several times as long: this runs for nearly every decision.
    return UserInfo(user.username, user.uid, (*user.groups, *implied), user.extra) if implied else user


def complete_impersonated(user: UserInfo) -> UserInfo:
    """Return *user* with the groups that an API server adds to an impersonated user."""
    if user.username == ANONYMOUS:
        return user if UNAUTHENTICATED in user.groups else replace(user, groups=(*user.groups, UNAUTHENTICATED))
    account = None if user.groups else service_account(user.username)
    return with_implied_groups(user if account is None else replace(user, groups=service_account_groups(account[0])))


def groups_to_impersonate(user: UserInfo) -> tuple[str, ...]:
    """Return the groups to send to an API server so that the impersonated *user* has the same groups there as here.

    None, or those without ``system:authenticated``, if the API server adds the rest itself. For a service account with
    only ``system:authenticated`` all groups are sent: without any group the API server would add more.
    """
    wanted_groups = frozenset(with_implied_groups(user).groups)
    for groups in ((), tuple(group for group in user.groups if group != AUTHENTICATED)):
        if frozenset(complete_impersonated(replace(user, groups=groups)).groups) == wanted_groups:
            return groups
    return user.groups


def service_account(username: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account *username*; None if it is none."""
    parts = _SERVICE_ACCOUNT.fullmatch(username)
    return None if parts is None else (parts[1], parts[2])


def service_account_groups(namespace: str) -> tuple[str, str]:
    return _ACCOUNTS, f"{_ACCOUNTS}:{namespace}"


def is_service_account_group(name: str) -> bool:
    """Whether this is a group that Kubernetes adds to service accounts."""
    namespace = name.removeprefix(f"{_ACCOUNTS}:")
    return name == _ACCOUNTS or (namespace != name and service_account(f"{_ACCOUNT}:{namespace}:any") is not None)
