"""The abac provider: policy as Kubernetes' attribute-based files have it, one JSON object per line.

    {"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy",
     "spec": {"user": "alice", "namespace": "dev", "resource": "*", "apiGroup": "*"}}

It only ever allows or has no opinion. A policy names a user, a group, or both; a decision looks at those of its user
only. Built by the catalog; called by the gateway's chain, and by ``ostiary policy``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Iterator
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.rules import PolicyRule
from ostiary.core.rules.discovery import gives_more_than_discovery
from ostiary.core.settings.declare import read_settings
from ostiary.core.users.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
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
from ostiary.model import Attributes, Decision, Place, RequestInfo, UserInfo, Verdict
from ostiary.plugins.abac.lint import lint_lines
from ostiary.plugins.abac.policy_lines import ANY, READING, PolicyLine
from ostiary.plugins.abac.reading import API_VERSION, parse
from ostiary.plugins.abac.settings import AbacSettings
from ostiary.plugins.common.policy_files import PolicyFiles

NO_MATCH = "No policy matched."


class AbacAuthorization:
    """Decides by the policy files at *paths*; a directory stands for its ``*.jsonl`` files.

    Raises `ConfigurationError` if the policy has mistakes. Changed files come into force within about a second; one
    with a mistake does not, and the policy before it stays.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = PolicyFiles(paths, ending=".jsonl", parse=parse, clock=clock)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(AbacSettings, fields, context.directory)
        try:
            return cls(settings.paths, clock=context.clock)
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
        may_know = not request.namespace or any(policy.knows(request.namespace) for policy in policies.of(user))
        return Decision(Verdict.NO_OPINION, NO_MATCH, hidden=not may_know)

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
            closest, failed = str(others[0].place), f"it names {_subject_text(others[0])}"
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

    def gives_rights(self, user: UserInfo) -> bool:
        rules = (rule for policy in self._files.current.of(user) for rule in _rules(policy))
        return any(map(gives_more_than_discovery, rules))

    def grants(self) -> tuple[Grant, ...]:
        return tuple(grant for policy in self._files.current.all for grant in _grants(policy))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """A line that names both a user and a group yields both, and applies only to that user in that group."""
        return tuple((subject, policy.place) for policy in self._files.current.all for subject in _subjects_in(policy))

    @staticmethod
    def lint(paths: Iterable[str | os.PathLike[str]]) -> tuple[Finding, ...]:
        """What is wrong, or likely not what was meant, in a policy that need not be in force."""
        try:
            policies = PolicyFiles(paths, ending=".jsonl", parse=parse).current
        except ConfigurationError as error:
            return tuple(Finding(Level.ERROR, "invalid", problem) for problem in error.problems)
        return tuple(lint_lines(policies.all))


# --- words ---


def _grants(policy: PolicyLine) -> Iterator[Grant]:
    if policy.user and policy.group:
        # It needs both the user and the group, which a grant cannot express.
        return
    if not policy.user and not policy.group:
        return
    if policy.resource:
        rule = ResourceRule(_verbs(policy), (policy.api_group,), (policy.resource,))
        yield Grant(_subject(policy), rule, policy.namespace, subresources=True)
    if policy.path:
        yield Grant(_subject(policy), NonResourceRule(_verbs(policy), (policy.path,)))


def _rules(policy: PolicyLine) -> Iterator[PolicyRule]:
    if policy.resource:
        yield PolicyRule(_verbs(policy), (policy.api_group,), (policy.resource,))
    if policy.path:
        yield PolicyRule(_verbs(policy), non_resource_urls=(policy.path,))


def _subjects_in(policy: PolicyLine) -> Iterator[Subject]:
    if policy.user:
        yield Subject("User", policy.user)
    if policy.group:
        yield Subject("Group", policy.group)


def _verbs(policy: PolicyLine) -> tuple[str, ...]:
    return READING if policy.readonly else (ANY,)


def _subject(policy: PolicyLine) -> Subject:
    if not policy.user:
        return Subject("Group", policy.group, via=str(policy.place))
    condition = f', if in group "{policy.group}"' if policy.group else ""
    return Subject("User", policy.user, via=f"{policy.place}{condition}")


def _subject_text(policy: PolicyLine) -> str:
    parts = [f'user "{policy.user}"'] if policy.user else []
    return " and ".join([*parts, f'group "{policy.group}"'] if policy.group else parts) or "nobody"


def _remedy(user: UserInfo, request: RequestInfo) -> str:
    spec: dict[str, str | bool] = {"user": user.username}
    if request.is_resource:
        spec |= {"namespace": request.namespace, "resource": request.resource, "apiGroup": request.api_group}
    else:
        spec |= {"nonResourcePath": request.path}
    if request.verb in READING:
        spec["readonly"] = True
    return json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": spec})
