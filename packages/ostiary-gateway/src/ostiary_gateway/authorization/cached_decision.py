"""A decision of the whole chain, with its validity, for caches of plans and webhook responses."""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.core.cache import size_of
from ostiary.model import Attributes, Decision, Requirement, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class CachedDecision(Decision):
    """A decision that is valid until a monotonic time and for one policy generation: see `Authorizer.is_valid`.

    Equality ignores the validity: decisions with equal content are equal.
    """

    until: float = float("-inf")
    generation: int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        mine, theirs = (self.verdict, self.reason, self.hidden), (other.verdict, other.reason, other.hidden)
        return mine == theirs

    __hash__ = Decision.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class OutOfScope(CachedDecision):
    """A denial by the scope of a token, before the policy was queried. `scope` is the token's scope.

    Never hidden: it reveals nothing about existing objects, and the owner of a token may know its scope.
    """

    scope: str = ""


# The decision on a request that requires no permission.
NOTHING_ASKED = CachedDecision(Verdict.ALLOW)


def stricter(first: CachedDecision, second: CachedDecision) -> CachedDecision:
    """Combine two decisions that must both allow: the denial applies, and the shorter validity."""
    decision = second if first.allowed else first
    return CachedDecision(
        decision.verdict,
        decision.reason,
        decision.hidden,
        until=min(first.until, second.until),
        generation=min(first.generation, second.generation),
    )


# Estimates of memory use, on the high side, for caches that are bounded in bytes.

# The objects themselves, without their text.
FIXED_BYTES = 1000


def attributes_size(attributes: Attributes) -> int:
    """Return the size of all text in *attributes*, including selectors."""
    user, request = attributes.user, attributes.request
    texts = (
        *(user.username, user.uid, request.verb, request.method, request.path, request.modifier),
        *(request.api_group, request.api_version, request.namespace, request.resource, request.subresource),
        *(request.name, user.groups, user.extra, request.capabilities, request.upstream),
    )
    return size_of(texts) + _selector_size(request.field_selector) + _selector_size(request.label_selector)


def _selector_size(selector: tuple[Requirement, ...] | None) -> int:
    return sum(size_of((each.key, each.operator, each.values)) for each in selector or ())
