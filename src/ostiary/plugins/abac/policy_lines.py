"""One line of an abac policy, and all of them by whom they name. Pure; called by the abac provider to decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ostiary.core.users.implied_groups import implied_groups
from ostiary.model import Place, RequestInfo, UserInfo

READING = ("get", "list", "watch")
ANY = "*"


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """One line of a policy file. Empty `user` and `group` match nobody; an empty `namespace` is what lies in none."""

    place: Place
    user: str = ""
    group: str = ""
    readonly: bool = False
    api_group: str = ""
    resource: str = ""
    namespace: str = ""
    path: str = ""

    def allows(self, request: RequestInfo) -> bool:
        """Whether it allows *request* to the user or group that it names."""
        if self.readonly and request.verb not in READING:
            return False
        if not request.is_resource:
            return self._matches_path(request.path)
        # A line for paths only has an empty resource; a request with an empty resource must not match it.
        return (
            self.resource in (ANY, request.resource)
            and self.resource != ""
            and self.namespace in (ANY, request.namespace)
            and self.api_group in (ANY, request.api_group)
        )

    def failures(self, request: RequestInfo) -> list[str]:
        """The conditions that do not hold, each as a sentence."""
        failures = ["it is readonly"] if self.readonly and request.verb not in READING else []
        if not request.is_resource:
            return (
                failures if self._matches_path(request.path) else [*failures, f'its nonResourcePath is "{self.path}"']
            )
        pairs = (
            ("namespace", self.namespace, request.namespace),
            ("resource", self.resource, request.resource),
            ("apiGroup", self.api_group, request.api_group),
        )
        differing = (
            f'its {field} is "{own}"'
            for field, own, requested in pairs
            if own not in (ANY, requested) or (field == "resource" and not own)
        )
        return [*failures, *differing]

    def knows(self, namespace: str) -> bool:
        """Whether it allows anything at all in *namespace*."""
        return bool(self.resource) and self.namespace in (ANY, namespace)

    def _matches_path(self, path: str) -> bool:
        if self.path.endswith(ANY):
            return path.startswith(self.path.rstrip(ANY))
        return self.path == path and self.path != ""


class PolicyLines:
    """All lines of a policy, by whom they name. Built whole and never changed."""

    def __init__(self, policies: Iterable[PolicyLine]) -> None:
        self.all = tuple(policies)
        self._of_user: dict[str, list[PolicyLine]] = {}
        self._of_group: dict[str, list[PolicyLine]] = {}
        for policy in self.all:
            if policy.user:
                self._of_user.setdefault(policy.user, []).append(policy)
            elif policy.group:
                self._of_group.setdefault(policy.group, []).append(policy)
        self.groups = frozenset(policy.group for policy in self.all if policy.group)

    def of(self, user: UserInfo) -> Iterator[PolicyLine]:
        """Those that apply to *user*. One with both a user and a group applies to that user in that group."""
        groups = (*user.groups, *implied_groups(user))
        for policy in self._of_user.get(user.username, ()):
            if not policy.group or policy.group in groups:
                yield policy
        for group in groups:
            yield from self._of_group.get(group, ())
