"""Authorization providers: may they?"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from ostiary.model import Attributes, Decision, Place, Problem, UserInfo


class AuthorizationProvider(Protocol):
    """Decides whether a user may do something. It owns its policy and where that is kept.

    The gateway calls `authorize` after authentication, for every request whose decision it has not cached, from
    many requests at once. The first ALLOW or DENY of a chain ends it; NO_OPINION moves on; the end of the chain is
    a refusal. `hidden` on a refusal makes it a 404 in place of a 403 where the operator has set
    ``authorization.hideDenied``; without that it has no effect. Raise when the answer cannot be had: the
    request ends with a 500, and nothing is cached.

    `relevant_groups` names every group that the policy mentions. Group providers are asked about these only. An
    exception there makes logins fail, because a token without its groups would be a wrong one.
    """

    async def authorize(self, attributes: Attributes) -> Decision: ...

    async def relevant_groups(self) -> frozenset[str]: ...


@runtime_checkable
class DecidesAtOnce(Protocol):
    """A provider whose decision needs no waiting: the gateway calls this in place of `authorize`."""

    def decide(self, attributes: Attributes) -> Decision: ...


@runtime_checkable
class Revised(Protocol):
    """A provider that knows when its policy changes: decisions of an older revision are dropped at once."""

    @property
    def revision(self) -> int: ...


@runtime_checkable
class ChoosesCacheKey(Protocol):
    """A provider that knows which attributes matter: equal keys get the same cached decision."""

    def cache_key(self, attributes: Attributes) -> Hashable: ...


@runtime_checkable
class NameIndependent(Protocol):
    """A provider that knows whether its decision on a resource depends on the name of the object.

    Where it does not, the gateway uses the decision for other objects as well, as long as it may use it at all: for
    the same user, verb, resource, subresource, namespace, selectors and upstream. `path`, which has the name in it,
    may differ likewise.
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
    """What a user may do in a namespace, as a SelfSubjectRulesReview tells it."""

    resource_rules: tuple[ResourceRule, ...] = ()
    non_resource_rules: tuple[NonResourceRule, ...] = ()
    incomplete: bool = False
    error: str = ""


@runtime_checkable
class ListsRules(Protocol):
    """A provider that can list what a user may do in a namespace: ``kubectl auth can-i --list`` shows it."""

    def rules_for(self, user: UserInfo, namespace: str) -> Rules: ...


@runtime_checkable
class TellsRights(Protocol):
    """A provider that can tell whether a user may do anything at all: clusters are offered to those who can use them.

    True if its policy allows the user something, in any namespace, besides discovery, reviews of oneself and the
    gateway's own API. A provider without it is asked about a few requests that most users of a cluster make.
    """

    def gives_rights(self, user: UserInfo) -> bool: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """Somebody a policy names: `kind` is User, Group or ServiceAccount; `via` tells which binding or policy."""

    kind: str
    name: str
    namespace: str = ""
    via: str = ""


@runtime_checkable
class ListsSubjects(Protocol):
    """A provider that can list everyone who may do something; the user in the attributes does not matter."""

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]: ...


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why: the decision, the rule that made it or came closest, and what would change it.

    `closest` names the rule or binding, `failed` the one condition of it that did not hold, `remedy` the smallest
    manifest or policy text that would allow the request. All are for the operator, never for the caller.
    """

    decision: Decision
    closest: str = ""
    failed: str = ""
    remedy: str = ""


@runtime_checkable
class Explains(Protocol):
    """A provider that can say why it decides as it does: ``ostiary-gateway policy explain`` shows it."""

    def explain(self, attributes: Attributes) -> Explanation: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule that a policy gives to somebody.

    `namespace` is where it holds, in the words of the policy: a request with exactly this namespace meets the rule.
    `upstream` is filled in by the gateway for a policy that is for some upstreams only.
    """

    subject: Subject
    rule: ResourceRule | NonResourceRule
    namespace: str = ""
    upstream: str = ""


@runtime_checkable
class ListsGrants(Protocol):
    """A provider that can list its whole policy: who has which rule. Two policies can then be compared."""

    def grants(self) -> tuple[Grant, ...]: ...


@runtime_checkable
class NamesSubjects(Protocol):
    """A provider that can list the subjects of its policy, with places. Lines that can match nobody are reported."""

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]: ...


class Level(Enum):
    """ERROR: it does not work as written. WARNING: it likely does something else than was meant."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` names what was looked for, and stays the same from release to release."""

    level: Level
    rule: str
    problem: Problem


@runtime_checkable
class LintsPolicy(Protocol):
    """A provider whose policy lies in files: its class judges such files, which need not be in force."""

    @staticmethod
    def lint(paths: Iterable[str | os.PathLike[str]]) -> tuple[Finding, ...]:
        """What is wrong, or likely not what was meant. Never raises for what is wrong with the files."""


@runtime_checkable
class AllowsEverything(Protocol):
    """A trait: the provider allows every request of every user.

    The gateway warns of it at every start, and refuses to serve others than this machine where users prove nothing
    either (`ostiary_gateway.interfaces.identity.Unauthenticated`). Of a provider without it we assume that it can
    refuse.
    """

    allows_everything: bool


@runtime_checkable
class HidesDenied(Protocol):
    """A trait: the operator has configured the provider to hide what it refuses (`Decision.hidden`).

    A configuration in which that has no effect, because ``authorization.hideDenied`` is off, is rejected.
    """

    hides_denied: bool


@runtime_checkable
class DecidesQuickly(Protocol):
    """A trait of a provider that decides at once (`DecidesAtOnce`): a few microseconds, whatever is asked.

    To keep such decisions and to find them again takes longer than to decide, so none is kept; `cache_key` then serves
    only those who ask about many requests at once. How long a request may go by a decision is the same as for others.
    """

    decides_quickly: bool
