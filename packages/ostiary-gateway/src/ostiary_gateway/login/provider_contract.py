"""Validation of provider results. Violations of the contract are reported to the operator and sign no user in.

Names that begin with ``system:`` are reserved for Kubernetes, and denied for every provider. Only a provider that is
bound to the cluster behind the gateway may name that cluster's service accounts. No side effects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlsplit

from ostiary.core.account_names import OWN_NAMES
from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.authorization.implied_groups import service_account, service_account_groups
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import AsksAgain, BoundToCluster, Identified, SignsOutElsewhere
from ostiary_gateway.login.groups import SYSTEM, ContractBroken, ProviderUser
from ostiary_gateway.sessions import origins_of


def checked_pairs(value: object, provider: str) -> tuple[tuple[str, str], ...]:
    if isinstance(value, (tuple, list)) and all(_is_pair(item) for item in value):
        return tuple((key, text) for key, text in value)
    summary = f'the provider "{provider}" breaks its contract'
    raise ContractBroken(summary, cause="the values to remember are not pairs of strings")


def _is_pair(item: object) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item)


@dataclass(frozen=True, slots=True)
class IdentifiedUser:
    """The user that a provider identified, the state it stores for the session, and the origin of the sign-in.

    `sequence` is the number of the last revocation when the sign-in started: a logout in the meantime ends it. `until`
    is when the IdP ends the sign-in, if it says so. `www_authenticate` is sent with the response to the client.
    """

    user: UserInfo
    kept: Secret | None = None
    origins: tuple[str, ...] = ()
    sign_out_hint: Secret | None = None
    sequence: int | None = None
    until: datetime | None = None
    www_authenticate: str = ""


def identity_of(provider: Identity, answer: object) -> IdentifiedUser:
    if not isinstance(answer, Identified):
        return IdentifiedUser(user_of(provider, answer))
    kept, hint = answer.kept, answer.sign_out_hint
    if kept is not None and (not isinstance(kept, Secret) or ability(provider.instance, AsksAgain) is None):
        cause = "it returned a value to keep that is not a Secret, or that it cannot use for a refresh"
        raise contract_broken(provider, cause)
    if hint is not None and (not isinstance(hint, Secret) or ability(provider.instance, SignsOutElsewhere) is None):
        raise contract_broken(provider, "it returned a sign-out hint that is not a Secret, or that it cannot use")
    names = (answer.session_id, answer.subject)
    if not all(isinstance(name, str) for name in names):
        raise contract_broken(provider, "its names for the sign-in are not strings")
    until: object = answer.session_until
    if until is not None and (not isinstance(until, datetime) or until.tzinfo is None):
        raise contract_broken(provider, "the end of its session is not a time with a time zone")
    origins = origins_of(provider.name, session_id=answer.session_id, subject=answer.subject)
    proof = header_value(provider, answer.www_authenticate) if answer.www_authenticate else ""
    return IdentifiedUser(user_of(provider, answer.user), kept, origins, hint, until=until, www_authenticate=proof)


def user_of(provider: Identity, answer: object) -> UserInfo:
    """Return *answer* as a user. Anything but one complete user breaks the contract."""
    if not isinstance(answer, UserInfo):
        raise contract_broken(provider, f"it answered with {type(answer).__name__}, instead of a user")
    texts = (answer.username, answer.uid, *answer.groups)
    if not all(isinstance(text, str) for text in texts) or answer.username == "":
        raise contract_broken(provider, "it returned a user without a name, or a field that is not a string")
    return answer


def provider_user_of(provider: Identity, own: UserInfo, prefixes: Iterable[str]) -> ProviderUser:
    """Return the user under the provider's own name and under the name in tokens.

    The only place that builds a username. *prefixes* are those of all identity providers: a username that begins with
    several of them belongs to the provider with the longest one, and is denied for the others.
    """
    if service_account(own.username) is not None and _is_bound(provider):
        return ProviderUser(provider.name, own, own)
    username = provider.prefix + own.username
    for prefix in prefixes:
        if len(prefix) > len(provider.prefix) and username.startswith(prefix):
            cause = f'"{provider.name}" returned a name that begins with the prefix of another identity provider'
            raise LoginRefused("this name belongs to another identity provider", cause=f'{cause}, "{prefix}"')
    if username.startswith(SYSTEM):
        raise LoginRefused("this name is reserved", cause=f'"{provider.name}" returned a reserved system name')
    if username.startswith(OWN_NAMES):
        cause = f'"{provider.name}" returned a name that only the gateway itself gives out'
        raise LoginRefused("this name is reserved", cause=cause)
    return ProviderUser(provider.name, own, replace(own, username=username))


def _is_bound(provider: Identity) -> bool:
    """Report whether its users may be service accounts of the cluster behind the gateway.

    `config.checks` checks which.
    """
    binding = ability(provider.instance, BoundToCluster)
    return binding is not None and binding.bound_cluster != ""


def checked_url(url: object, provider: str) -> str:
    """Check the URL that a provider redirects a browser to: it must be http or https."""
    try:
        is_text = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
        parts = urlsplit(str(url)) if is_text else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        cause = "its redirect is not an http or https URL"
        raise ContractBroken(f'the provider "{provider}" breaks its contract', cause=cause)
    return str(url)


def header_value(provider: Identity, text: object) -> str:
    if not isinstance(text, str) or not text or not text.isprintable() or not text.isascii():
        raise contract_broken(provider, "its challenge is not a valid header")
    return text


def contract_broken(provider: Identity, cause: str) -> ContractBroken:
    return ContractBroken(f'the identity provider "{provider.name}" breaks its contract', cause=cause)


def account_groups(provider_user: ProviderUser) -> tuple[Membership, ...]:
    """Return the groups that Kubernetes gives to a service account.

    Only providers bound to a cluster have such users.
    """
    account = service_account(provider_user.user.username)
    if account is None:
        return ()
    source = f"{provider_user.identity}: service account"
    return tuple(Membership(group, source) for group in service_account_groups(account[0]))
