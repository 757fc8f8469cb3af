"""Step-up rules: which of them a request falls under, and whether the sign-in of its sender is enough. Pure.

    plan made   StepUpRules.applying(what is asked, who asks)  ->  AppliedRules, once per plan
    request     AppliedRules.is_met(now)                       ->  two comparisons of times

Asked after the policy has said yes: a rule never allows anything, and nobody learns of a rule for what they may not do.
Where it is not known what a request touches (all objects of a kind, all namespaces), it falls under the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ostiary.core.policy_rules import ANY, resource_keys, url_matches
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.chain import CONNECTS
from ostiary_gateway.config.step_up import StepUpRuleSettings
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.sessions.authentication_context import MAX_AHEAD, AuthenticationContext, context_of, satisfies
from ostiary_gateway.settings.kinds import short_duration

_ALWAYS, _NEVER = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StepUpRule:
    """One rule at work. It equals every rule that says the same."""

    settings: StepUpRuleSettings

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def required(self) -> RequiredAuthentication:
        return self.settings.required

    def covers(self, request: RequestInfo, *, any_upstream: bool = False) -> bool:
        """Whether *request* falls under the rule. *any_upstream*: nobody knows which upstream it would go to."""
        rule = self.settings
        if rule.upstreams and not any_upstream and request.upstream not in rule.upstreams:
            return False
        if not any(_has(rule.verbs, verb) for verb in _verbs(request)):
            return False
        if not request.is_resource:
            return any(url_matches(pattern, request.path) for pattern in rule.paths)
        return (
            not set(rule.resources).isdisjoint(resource_keys(request.resource, request.subresource))
            and _has(rule.api_groups, request.api_group)
            and (not rule.resource_names or not request.name or request.name in rule.resource_names)
            and (not rule.namespaces or _may_touch(request, rule.namespaces))
        )


def _verbs(request: RequestInfo) -> Sequence[str]:
    """The verbs of *request*. A shell is opened by POST (create), or by GET as a WebSocket (get): that is one thing."""
    is_connect = request.subresource in CONNECTS and request.verb in ("get", "create")
    return ("get", "create") if is_connect else (request.verb,)


def _has(values: Sequence[str], value: str) -> bool:
    return value in values or ANY in values


def _may_touch(request: RequestInfo, namespaces: Sequence[str]) -> bool:
    """An object with a name and without a namespace is in none; everything without a name may be in all of them."""
    return request.namespace in namespaces or (not request.namespace and not request.name)


class AppliedRules:
    """The rules that a request falls under, with the sign-in of its sender."""

    __slots__ = ("_context", "_met_from", "_met_until", "rules")

    def __init__(self, rules: Sequence[StepUpRule], context: AuthenticationContext) -> None:
        self.rules = tuple(rules)
        self._context = context
        self._met_from, self._met_until = _met_between(self.rules, context)

    def is_met(self, now: datetime) -> bool:
        return self._met_from <= now <= self._met_until

    def first_unmet(self, now: datetime) -> StepUpRule | None:
        """The first rule that the sign-in is not enough for."""
        return next((rule for rule in self.rules if not satisfies(self._context, rule.required, now=now)), None)

    @property
    def names(self) -> str:
        return ",".join(rule.name for rule in self.rules)


def _met_between(rules: Iterable[StepUpRule], context: AuthenticationContext) -> tuple[datetime, datetime]:
    """The times at which *context* is enough for all of *rules*; the second is before the first if it never is."""
    begins, ends = _NEVER, _ALWAYS
    for rule in rules:
        at = context.auth_time if context.auth_time is not None and rule.required.max_age is not None else _NEVER
        if not satisfies(context, rule.required, now=at):
            return _ALWAYS, _NEVER
        if rule.required.max_age is not None:
            begins, ends = max(begins, at - MAX_AHEAD), min(ends, at + rule.required.max_age)
    return begins, ends


class StepUpRules:
    """Those of one configuration."""

    def __init__(self, rules: Iterable[StepUpRuleSettings]) -> None:
        self.rules = tuple(StepUpRule(rule) for rule in rules)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def find(self, name: str) -> StepUpRule | None:
        return next((rule for rule in self.rules if rule.name == name), None)

    def applying(
        self, requests: Iterable[RequestInfo], sender: UserInfo, *, any_upstream: bool = False
    ) -> AppliedRules | None:
        """The rules that *requests*, which are all needed for one, fall under; None if there is none.

        *sender* is who has signed in: the actor, where somebody acts in the name of another.
        """
        needed = tuple(requests)
        rules = [
            rule for rule in self.rules if any(rule.covers(request, any_upstream=any_upstream) for request in needed)
        ]
        return AppliedRules(rules, context_of(sender)) if rules else None

    def first_unmet(self, sender: UserInfo, now: datetime) -> StepUpRule | None:
        """The first of all rules that *sender*'s sign-in is not enough for, whatever it is for."""
        return AppliedRules(self.rules, context_of(sender)).first_unmet(now)


def describe(required: RequiredAuthentication) -> str:
    """What is required, in words that a person reads."""
    parts = []
    if required.acr_values:
        parts.append(f"with {_one_of(required.acr_values)}")
    if required.amr_values:
        parts.append(f"by {_one_of(required.amr_values)}")
    if required.max_age is not None:
        parts.append(f"in the last {_span(required.max_age)}")
    return "a sign-in " + ", ".join(parts)


def _one_of(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"one of {', '.join(values)}"


def _span(span: timedelta) -> str:
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    if seconds or minutes < 1 or minutes >= 120:
        return short_duration(span)
    return "minute" if minutes == 1 else f"{minutes} minutes"


def describe_request(request: RequestInfo) -> str:
    """What is asked, in words that a person reads: ``delete pods/web in the namespace prod``."""
    if not request.is_resource:
        return f"{request.verb} {request.path}"
    subresource = f"/{request.subresource}" if request.subresource else ""
    kind = f"{request.resource}.{request.api_group}" if request.api_group else request.resource
    name = f" {request.name}" if request.name else ""
    where = f" in the namespace {request.namespace}" if request.namespace else ""
    return f"{request.verb} {kind}{subresource}{name}{where}"
