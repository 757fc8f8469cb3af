"""The groups that somebody is in though no provider attested them, as Kubernetes adds them.

    to who is known                             system:authenticated
    to whom somebody impersonates, besides      system:unauthenticated for system:anonymous; those of its kind and its
                                                namespace for a service account that no group is asked for

The one place for it. The authorizer completes every user here before it asks a provider; TokenReview answers, whoami,
self reviews and audit events tell the same groups. What is sent to an API server by impersonation is the opposite: the
API server adds these groups itself, and asks for a permission for each group that it is told.
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
    """The groups that *user* is in besides those that are attested: whoever is known is ``system:authenticated``."""
    groups = user.groups
    is_known = user.username not in ("", ANONYMOUS)
    return (AUTHENTICATED,) if is_known and AUTHENTICATED not in groups and UNAUTHENTICATED not in groups else ()


def with_implied_groups(user: UserInfo) -> UserInfo:
    """*user* with all groups that count, the implied ones last."""
    implied = implied_groups(user)
    # Not by `replace`, which takes several times as long: it is asked for nearly every decision.
    return UserInfo(user.username, user.uid, (*user.groups, *implied), user.extra) if implied else user


def complete_impersonated(user: UserInfo) -> UserInfo:
    """*user* as an API server completes whomever it is asked to impersonate."""
    if user.username == ANONYMOUS:
        return user if UNAUTHENTICATED in user.groups else replace(user, groups=(*user.groups, UNAUTHENTICATED))
    account = None if user.groups else service_account(user.username)
    return with_implied_groups(user if account is None else replace(user, groups=service_account_groups(account[0])))


def groups_to_impersonate(user: UserInfo) -> tuple[str, ...]:
    """The groups that an API server must be told so that it takes *user* for a member of the same groups as we do.

    None, or those without ``system:authenticated``, wherever the API server adds the rest itself. A service account of
    which only ``system:authenticated`` is known is told in full: without any group it would be a member of more.
    """
    wanted_groups = frozenset(with_implied_groups(user).groups)
    for groups in ((), tuple(group for group in user.groups if group != AUTHENTICATED)):
        if frozenset(complete_impersonated(replace(user, groups=groups)).groups) == wanted_groups:
            return groups
    return user.groups


def service_account(username: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that *username* names; None if it names none."""
    parts = _SERVICE_ACCOUNT.fullmatch(username)
    return None if parts is None else (parts[1], parts[2])


def service_account_groups(namespace: str) -> tuple[str, str]:
    return _ACCOUNTS, f"{_ACCOUNTS}:{namespace}"


def is_service_account_group(name: str) -> bool:
    """Whether Kubernetes puts service accounts into this group."""
    namespace = name.removeprefix(f"{_ACCOUNTS}:")
    return name == _ACCOUNTS or (namespace != name and service_account(f"{_ACCOUNT}:{namespace}:any") is not None)
