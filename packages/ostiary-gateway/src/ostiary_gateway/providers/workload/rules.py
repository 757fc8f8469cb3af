"""Which workload is which user: rules that match claims and make names of them. Pure; called by `workload.identity`.

    rules:
    - match: {repository: acme/shop, ref: refs/heads/main}
      username: "ci:{repository}"
      groups: [deployers]

The first rule that matches counts; without one the workload is refused. No name and no group that a rule makes begins
with ``system:``: those are Kubernetes' own. The service accounts of the cluster behind the gateway have such names, and
get them from `workload.kubernetes` alone.
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
    """What a rule calls a workload."""

    username: str
    groups: tuple[str, ...] = ()
    uid: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadRule:
    """Each claim in `match` must match one of its patterns; of a claim with several values, one of the values must.

    Without `username` it only says whom to admit, and the platform's own names hold.
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
        """Whether everything that *later* matches is matched by this one already."""
        return all(
            name in later.match and all(any(mine.covers(each) for mine in patterns) for each in later.match[name])
            for name, patterns in self.match.items()
        )

    def names(self, claims: ClaimTexts, own: WorkloadNames | None) -> WorkloadNames:
        """What the workload is called; *own* are the platform's names. Raises `LoginRefused` if there is no name."""
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
    """What the first rule that matches says; *own* are the platform's names, which hold where there are no rules.

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
