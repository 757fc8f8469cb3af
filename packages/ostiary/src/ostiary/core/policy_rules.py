"""Kubernetes RBAC rules: which requests a rule allows, and which other rules it covers. Pure.

Used by the rbac provider and by scoped tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ostiary.model import Place

ANY = "*"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """An RBAC rule: verbs on resources, or verbs on non-resource URLs."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)


# Matching: which requests a rule allows, and which other rules it covers.

T = TypeVar("T")
# None stands for "any".
_Set = frozenset[str] | None
_Entries = list[tuple[_Set, _Set, T]]


def resource_keys(resource: str, subresource: str) -> tuple[str, ...]:
    """Return the names by which a rule may refer to this resource.

    ``pods/*`` is not one: Kubernetes treats it as a plain name.
    """
    if not subresource:
        return (resource, ANY)
    return (f"{resource}/{subresource}", ANY, f"{ANY}/{subresource}")


def url_matches(pattern: str, path: str) -> bool:
    """Return whether *path* equals *pattern*, or its prefix up to a trailing star.

    ``/foo/*`` does not match ``/foo``, and ``/foo*`` matches ``/foobar``.
    """
    return pattern == path or (pattern.endswith(ANY) and path.startswith(pattern.rstrip(ANY)))


def _has(values: Sequence[str], value: str) -> bool:
    return value in values or ANY in values


class RuleTable(Generic[T]):
    """Finds the source of a rule that allows a request.

    Rules are indexed by the resources they name, and those for named objects by the names, so a request is compared
    only with rules that can match. Duplicates of an earlier rule are left out.
    """

    __slots__ = ("_by_name", "_by_prefix", "_by_resource", "_by_url", "_seen")

    def __init__(self, rules: Iterable[tuple[PolicyRule, T]]) -> None:
        self._by_resource: dict[str, _Entries[T]] = {}
        self._by_name: dict[str, dict[str, _Entries[T]]] = {}
        self._by_url: dict[str, _Entries[T]] = {}
        self._by_prefix: dict[str, _Entries[T]] = {}
        self._seen: set[tuple[object, ...]] = set()
        for rule, source in rules:
            self._add(rule, source)
        self._seen.clear()

    def find(self, verb: str, api_group: str, keys: tuple[str, ...], name: str) -> T | None:
        """Return the source of a rule for a resource that has one of the names *keys*."""
        by_resource = self._by_resource
        for key in keys:
            for verbs, groups, source in by_resource.get(key, ()):
                if (verbs is None or verb in verbs) and (groups is None or api_group in groups):
                    return source
        if self._by_name:
            for key in keys:
                by_name = self._by_name.get(key)
                for verbs, groups, source in by_name.get(name, ()) if by_name else ():
                    if (verbs is None or verb in verbs) and (groups is None or api_group in groups):
                        return source
        return None

    def find_url(self, verb: str, path: str) -> T | None:
        """Return the source of a rule for a non-resource path."""
        for verbs, _, source in self._by_url.get(path, ()):
            if verbs is None or verb in verbs:
                return source
        for prefix, entries in self._by_prefix.items():
            if path.startswith(prefix):
                for verbs, _, source in entries:
                    if verbs is None or verb in verbs:
                        return source
        return None

    def _add(self, rule: PolicyRule, source: T) -> None:
        entry = (_set(rule.verbs), _set(rule.api_groups), source)
        for resource in rule.resources:
            if not rule.resource_names:
                self._file(self._by_resource, resource, entry)
            for name in rule.resource_names:
                self._file(self._by_name.setdefault(resource, {}), name, entry, resource)
        for url in rule.non_resource_urls:
            is_prefix = url.endswith(ANY)
            self._file(self._by_prefix if is_prefix else self._by_url, url.rstrip(ANY) if is_prefix else url, entry)

    def _file(self, table: dict[str, _Entries[T]], key: str, entry: tuple[_Set, _Set, T], within: str = "") -> None:
        same = (id(table), within, key, entry[0], entry[1])
        if same not in self._seen:
            self._seen.add(same)
            table.setdefault(key, []).append(entry)


def _set(values: Sequence[str]) -> _Set:
    return None if ANY in values else frozenset(values)


