"""Look up the optional capabilities of providers.

    contract   what a provider of a type must have          `ostiary_gateway.interfaces`
    ability    optional methods or values: `revalidate`, `decide`, `probe`
    trait      a bool that says what it needs or implies: `shared_between_processes`, `proves_nothing`

Callers use `ability` and `has_trait`; `ostiary_gateway.contract_violations` checks a provider when it is built. Members
are read without evaluating properties, which may fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from ostiary.keys.device_key import KeyProvider
from ostiary_gateway.interfaces.admission import AdmissionProvider, CountsObjects
from ostiary_gateway.interfaces.attributes import (
    AttributesMapper,
    ReadsCapabilities,
    ReadsKubernetesPaths,
    RequiresMore,
    SplitsNames,
)
from ostiary_gateway.interfaces.audit import AuditProvider, Begins, ChoosesBatches, KeepsEventsInFile, RecordsAtOnce
from ostiary_gateway.interfaces.authorization import (
    AllowsEverything,
    AuthorizationProvider,
    ChoosesCacheKey,
    DecidesAtOnce,
    DecidesQuickly,
    Explains,
    HidesDenied,
    LintsPolicy,
    ListsGrants,
    ListsRules,
    ListsSubjects,
    NameIndependent,
    NamesSubjects,
    Revised,
    TellsRights,
)
from ostiary_gateway.interfaces.group import ChecksUsers, GroupProvider, KeepsGroups, ListsGroups
from ostiary_gateway.interfaces.identity import (
    AsksAgain,
    BoundToCluster,
    IdentityProvider,
    NeedsClientCertificate,
    PublishesMetadata,
    ReturnsByPost,
    Revalidates,
    SignsOutElsewhere,
    StepsUp,
    TakesLogouts,
    TellsRenewalCheck,
    TellsSignIn,
    TellsWhatItProduces,
    Unauthenticated,
    VerifiesTokens,
)
from ostiary_gateway.interfaces.lifecycle import Closes, Probes, ProbesRedirectUri
from ostiary_gateway.interfaces.resources import ServesResources
from ostiary_gateway.interfaces.store_capabilities import (
    CountsStoredObjects,
    CountStore,
    ExaminesStore,
    NoteStore,
    ObjectStore,
    OwnedStore,
    PagesSessions,
    PortableStore,
)
from ostiary_gateway.interfaces.token_store import (
    KeptInFile,
    OriginStore,
    RecordStore,
    SharedBetweenProcesses,
    SurvivesRestart,
    TokenStore,
)
from ostiary_gateway.interfaces.upstream_capabilities import FollowsUpstream

P = TypeVar("P")

CONTRACTS: Mapping[str, type] = MappingProxyType(
    {
        "identity": IdentityProvider,
        "group": GroupProvider,
        "authorization": AuthorizationProvider,
        "admission": AdmissionProvider,
        "token_store": TokenStore,
        "attributes": AttributesMapper,
        "audit": AuditProvider,
        "key": KeyProvider,
    }
)
# Mappers have no external system, and a store is closed by its contract.
_OUTSIDE = (Probes, Closes)
ABILITIES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "identity": (
            *(Revalidates, AsksAgain, TellsRenewalCheck, TellsSignIn, TellsWhatItProduces),
            *(VerifiesTokens, BoundToCluster, ServesResources, TakesLogouts, SignsOutElsewhere),
            *(PublishesMetadata, ProbesRedirectUri),
            *_OUTSIDE,
        ),
        "group": (ChecksUsers, KeepsGroups, ListsGroups, ServesResources, *_OUTSIDE),
        "authorization": (
            *(DecidesAtOnce, Revised, ChoosesCacheKey, Explains, ListsRules, ListsSubjects, ListsGrants),
            *(TellsRights, NameIndependent, NamesSubjects, LintsPolicy, ServesResources, FollowsUpstream),
            *_OUTSIDE,
        ),
        "admission": (CountsObjects, ServesResources, *_OUTSIDE),
        "token_store": (
            *(RecordStore, KeptInFile, NoteStore, CountStore, OwnedStore, ObjectStore, PortableStore, ExaminesStore),
            *(OriginStore, PagesSessions, CountsStoredObjects, Probes),
        ),
        "attributes": (RequiresMore, ReadsCapabilities, SplitsNames, Closes),
        "audit": (Begins, RecordsAtOnce, ChoosesBatches, KeepsEventsInFile, *_OUTSIDE),
        "key": (),
    }
)
TRAITS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "identity": (Unauthenticated, NeedsClientCertificate, ReturnsByPost, StepsUp, SharedBetweenProcesses),
        "group": (SharedBetweenProcesses,),
        "authorization": (AllowsEverything, HidesDenied, DecidesQuickly, SharedBetweenProcesses),
        "admission": (SharedBetweenProcesses,),
        "token_store": (SharedBetweenProcesses, SurvivesRestart),
        "attributes": (ReadsKubernetesPaths,),
        "audit": (),
        "key": (),
    }
)


def members(protocol: type) -> tuple[str, ...]:
    """Return the methods and values that *protocol* requires, in the order of its class."""
    names = dict.fromkeys(name for name in vars(protocol) if not name.startswith("_"))
    names |= dict.fromkeys(inspect.get_annotations(protocol))
    return tuple(names)


_PROTOCOLS = {
    protocol for protocols in (CONTRACTS.values(), *ABILITIES.values(), *TRAITS.values()) for protocol in protocols
}
_MEMBERS = MappingProxyType({protocol: members(protocol) for protocol in _PROTOCOLS})
# Names with a meaning for the gateway, if only in a provider of another type.
KNOWN_NAMES = frozenset(name for names in _MEMBERS.values() for name in names) | {"from_config", "from_address"}


# Lookup.


def ability(provider: object, protocol: type[P]) -> P | None:
    """Return *provider* as *protocol* if it has that capability, or None. A method set to None counts as absent."""
    return provider if _has(provider, protocol) else None  # type: ignore[return-value]  # as the members say


def has_trait(provider: object, protocol: type) -> bool:
    """Whether *provider* declares the bool and it is True."""
    (name,) = _MEMBERS[protocol]
    return _has(provider, protocol) and getattr(provider, name) is True


def _has(provider: object, protocol: type) -> bool:
    return all(raw_member(provider, name) is not None for name in _MEMBERS[protocol])


def raw_member(provider: object, name: str) -> object:
    """Return the member as it is stored, without evaluating a property. None if there is none, or it is None."""
    member: object = inspect.getattr_static(provider, name, None)
    if member is None and inspect.getattr_static(type(provider), "__getattr__", None) is not None:
        # A wrapper around another provider, which delegates missing attributes.
        return getattr(provider, name, None)
    return member


# Listing.


@dataclass(frozen=True, slots=True)
class Description:
    """What a provider's class declares: members of optional Protocols, and bools; None if an instance decides."""

    abilities: tuple[str, ...]
    traits: Mapping[str, bool | None]


def describe(plugin_type: str, provider: type) -> Description:
    """Describe *provider*. Members that only instances have are not found, unless the class annotates them."""
    annotated = {name for each in provider.__mro__ for name in inspect.get_annotations(each)}
    abilities = tuple(
        name
        for protocol in ABILITIES[plugin_type]
        for name in members(protocol)
        if name in annotated or raw_member(provider, name) is not None
    )
    traits = {
        name: value if isinstance(value := raw_member(provider, name), bool) else None
        for protocol in TRAITS[plugin_type]
        for name in members(protocol)
        if name in annotated or raw_member(provider, name) is not None
    }
    return Description(abilities, traits)
