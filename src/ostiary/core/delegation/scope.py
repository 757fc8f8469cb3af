"""What a token may be used for: rules about verbs, resources or paths, and where. Pure.

Made by `parsing`; a `Delegation` has one scope per layer. A rule matches as one of Kubernetes' RBAC does: the matching
is that of `core.rules`. What RBAC keeps in bindings, where a rule holds, stands in the rule here: its namespaces and
upstreams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ostiary.core.rules import ANY, PolicyRule
from ostiary.core.rules.discovery import DISCOVERY_PATHS
from ostiary.core.rules.matching import RuleTable, resource_keys, rules_not_covered
from ostiary.model import RequestInfo

DISCOVERY = "discovery"


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """Verbs on resources in some namespaces, or verbs on paths that are no resource's.

    Resources are written as in ``kubectl create role``: ``pods``, ``pods/log``, ``deployments.apps/scale``, ``*``.
    `namespaces` is None for all namespaces and for what is in none. Without `names` it is for all objects, and without
    `upstreams` for all upstreams and the gateway's own API. A rule that is `of_kubernetes` holds for Kubernetes APIs
    only: at any other one, the paths of discovery may serve anything.
    """

    verbs: tuple[str, ...]
    resources: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = ()
    upstreams: tuple[str, ...] = ()
    of_kubernetes: bool = False

    def __str__(self) -> str:
        """The rule as `parse_scope` reads it."""
        if self.of_kubernetes:
            words = [DISCOVERY]
        else:
            words = [",".join(self.verbs), ",".join(self.paths or self.resources)]
        if self.names:
            words += ["--name", ",".join(self.names)]
        if self.resources:
            words += ["-A"] if self.namespaces is None else ["-n", ",".join(self.namespaces)]
        if self.upstreams:
            words += ["--upstream", ",".join(self.upstreams)]
        return " ".join(words)

    def policy_rules(self) -> tuple[PolicyRule, ...]:
        """The same without its places, as RBAC has it: there a rule is for every pair of its groups and resources."""
        if self.paths:
            return (PolicyRule(self.verbs, non_resource_urls=self.paths),)
        by_group: dict[str, list[str]] = {}
        for resource in self.resources:
            group, name = group_and_resource(resource)
            by_group.setdefault(group, []).append(name)
        return tuple(
            PolicyRule(self.verbs, (group,), tuple(resources), self.names) for group, resources in by_group.items()
        )

    def places(self) -> Iterator[tuple[str | None, str | None]]:
        """Every pair of a namespace and an upstream that it is for; None stands for all."""
        namespaces: tuple[str | None, ...] = (None,) if self.paths or self.namespaces is None else self.namespaces
        upstreams: tuple[str | None, ...] = self.upstreams or (None,)
        return ((namespace, upstream) for namespace in namespaces for upstream in upstreams)

    def is_for(self, namespace: str | None, upstream: str | None) -> bool:
        """Whether it holds there; None asks whether it holds in all of them."""
        return (not self.upstreams or upstream in self.upstreams) and (
            bool(self.paths) or self.namespaces is None or namespace in self.namespaces
        )


_Compiled = tuple[ScopeRule, RuleTable[bool]]


def discovery_rule(upstreams: tuple[str, ...] = ()) -> ScopeRule:
    return ScopeRule(("get",), paths=DISCOVERY_PATHS, upstreams=upstreams, of_kubernetes=True)


@dataclass(frozen=True, slots=True)
class Scope:
    """Rules, one of which must allow a request. Without any, nothing is allowed."""

    rules: tuple[ScopeRule, ...] = ()
    # Made once: they are needed for every request that is not like an earlier one.
    _text: str = field(init=False, repr=False, compare=False)
    _resources: tuple[_Compiled, ...] = field(init=False, repr=False, compare=False)
    _paths: tuple[_Compiled, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = [(rule, RuleTable((each, True) for each in rule.policy_rules())) for rule in self.rules]
        object.__setattr__(self, "_text", "; ".join(map(str, self.rules)))
        object.__setattr__(self, "_resources", tuple(each for each in compiled if each[0].resources))
        object.__setattr__(self, "_paths", tuple(each for each in compiled if each[0].paths))

    def __str__(self) -> str:
        """Its rules as `parse_scope` reads them: the same text for the same rules."""
        return self._text

    def allows(self, request: RequestInfo) -> bool:
        upstream = request.upstream
        if not request.is_resource:
            return any(
                (not rule.upstreams or upstream in rule.upstreams)
                and (request.of_kubernetes or not rule.of_kubernetes)
                and table.find_url(request.verb, request.path)
                for rule, table in self._paths
            )
        keys = resource_keys(request.resource, request.subresource)
        for rule, table in self._resources:
            if (
                (rule.namespaces is None or request.namespace in rule.namespaces)
                and (not rule.upstreams or upstream in rule.upstreams)
                and table.find(request.verb, request.api_group, keys, request.name)
            ):
                return True
        return False

    def first_beyond(self, other: Scope) -> str:
        """The first part of *other* that this scope does not have; empty if it has all of it."""
        for rule in other.rules:
            for namespace, upstream in rule.places():
                here = [
                    each
                    for own in self.rules
                    if own.is_for(namespace, upstream) and (rule.of_kubernetes or not own.of_kubernetes)
                    for each in own.policy_rules()
                ]
                missing = rules_not_covered(here, rule.policy_rules())
                if missing:
                    return str(_scope_rule(missing[0], namespace, upstream))
        return ""


def group_and_resource(text: str) -> tuple[str, str]:
    """The API group and the resource, with its subresource, as a rule of RBAC has them: of ``deployments.apps/scale``,
    ``apps`` and ``deployments/scale``. A star alone is for all groups."""
    kind, slash, subresource = text.partition("/")
    resource, dot, group = kind.partition(".")
    return group if dot else (ANY if resource == ANY else ""), resource + slash + subresource


def _scope_rule(atom: PolicyRule, namespace: str | None, upstream: str | None) -> ScopeRule:
    """The smallest piece of a rule, as a rule of a scope."""
    resources: tuple[str, ...] = ()
    if atom.resources:
        kind, slash, subresource = atom.resources[0].partition("/")
        (group,) = atom.api_groups
        has_group = group not in ("", ANY) or (group == ANY) != (kind == ANY)
        resources = (f"{kind}.{group}{slash}{subresource}" if has_group else atom.resources[0],)
    return ScopeRule(
        atom.verbs,
        resources,
        atom.non_resource_urls,
        atom.resource_names,
        None if namespace is None else (namespace,),
        () if upstream is None else (upstream,),
    )