# --- coverage ---


def rules_not_covered(owner: Iterable[PolicyRule], servant: Iterable[PolicyRule]) -> tuple[PolicyRule, ...]:
    """Return what *servant* allows and *owner* does not, as rules of one verb, group, resource and name each.

    Used to prevent privilege escalation: a caller can only grant rules that it has. Each atomic rule must be covered by
    a single rule of the owner. A list never covers a star, however long it is, and a rule for named objects never
    covers one for all objects.
    """
    rules = tuple(owner)
    return tuple(
        atom for rule in servant for atom in atoms(rule) if not any(_covers_atom(owned, atom) for owned in rules)
    )


def covers(owner: Iterable[PolicyRule], servant: Iterable[PolicyRule]) -> bool:
    return not rules_not_covered(owner, servant)


def atoms(rule: PolicyRule) -> Iterable[PolicyRule]:
    """Split *rule* into atomic rules."""
    for group in rule.api_groups:
        for resource in rule.resources:
            for verb in rule.verbs:
                # A rule without names is a single one: it applies to all objects.
                names: list[tuple[str, ...]] = [(name,) for name in rule.resource_names] or [()]
                for resource_names in names:
                    yield PolicyRule((verb,), (group,), (resource,), resource_names, place=rule.place)
    for url in rule.non_resource_urls:
        for verb in rule.verbs:
            yield PolicyRule((verb,), non_resource_urls=(url,), place=rule.place)


def _covers_atom(rule: PolicyRule, atom: PolicyRule) -> bool:
    if not _has(rule.verbs, atom.verbs[0]):
        return False
    if atom.non_resource_urls:
        return any(url_matches(url, atom.non_resource_urls[0]) for url in rule.non_resource_urls)
    return (
        _has(rule.api_groups, atom.api_groups[0])
        and _covers_resource(rule, atom.resources[0])
        and (not rule.resource_names or (bool(atom.resource_names) and atom.resource_names[0] in rule.resource_names))
    )


def _covers_resource(rule: PolicyRule, resource: str) -> bool:
    _, slash, subresource = resource.partition("/")
    return _has(rule.resources, resource) or (bool(slash) and f"{ANY}/{subresource}" in rule.resources)


def normalize(rule: PolicyRule) -> PolicyRule:
    """Return the rule with its lists sorted and without duplicates, for comparison."""
    return replace(
        rule,
        verbs=_sort_unique(rule.verbs),
        api_groups=_sort_unique(rule.api_groups),
        resources=_sort_unique(rule.resources),
        resource_names=_sort_unique(rule.resource_names),
        non_resource_urls=_sort_unique(rule.non_resource_urls),
    )


def _sort_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


# Permissions of every authenticated user: API discovery and reviews about oneself. Used for the token scope
# ``discovery``, and to decide whether a user can use a cluster at all: a rule that gives no more than this does not
# count.

# The ClusterRole ``system:discovery``: what kubectl and other clients read to discover resources.
DISCOVERY_PATHS = tuple(
    sorted(
        (
            *("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"),
            *("/healthz", "/livez", "/readyz", "/version", "/version/"),
        )
    )
)
_READING = frozenset(("get", "head", "list", "watch"))
# The ClusterRole ``system:basic-user``.
_REVIEW_GROUPS = frozenset(("authentication.k8s.io", "authorization.k8s.io"))
_SELF_REVIEWS = frozenset(("selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"))
# Our own API is not served by a cluster.
_OWN_GROUP = frozenset(("ostiary.dev",))


def gives_more_than_discovery(rule: PolicyRule) -> bool:
    """Return whether *rule* allows anything in a cluster beyond discovery."""
    if not rule.verbs:
        return False
    paths = frozenset(rule.non_resource_urls)
    if paths and not (paths <= frozenset(DISCOVERY_PATHS) and _READING.issuperset(rule.verbs)):
        return True
    groups, resources = frozenset(rule.api_groups), frozenset(rule.resources)
    if not groups or not resources or groups <= _OWN_GROUP:
        return False
    return not (groups <= _REVIEW_GROUPS and resources <= _SELF_REVIEWS)
