"""Which users the configured providers can sign in, and in which groups.

    identity providers, with their prefixes  ->  the usernames that tokens can name
    group providers, with their prefixes     ->  the groups that tokens can attest

Used by ``ostiary-gateway impersonation-role``, so that a gateway can become nobody else, and by ``ostiary-gateway serve
--check`` and ``ostiary-gateway policy lint`` to tell lines that can match nobody. A provider that cannot list its users
or groups can produce every name that begins with its prefix, but none of the system's: the gateway accepts those from
no provider, service accounts from one that is bound to the cluster behind it excepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ostiary.core.account_names import ACCOUNT_PREFIX, OWN_NAMES, account_of, is_account_group
from ostiary.model import Place
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, is_service_account_group, service_account
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.checks import bound_cluster
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.interfaces.group import ListedGroup, ListsGroups
from ostiary_gateway.interfaces.identity import Produces, TellsWhatItProduces

# Names that Kubernetes gives out itself.
SYSTEM = "system:"


@dataclass(frozen=True, slots=True)
class NameSource:
    """A provider, the prefix of its names, and all of its names without the prefix; None if they cannot be listed."""

    provider: str
    prefix: str = ""
    names: frozenset[str] | None = None

    def can_produce(self, name: str) -> bool:
        own = name[len(self.prefix) :]
        return name.startswith(self.prefix) and own != "" and (self.names is None or own in self.names)


@dataclass(frozen=True, slots=True)
class Member:
    """Somebody in a group that a group provider lists, and where."""

    username: str
    group: str
    place: Place


@dataclass(frozen=True, slots=True)
class PossibleSubjects:
    """`uid` and `extra` tell what else tokens can say of users. `members` are those that group providers list.

    `anybody`: a cluster asks by webhook about its own users and programs, so the policy may name any of them.
    `service_accounts`: a provider names those of the cluster behind the gateway.
    """

    users: tuple[NameSource, ...] = ()
    groups: tuple[NameSource, ...] = ()
    uid: bool = False
    extra: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    anybody: bool = False
    service_accounts: bool = False

    @classmethod
    def from_config(cls, config: GatewayConfig) -> PossibleSubjects:
        produced = [(identity, _produces(identity)) for identity in config.identity]
        listed = [(provider, _members(provider)) for provider in config.groups]
        return cls(
            users=(
                *(NameSource(identity.name, identity.prefix, produces.usernames) for identity, produces in produced),
                *_declared_accounts(config),
            ),
            groups=tuple(
                NameSource(provider.name, provider.prefix, None if groups is None else _names(groups))
                for provider, groups in listed
            ),
            uid=any(produces.uid for _, produces in produced),
            extra=tuple(sorted({key for _, produces in produced for key in produces.extra})),
            members=tuple(
                Member(name, group.name, group.place)
                for provider, groups in listed
                # A provider that is the identity provider too lists its members without the prefix.
                if not provider.own
                for group in groups or ()
                for name in sorted(group.members)
            ),
            anybody=config.webhooks.subject_access_review,
            service_accounts=any(bound_cluster(identity) for identity in config.identity),
        )

    def can_be_user(self, name: str) -> bool:
        if name.startswith(OWN_NAMES):
            # Accounts are made while the gateway runs, so every name that one can have is possible.
            return account_of(name) is not None
        if name.startswith(SYSTEM):
            return self.service_accounts and service_account(name) is not None
        return any(source.can_produce(name) for source in self.owners(name))

    def owners(self, name: str) -> list[NameSource]:
        """Whose user would have the username *name*: the identity provider with the longest prefix that fits."""
        fitting = [source for source in self.users if name.startswith(source.prefix)]
        longest = max((len(source.prefix) for source in fitting), default=0)
        return [source for source in fitting if len(source.prefix) == longest]

    def can_be_group(self, name: str) -> bool:
        """Whether somebody who signed in can be in it; everybody is ``system:authenticated``."""
        if name.startswith(SYSTEM):
            return name == AUTHENTICATED or (self.service_accounts and is_service_account_group(name))
        if name.startswith(OWN_NAMES):
            return is_account_group(name)
        return any(source.can_produce(name) for source in self.groups)

    def can_be_service_account(self, subject: Subject) -> bool:
        """Whether a service account that signs in is *subject*, or in it."""
        if not self.service_accounts:
            return False
        is_account = service_account(subject.name) is not None
        return {"User": is_account, "Group": is_service_account_group(subject.name)}.get(
            subject.kind, subject.kind == "ServiceAccount"
        )

    def usernames(self) -> frozenset[str]:
        """All usernames of the providers that can list theirs."""
        every = (source.prefix + name for source in self.users for name in source.names or ())
        return frozenset(name for name in every if self.can_be_user(name))

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The identity providers that cannot list their users."""
        return tuple(source.provider for source in self.users if source.names is None)

    def near_user(self, name: str) -> str | None:
        """What a username that nobody can have was likely meant to be: the same with a prefix."""
        return _near(name, self.users, self.can_be_user)

    def near_group(self, name: str) -> str | None:
        return _near(name, self.groups, self.can_be_group)


def _declared_accounts(config: GatewayConfig) -> tuple[NameSource, ...]:
    names = frozenset(f"{each.namespace}:{each.name}" for each in config.service_accounts.declared)
    return (NameSource("serviceAccounts", ACCOUNT_PREFIX, names),) if names else ()


def _near(name: str, sources: Iterable[NameSource], possible: Callable[[str], bool]) -> str | None:
    candidates = (source.prefix + name for source in sources if source.prefix)
    return next((candidate for candidate in candidates if possible(candidate)), None)


def _produces(identity: Identity) -> Produces:
    provider = ability(identity.instance, TellsWhatItProduces)
    answer = None if provider is None else _ask(provider.produces)
    return answer if isinstance(answer, Produces) else Produces()


def _members(groups: Groups) -> tuple[ListedGroup, ...] | None:
    provider = ability(groups.instance, ListsGroups)
    answer = None if provider is None else _ask(provider.listed_groups)
    return answer if isinstance(answer, tuple) else None


def _names(groups: Iterable[ListedGroup]) -> frozenset[str]:
    # Nobody can be in a group that has no members.
    return frozenset(group.name for group in groups if group.members)


def _ask(ability: Callable[[], object]) -> object:
    try:
        return ability()
    except Exception:
        # Loading the configuration reports the unreadable file. Here nothing is listed, so every name is possible.
        return None
