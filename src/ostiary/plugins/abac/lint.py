"""What is likely not what was meant in an abac policy that can be read. Pure; called for ``ostiary policy lint``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ostiary.core.users.implied_groups import AUTHENTICATED, UNAUTHENTICATED
from ostiary.interfaces.authorization import Finding, Level
from ostiary.model import Place, Problem
from ostiary.plugins.abac.policy_lines import ANY, PolicyLine
from ostiary.wire.request.resource_names import plural_of


def lint_lines(policies: Iterable[PolicyLine]) -> Iterator[Finding]:
    first: dict[PolicyLine, PolicyLine] = {}
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
        if plural := plural_of(policy.resource):
            message = f'"{policy.resource}" never matches: resources are named in the plural and in lower case'
            yield Finding(
                Level.WARNING, "singular-resource", Problem(message, policy.place, f'did you mean "{plural}"?')
            )
        if policy.group in (AUTHENTICATED, UNAUTHENTICATED) and not policy.user and not policy.readonly:
            yield from _wide_grant(policy)


def _wide_grant(policy: PolicyLine) -> Iterator[Finding]:
    if ANY in (policy.resource, policy.path):
        who = "everybody who can sign in" if policy.group == AUTHENTICATED else "everybody, signed in or not"
        level = Level.WARNING if policy.group == AUTHENTICATED else Level.ERROR
        problem = Problem(f"it has a star in it, and is for {who}", policy.place, "name the groups that need it")
        yield Finding(level, "wide-grant", problem)
