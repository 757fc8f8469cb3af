"""Step-up rules: which rules a request falls under, and whether the user's sign-in satisfies them.

    plan made   StepUpRules.applying(requests, sender)  ->  AppliedRules, once per plan
    request     AppliedRules.is_met(now)                ->  two comparisons of times

Applied after the policy has allowed the request: a rule grants nothing, and is not disclosed to users without the
permission. A request whose extent is unknown (all objects of a kind, all namespaces) falls under the rule.
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
    """A configured rule. Rules with equal settings are equal."""

    settings: StepUpRuleSettings

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def required(self) -> RequiredAuthentication:
        return self.settings.required

    def covers(self, request: RequestInfo, *, any_upstream: bool = False) -> bool:
        """Whether *request* falls under the rule. *any_upstream*: the upstream is unknown."""
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
    """Return the verbs of *request*: a shell opened by POST (create) or by WebSocket (get) counts as both."""
    is_connect = request.subresource in CONNECTS and request.verb in ("get", "create")
    return ("get", "create") if is_connect else (request.verb,)


def _has(values: Sequence[str], value: str) -> bool:
    return value in values or ANY in values


def _may_touch(request: RequestInfo, namespaces: Sequence[str]) -> bool:
    """A named object without a namespace is cluster-scoped. A request without a name may affect all namespaces."""
    return request.namespace in namespaces or (not request.namespace and not request.name)


class AppliedRules:
    """The rules that a request falls under, with the authentication context of its sender."""

    __slots__ = ("_context", "_met_from", "_met_until", "rules")

    def __init__(self, rules: Sequence[StepUpRule], context: AuthenticationContext) -> None:
        self.rules = tuple(rules)
        self._context = context
        self._met_from, self._met_until = _met_between(self.rules, context)

    def is_met(self, now: datetime) -> bool:
        return self._met_from <= now <= self._met_until

    def first_unmet(self, now: datetime) -> StepUpRule | None:
        """Return the first rule that the sign-in does not satisfy."""
        return next((rule for rule in self.rules if not satisfies(self._context, rule.required, now=now)), None)

    @property
    def names(self) -> str:
        return ",".join(rule.name for rule in self.rules)


def _met_between(rules: Iterable[StepUpRule], context: AuthenticationContext) -> tuple[datetime, datetime]:
    """Return when *context* satisfies all of *rules*. The end is before the beginning if it never does."""
    begins, ends = _NEVER, _ALWAYS
    for rule in rules:
        at = context.auth_time if context.auth_time is not None and rule.required.max_age is not None else _NEVER
        if not satisfies(context, rule.required, now=at):
            return _ALWAYS, _NEVER
        if rule.required.max_age is not None:
            begins, ends = max(begins, at - MAX_AHEAD), min(ends, at + rule.required.max_age)
    return begins, ends


class StepUpRules:
    """The rules of one configuration."""

    def __init__(self, rules: Iterable[StepUpRuleSettings]) -> None:
        self.rules = tuple(StepUpRule(rule) for rule in rules)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def find(self, name: str) -> StepUpRule | None:
        return next((rule for rule in self.rules if rule.name == name), None)

    def applying(
        self, requests: Iterable[RequestInfo], sender: UserInfo, *, any_upstream: bool = False
    ) -> AppliedRules | None:
        """Return the rules that apply to *requests*, the permissions of one request; None if there are none.

        *sender* is the user who signed in: the actor, in case of impersonation.
        """
        needed = tuple(requests)
        rules = [
            rule for rule in self.rules if any(rule.covers(request, any_upstream=any_upstream) for request in needed)
        ]
        return AppliedRules(rules, context_of(sender)) if rules else None

    def first_unmet(self, sender: UserInfo, now: datetime) -> StepUpRule | None:
        """Return the first of all rules that *sender*'s sign-in does not satisfy."""
        return AppliedRules(self.rules, context_of(sender)).first_unmet(now)


def describe(required: RequiredAuthentication) -> str:
    """Describe the requirement for users."""
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
    """Describe a request for users, such as ``delete pods/web in the namespace prod``."""
    if not request.is_resource:
        return f"{request.verb} {request.path}"
    subresource = f"/{request.subresource}" if request.subresource else ""
    kind = f"{request.resource}.{request.api_group}" if request.api_group else request.resource
    name = f" {request.name}" if request.name else ""
    where = f" in the namespace {request.namespace}" if request.namespace else ""
    return f"{request.verb} {kind}{subresource}{name}{where}"
