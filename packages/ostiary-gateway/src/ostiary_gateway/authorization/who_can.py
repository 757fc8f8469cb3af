"""The users that the configured providers can sign in, and their groups.

    identity providers, with their prefixes  ->  the usernames that tokens can have
    group providers, with their prefixes     ->  the groups that tokens can have

``ostiary-gateway impersonation-role`` uses it to limit whom the gateway can impersonate; ``serve --check`` and ``policy
lint`` find lines that match no user. A provider that cannot list its users or groups can produce any name with its
prefix except those of the system: the gateway accepts these from no provider, apart from service accounts of a provider
that is bound to the cluster behind it.
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

# Names reserved by Kubernetes.
SYSTEM = "system:"


@dataclass(frozen=True, slots=True)
class NameSource:
    """A provider, its prefix, and its names without the prefix; None if they cannot be listed."""

    provider: str
    prefix: str = ""
    names: frozenset[str] | None = None

    def can_produce(self, name: str) -> bool:
        own = name[len(self.prefix) :]
        return name.startswith(self.prefix) and own != "" and (self.names is None or own in self.names)


@dataclass(frozen=True, slots=True)
class Member:
    """A user in a group that a group provider lists, with the position of the entry."""

    username: str
    group: str
    place: Place


@dataclass(frozen=True, slots=True)
class PossibleSubjects:
    """The possible users and groups. `uid` and `extra` are what else tokens can contain.

    `members` are those that group providers list. `anybody`: a cluster uses the webhook for its own users and
    workloads, so the policy may name any of them. `service_accounts`: a provider authenticates those of the cluster
    behind the gateway.
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
                # If it is the identity provider, too, it lists its members without the prefix.
                if not provider.own
                for group in groups or ()
                for name in sorted(group.members)
            ),
            anybody=config.webhooks.subject_access_review,
            service_accounts=any(bound_cluster(identity) for identity in config.identity),
        )

    def can_be_user(self, name: str) -> bool:
        if name.startswith(OWN_NAMES):
            # Accounts are created at run time, so every valid account name is possible.
            return account_of(name) is not None
        if name.startswith(SYSTEM):
            return self.service_accounts and service_account(name) is not None
        return any(source.can_produce(name) for source in self.owners(name))

    def owners(self, name: str) -> list[NameSource]:
        """Return the identity providers to which the name belongs: those with the longest matching prefix."""
        fitting = [source for source in self.users if name.startswith(source.prefix)]
        longest = max((len(source.prefix) for source in fitting), default=0)
        return [source for source in fitting if len(source.prefix) == longest]

    def can_be_group(self, name: str) -> bool:
        """Whether a signed-in user can be in the group; all of them are in ``system:authenticated``."""
        if name.startswith(SYSTEM):
            return name == AUTHENTICATED or (self.service_accounts and is_service_account_group(name))
        if name.startswith(OWN_NAMES):
            return is_account_group(name)
        return any(source.can_produce(name) for source in self.groups)

    def can_be_service_account(self, subject: Subject) -> bool:
        """Whether a service account that signs in can be *subject*, or be in it."""
        if not self.service_accounts:
            return False
        is_account = service_account(subject.name) is not None
        return {"User": is_account, "Group": is_service_account_group(subject.name)}.get(
            subject.kind, subject.kind == "ServiceAccount"
        )

    def usernames(self) -> frozenset[str]:
        """Return all usernames of the providers that can list theirs."""
        every = (source.prefix + name for source in self.users for name in source.names or ())
        return frozenset(name for name in every if self.can_be_user(name))

    @property
    def unlisted(self) -> tuple[str, ...]:
        """The identity providers that cannot list their users."""
        return tuple(source.provider for source in self.users if source.names is None)

    def near_user(self, name: str) -> str | None:
        """Return the likely intended name for an impossible one: the same name with a prefix."""
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
    # A group without members has no users.
    return frozenset(group.name for group in groups if group.members)


def _ask(ability: Callable[[], object]) -> object:
    try:
        return ability()
    except Exception:
        # Loading the configuration reports the unreadable file. Here the names are unknown, so every name is possible.
        return None
