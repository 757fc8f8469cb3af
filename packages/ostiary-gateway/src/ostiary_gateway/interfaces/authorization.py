"""Authorization providers: decide whether a user may perform a request."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Attributes, Decision, Place, Problem, UserInfo


class AuthorizationProvider(Protocol):
    """Decide whether a user may perform a request. The provider owns its policy and its storage.

    The gateway calls `authorize` concurrently, after authentication, for every request without a cached decision. The
    first ALLOW or DENY of a chain ends it; NO_OPINION continues; the end of the chain denies. `hidden` on a denial
    turns the 403 into a 404 if the operator has set ``authorization.hideDenied``, and is ignored otherwise. Raise if no
    decision can be determined: the request fails with a 500, and nothing is cached.

    `relevant_groups` returns every group that the policy mentions; group providers are queried for these only. An
    exception there fails logins, because a token without its groups would be wrong.
    """

    async def authorize(self, attributes: Attributes) -> Decision: ...

    async def relevant_groups(self) -> frozenset[str]: ...


@runtime_checkable
class DecidesAtOnce(Protocol):
    """A provider that decides synchronously: the gateway calls `decide` instead of `authorize`."""

    def decide(self, attributes: Attributes) -> Decision: ...


@runtime_checkable
class Revised(Protocol):
    """A provider with a policy revision: decisions of an older revision are invalidated immediately."""

    @property
    def revision(self) -> int: ...


@runtime_checkable
class ChoosesCacheKey(Protocol):
    """A provider that knows which attributes matter: equal keys share one cached decision."""

    def cache_key(self, attributes: Attributes) -> Hashable: ...


@runtime_checkable
class NameIndependent(Protocol):
    """A provider that knows whether its decision depends on the name of the object.

    If not, the gateway uses a cached decision for other objects as well: for the same user, verb, resource,
    subresource, namespace, selectors and upstream. `path`, which contains the name, may differ too.
    """

    def name_matters(self, attributes: Attributes) -> bool: ...


@dataclass(frozen=True, slots=True)
class ResourceRule:
    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NonResourceRule:
    verbs: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a user may do in a namespace, as in a SelfSubjectRulesReview."""

    resource_rules: tuple[ResourceRule, ...] = ()
    non_resource_rules: tuple[NonResourceRule, ...] = ()
    incomplete: bool = False
    error: str = ""


@runtime_checkable
class ListsRules(Protocol):
    """A provider that can list what a user may do in a namespace, for ``kubectl auth can-i --list``."""

    def rules_for(self, user: UserInfo, namespace: str) -> Rules: ...


@runtime_checkable
class TellsRights(Protocol):
    """A provider that knows whether a user has any rights, to offer only clusters that the user can access.

    Return True if the policy allows the user anything, in any namespace, in addition to discovery, self reviews
    and the built-in API. Without it, the gateway evaluates a few requests that most users of a cluster make.
    """

    def gives_rights(self, user: UserInfo) -> bool: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of a policy: `kind` is User, Group or ServiceAccount; `via` is the binding or policy."""

    kind: str
    name: str
    namespace: str = ""
    via: str = ""


@runtime_checkable
class ListsSubjects(Protocol):
    """A provider that can list all subjects that may perform a request; the user in the attributes is ignored."""

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]: ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, the rule that made it or came closest, and what would change it.

    `closest` is the rule or binding, `failed` its one condition that was not met, `remedy` the smallest manifest or
    policy text that would allow the request. All are for the operator, never for the caller.
    """

    decision: Decision
    closest: str = ""
    failed: str = ""
    remedy: str = ""


@runtime_checkable
class Explains(Protocol):
    """A provider that can explain its decisions, for ``ostiary-gateway policy explain``."""

    def explain(self, attributes: Attributes) -> Explanation: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule that a policy grants to a subject.

    `namespace` is where it applies, as the policy writes it: a request with exactly this namespace matches. `upstream`
    is set by the gateway for a policy of particular upstreams.
    """

    subject: Subject
    rule: ResourceRule | NonResourceRule
    namespace: str = ""
    upstream: str = ""


@runtime_checkable
class ListsGrants(Protocol):
    """A provider that can list its complete policy as (subject, rule), so that two policies can be compared."""

    def grants(self) -> tuple[Grant, ...]: ...


@runtime_checkable
class NamesSubjects(Protocol):
    """A provider that can list the subjects of its policy, with positions. Lines that match no user are reported."""

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]: ...


class Level(Enum):
    """ERROR: it does not work as written. WARNING: it probably does something other than intended."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """A lint result. `rule` is the check that found it, and is stable across releases."""

    level: Level
    rule: str
    problem: Problem


@runtime_checkable
class LintsPolicy(Protocol):
    """A provider whose policy is in files: its class can lint such files, also ones that are not in use."""

    @staticmethod
    def lint(paths: Iterable[str | os.PathLike[str]]) -> tuple[Finding, ...]:
        """Return errors and warnings. Never raises for the content of the files."""


@runtime_checkable
class AllowsEverything(Protocol):
    """Declares that the provider allows every request of every user.

    The gateway warns about it at every start, and does not listen beyond localhost if users are not authenticated
    either (`ostiary_gateway.interfaces.identity.Unauthenticated`). A provider without it is assumed to deny some
    requests.
    """

    allows_everything: bool


@runtime_checkable
class HidesDenied(Protocol):
    """Declares that the provider is configured to hide what it denies (`Decision.hidden`).

    The configuration is rejected if ``authorization.hideDenied`` is off, because hiding would have no effect.
    """

    hides_denied: bool


@runtime_checkable
class DecidesQuickly(Protocol):
    """Declares that `DecidesAtOnce.decide` takes a few microseconds at most.

    Caching such decisions costs more than making them, so they are not cached; `cache_key` then serves only callers
    that evaluate many requests together. The lifetime of a decision for a request is the same as for other providers.
    """

    decides_quickly: bool
