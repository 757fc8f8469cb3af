"""Rules that match the claims of a workload and determine its user.

    rules:
    - match: {repository: acme/shop, ref: refs/heads/main}
      username: "ci:{repository}"
      groups: [deployers]

The first matching rule counts; without one the sign-in is denied. No name or group from a rule may begin with
``system:``, which is reserved for Kubernetes. Only `workload.kubernetes` gives such names, to service accounts of the
cluster behind the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ostiary.errors import LoginRefused
from ostiary_gateway.providers.workload.patterns import ClaimTexts, NoValue, Pattern, Template

SYSTEM = "system:"
MAX_NAME = 256
MAX_GROUPS = 256
_NOT_ADMITTED = "this workload may not sign in here"


@dataclass(frozen=True, slots=True)
class WorkloadNames:
    """The names of a workload."""

    username: str
    groups: tuple[str, ...] = ()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """A rule. Each claim in `match` must match one of its patterns; if it has several values, one of them must.

    A rule without `username` only admits workloads, which keep the names that their platform gives.
    """

    match: Mapping[str, tuple[Pattern, ...]]
    username: Template | None = None
    groups: tuple[Template, ...] = ()
    uid: Template | None = None

    def matches(self, claims: ClaimTexts) -> bool:
        for name, patterns in self.match.items():
            values = claims.get(name, ())
            if not any(pattern.matches(value) for pattern in patterns for value in values):
                return False
        return True

    def covers(self, later: WorkloadRule) -> bool:
        """Whether this rule matches everything that *later* matches."""
        return all(
            name in later.match and all(any(mine.covers(each) for mine in patterns) for each in later.match[name])
            for name, patterns in self.match.items()
        )

    def names(self, claims: ClaimTexts, own: WorkloadNames | None) -> WorkloadNames:
        """Return the names of the workload; *own* are the platform's. Raises `LoginRefused` if there is no name."""
        try:
            rendered = self._render(claims)
        except NoValue as mistake:
            raise LoginRefused(_NOT_ADMITTED, cause=str(mistake)) from None
        if cause := _mistake_in(rendered):
            raise LoginRefused(_NOT_ADMITTED, cause=cause)
        if rendered.username:
            return rendered
        if own is None:
            raise LoginRefused(_NOT_ADMITTED, cause="neither the rule nor the platform gives it a name")
        return WorkloadNames(
            own.username, tuple(dict.fromkeys((*own.groups, *rendered.groups))), rendered.uid or own.uid
        )

    def _render(self, claims: ClaimTexts) -> WorkloadNames:
        groups = (name for template in self.groups for name in template.render_each(claims))
        return WorkloadNames(
            "" if self.username is None else self.username.render(claims),
            tuple(dict.fromkeys(groups)),
            "" if self.uid is None else self.uid.render(claims),
        )


def names_by(rules: Sequence[WorkloadRule], claims: ClaimTexts, own: WorkloadNames | None = None) -> WorkloadNames:
    """Return the names from the first matching rule, or *own*, the platform's names, if there are no rules.

    Raises `LoginRefused` if no rule matches.
    """
    if not rules and own is not None:
        return own
    for rule in rules:
        if rule.matches(claims):
            return rule.names(claims, own)
    raise LoginRefused(_NOT_ADMITTED, cause="no rule matches the claims of its token")


def _mistake_in(rendered: WorkloadNames) -> str:
    if len(rendered.groups) > MAX_GROUPS:
        return f"its claims make more than {MAX_GROUPS} groups"
    for name in filter(None, (rendered.username, rendered.uid, *rendered.groups)):
        if len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
            return "a name of it is too long, or has characters that a name cannot have"
        if name.startswith(SYSTEM):
            return f"a name of it would begin with {SYSTEM}, as Kubernetes' own do"
    return ""
