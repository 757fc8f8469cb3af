"""The abac provider: policy as Kubernetes' attribute-based files have it, one JSON object per line.

    {"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy",
     "spec": {"user": "alice", "namespace": "dev", "resource": "*", "apiGroup": "*"}}

Lines that are blank or begin with ``#`` do not count; lines without a version are of the form before v1beta1. It only
ever allows or has no opinion. A policy names a user, a group, or both; a decision looks at those of its user only.
A field that we do not know is a mistake, though Kubernetes reads over it: it was meant to restrict something.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
from ostiary.errors import ConfigurationError
from ostiary.interfaces.authorization import (
    Explanation,
    Finding,
    Grant,
    Level,
    NonResourceRule,
    ResourceRule,
    Rules,
    Subject,
)
from ostiary.model import Attributes, Decision, Place, Problem, RequestInfo, UserInfo, Verdict
from ostiary.plugins.common.policy_files import PolicyFiles, PolicyText, invalid_policy
from ostiary.wire.request.resource_names import plural_of

API_VERSION = "abac.authorization.kubernetes.io/v1beta1"
READING = ("get", "list", "watch")
ANY = "*"
NO_MATCH = "No policy matched."


@dataclass(frozen=True, slots=True)
class Policy:
    """One line. Empty `user` and `group` match nobody; an empty `namespace` is what lies in none."""

    place: Place
    user: str = ""
    group: str = ""
    readonly: bool = False
    api_group: str = ""
    resource: str = ""
    namespace: str = ""
    path: str = ""

    def allows(self, request: RequestInfo) -> bool:
        """Whether whoever it names may do this."""
        if self.readonly and request.verb not in READING:
            return False
        if not request.is_resource:
            return self._matches_path(request.path)
        # A line for paths only has no resource, and a request must not match it by having none either.
        return (
            self.resource in (ANY, request.resource)
            and self.resource != ""
            and self.namespace in (ANY, request.namespace)
            and self.api_group in (ANY, request.api_group)
        )

    def failures(self, request: RequestInfo) -> list[str]:
        """The conditions that do not hold, each as a sentence."""
        failed = ["it is readonly"] if self.readonly and request.verb not in READING else []
        if not request.is_resource:
            return failed if self._matches_path(request.path) else [*failed, f'its nonResourcePath is "{self.path}"']
        pairs = (
            ("namespace", self.namespace, request.namespace),
            ("resource", self.resource, request.resource),
            ("apiGroup", self.api_group, request.api_group),
        )
        differing = (
            f'its {field} is "{mine}"'
            for field, mine, asked in pairs
            if mine not in (ANY, asked) or (field == "resource" and not mine)
        )
        return [*failed, *differing]

    def knows(self, namespace: str) -> bool:
        """Whether it allows anything at all in *namespace*."""
        return bool(self.resource) and self.namespace in (ANY, namespace)

    def _matches_path(self, path: str) -> bool:
        if self.path.endswith(ANY):
            return path.startswith(self.path.rstrip(ANY))
        return self.path == path and self.path != ""


class Policies:
    """All lines of a policy, by whom they name. Built whole and never changed."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        self.all = tuple(policies)
        self._of_user: dict[str, list[Policy]] = {}
        self._of_group: dict[str, list[Policy]] = {}
        for policy in self.all:
            if policy.user:
                self._of_user.setdefault(policy.user, []).append(policy)
            elif policy.group:
                self._of_group.setdefault(policy.group, []).append(policy)
        self.groups = frozenset(policy.group for policy in self.all if policy.group)

    def of(self, user: UserInfo) -> Iterator[Policy]:
        """Those that concern *user*. One that names a user and a group concerns who is both."""
        groups = (*user.groups, *implied_groups(user))
        for policy in self._of_user.get(user.username, ()):
            if not policy.group or policy.group in groups:
                yield policy
        for group in groups:
            yield from self._of_group.get(group, ())


