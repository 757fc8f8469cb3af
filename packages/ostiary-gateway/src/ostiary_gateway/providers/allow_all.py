"""The authorization provider ``allow_all``: allow everything to everyone. Only for a first try on your own machine.

authorization: {chain: [{name: demo, type: allow_all}]}
"""

from __future__ import annotations

from typing import Self

from ostiary.core.yaml import ConfigSection
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.authorization import Explanation, Grant, NonResourceRule, ResourceRule, Rules, Subject

# Conspicuous on purpose: a reader of the audit log must not confuse this with a policy.
REASON = "ALLOW ALL: no policy is in force, everybody may do everything"

_ALLOWED = Decision(Verdict.ALLOW, REASON)
_ANY = ("*",)


class AllowAllAuthorization:
    """Authorization provider that allows every request of every user."""

    allows_everything = True

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        return cls()

    def decide(self, attributes: Attributes) -> Decision:
        return _ALLOWED

    async def authorize(self, attributes: Attributes) -> Decision:
        return _ALLOWED

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()

    def cache_key(self, attributes: Attributes) -> str:
        # No attribute matters, so one cache entry serves all requests.
        return ""

    def name_matters(self, attributes: Attributes) -> bool:
        return False

    def explain(self, attributes: Attributes) -> Explanation:
        return Explanation(_ALLOWED, closest="allow_all")

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return Rules((ResourceRule(_ANY, _ANY, _ANY),), (NonResourceRule(_ANY, _ANY),))

    def gives_rights(self, user: UserInfo) -> bool:
        return True

    def grants(self) -> tuple[Grant, ...]:
        rules = self.rules_for(UserInfo(""), "")
        everything: list[ResourceRule | NonResourceRule] = [*rules.resource_rules, *rules.non_resource_rules]
        return tuple(Grant(subject, rule) for subject in _everybody() for rule in everything)

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        return _everybody()


def _everybody() -> tuple[Subject, ...]:
    return tuple(
        Subject("Group", group, via="allow_all") for group in ("system:authenticated", "system:unauthenticated")
    )