class AbacAuthorization:
    """Decides by the policy files at *paths*; a directory stands for its ``*.jsonl`` files.

    Raises `ConfigurationError` if the policy has mistakes. Changed files come into force within about a second; one
    with a mistake does not, and the policy before it stays.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = PolicyFiles(paths, ending=".jsonl", parse=parse, clock=clock)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        paths = fields.strings("paths")
        if not paths:
            fields.problem("abac needs the files or directories of its policy", "paths")
        try:
            return cls([context.path(path) for path in paths], clock=context.clock)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(str(problem), "paths", problem.hint)
            return cls(())

    # --- deciding ---

    def decide(self, attributes: Attributes) -> Decision:
        user, request = attributes.user, attributes.request
        policies = self._files.current
        for policy in policies.of(user):
            if policy.allows(request):
                return Decision(Verdict.ALLOW, f"ABAC: allowed by {policy.place}")
        known = not request.namespace or any(policy.knows(request.namespace) for policy in policies.of(user))
        return Decision(Verdict.NO_OPINION, NO_MATCH, hidden=not known)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        # Everybody is in one of the two by being known or not, so no identity system needs to be asked.
        return self._files.current.groups - {AUTHENTICATED, UNAUTHENTICATED}

    @property
    def revision(self) -> int:
        return self._files.revision

    def cache_key(self, attributes: Attributes) -> Hashable:
        """What the decision depends on: of the groups those that are mentioned, of the verb whether it reads."""
        user, request = attributes.user, attributes.request
        groups = self._files.current.groups.intersection((*user.groups, *implied_groups(user)))
        who = (user.username, groups, request.verb in READING)
        if not request.is_resource:
            return (*who, request.path)
        return (*who, request.namespace, request.resource, request.api_group)

    # --- telling ---

    def explain(self, attributes: Attributes) -> Explanation:
        decision, user, request = self.decide(attributes), attributes.user, attributes.request
        if decision.allowed:
            return Explanation(decision, closest=decision.reason.removeprefix("ABAC: allowed by "))
        policies = self._files.current
        mine = sorted(policies.of(user), key=lambda policy: len(policy.failures(request)))
        if mine and len(mine[0].failures(request)) == 1:
            closest, failed = str(mine[0].place), mine[0].failures(request)[0]
        elif others := [policy for policy in policies.all if policy.allows(request)]:
            closest, failed = str(others[0].place), f"it names {_named(others[0])}"
        elif mine:
            closest, failed = str(mine[0].place), ", and ".join(mine[0].failures(request))
        else:
            closest, failed = "", "no policy names this user or one of the user's groups"
        return Explanation(decision, closest, failed, _remedy(user, request))

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        allowing = (policy for policy in self._files.current.all if policy.allows(attributes.request))
        return tuple(_subject(policy) for policy in allowing if policy.user or policy.group)

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        mine = tuple(self._files.current.of(user))
        resources = (
            ResourceRule(_verbs(policy), (policy.api_group,), (policy.resource,))
            for policy in mine
            if policy.knows(namespace)
        )
        paths = (NonResourceRule(_verbs(policy), (policy.path,)) for policy in mine if policy.path)
        return Rules(tuple(resources), tuple(paths))

    def grants(self) -> tuple[Grant, ...]:
        return tuple(grant for policy in self._files.current.all for grant in _grants(policy))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """Of a line that names a user and a group both: it matches only who is both."""
        return tuple((subject, policy.place) for policy in self._files.current.all for subject in _named_in(policy))

    @staticmethod
    def lint(paths: Iterable[str | os.PathLike[str]]) -> tuple[Finding, ...]:
        """What is wrong, or likely not what was meant, in a policy that need not be in force."""
        try:
            policies = PolicyFiles(paths, ending=".jsonl", parse=parse).current
        except ConfigurationError as error:
            return tuple(Finding(Level.ERROR, "invalid", problem) for problem in error.problems)
        return tuple(_findings(policies.all))


# --- reading ---


class _Kind(msgspec.Struct, rename="camel"):
    api_version: str | None = None
    kind: str | None = None


class _Spec(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    user: str = ""
    group: str = ""
    readonly: bool = False
    api_group: str = ""
    resource: str = ""
    namespace: str = ""
    non_resource_path: str = ""


class _Versioned(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    api_version: str
    kind: str
    spec: _Spec


class _Unversioned(msgspec.Struct, forbid_unknown_fields=True):
    user: str = ""
    group: str = ""
    readonly: bool = False
    resource: str = ""
    namespace: str = ""


# Built once: building a decoder while another thread does the same crashes msgspec 0.22.
_KIND, _VERSIONED, _UNVERSIONED = (msgspec.json.Decoder(one) for one in (_Kind, _Versioned, _Unversioned))


def parse(texts: Sequence[PolicyText]) -> Policies:
    """The policy of these files; raises `ConfigurationError` that lists every mistake with its line."""
    policies, problems = list[Policy](), list[Problem]()
    for text in texts:
        # Not splitlines(): some of what it takes for the end of a line may stand in a JSON string.
        for number, line in enumerate(text.text.split("\n"), start=1):
            if not (stripped := line.strip()) or stripped.startswith("#"):
                continue
            place = Place(text.file, line=number)
            try:
                policies.append(_policy(stripped, place))
            except ValueError as error:
                problems.append(Problem(str(error), place))
    if problems:
        raise invalid_policy(problems)
    return Policies(policies)


def _policy(line: str, place: Place) -> Policy:
    try:
        found: _Kind = _KIND.decode(line)  # type: ignore[assignment]
        if found.api_version is None and found.kind is None:
            return _from_unversioned(_UNVERSIONED.decode(line), place)
        if (found.api_version, found.kind) != (API_VERSION, "Policy"):
            raise ValueError(f"it must have apiVersion {API_VERSION} and kind Policy, or neither")
        return _from_versioned(_VERSIONED.decode(line), place)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is not one JSON object") from None


def _from_versioned(line: Any, place: Place) -> Policy:
    spec: _Spec = line.spec
    user, group = _subject_of(spec.user, spec.group)
    return Policy(
        place, user, group, spec.readonly, spec.api_group, spec.resource, spec.namespace, spec.non_resource_path
    )


def _from_unversioned(line: Any, place: Place) -> Policy:
    user, group = _subject_of(line.user, line.group) if line.user or line.group else ("", AUTHENTICATED)
    return Policy(
        place,
        user,
        group,
        line.readonly,
        ANY,
        line.resource or ANY,
        line.namespace or ANY,
        "" if line.resource or line.namespace else ANY,
    )


def _subject_of(user: str, group: str) -> tuple[str, str]:
    # As in Kubernetes: a star in either place means everybody who is known, whatever stands in the other.
    return ("", AUTHENTICATED) if ANY in (user, group) else (user, group)


# --- judging ---


def _findings(policies: Iterable[Policy]) -> Iterator[Finding]:
    first: dict[Policy, Policy] = {}
    for policy in policies:
        same = first.setdefault(replace(policy, place=Place()), policy)
        if same is not policy:
            problem = Problem(f"duplicate line; the first is at {same.place}", policy.place, "remove it")
            yield Finding(Level.WARNING, "duplicate-line", problem)
        if not policy.user and not policy.group:
            problem = Problem(
                "it names no user or group, so it never applies", policy.place, 'name a "user" or a "group"'
            )
            yield Finding(Level.ERROR, "no-subject", problem)
        if not policy.resource and not policy.path:
            hint = 'name a "resource" or a "nonResourcePath"; a star matches all'
            yield Finding(Level.ERROR, "no-object", Problem("it allows nothing", policy.place, hint))
        if meant := plural_of(policy.resource):
            message = f'"{policy.resource}" never matches: resources are named in the plural and in lower case'
            yield Finding(
                Level.WARNING, "singular-resource", Problem(message, policy.place, f'did you mean "{meant}"?')
            )
        if policy.group in (AUTHENTICATED, UNAUTHENTICATED) and not policy.user and not policy.readonly:
            yield from _wide_grant(policy)


def _wide_grant(policy: Policy) -> Iterator[Finding]:
    if ANY in (policy.resource, policy.path):
        who = "everybody who can sign in" if policy.group == AUTHENTICATED else "everybody, signed in or not"
        level = Level.WARNING if policy.group == AUTHENTICATED else Level.ERROR
        problem = Problem(f"it has a star in it, and is for {who}", policy.place, "name the groups that need it")
        yield Finding(level, "wide-grant", problem)


# --- words ---


def _grants(policy: Policy) -> Iterator[Grant]:
    if policy.user and policy.group:
        # Nobody has it by name alone, and a grant cannot say "if in that group".
        return
    if not policy.user and not policy.group:
        return
    if policy.resource:
        rule = ResourceRule(_verbs(policy), (policy.api_group,), (policy.resource,))
        yield Grant(_subject(policy), rule, policy.namespace, subresources=True)
    if policy.path:
        yield Grant(_subject(policy), NonResourceRule(_verbs(policy), (policy.path,)))


def _named_in(policy: Policy) -> Iterator[Subject]:
    if policy.user:
        yield Subject("User", policy.user)
    if policy.group:
        yield Subject("Group", policy.group)


def _verbs(policy: Policy) -> tuple[str, ...]:
    return READING if policy.readonly else (ANY,)


def _subject(policy: Policy) -> Subject:
    if not policy.user:
        return Subject("Group", policy.group, via=str(policy.place))
    condition = f', if in group "{policy.group}"' if policy.group else ""
    return Subject("User", policy.user, via=f"{policy.place}{condition}")


def _named(policy: Policy) -> str:
    named = [f'user "{policy.user}"'] if policy.user else []
    return " and ".join([*named, f'group "{policy.group}"'] if policy.group else named) or "nobody"


def _remedy(user: UserInfo, request: RequestInfo) -> str:
    spec: dict[str, Any] = {"user": user.username}
    if request.is_resource:
        spec |= {"namespace": request.namespace, "resource": request.resource, "apiGroup": request.api_group}
    else:
        spec |= {"nonResourcePath": request.path}
    if request.verb in READING:
        spec["readonly"] = True
    return json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": spec})
