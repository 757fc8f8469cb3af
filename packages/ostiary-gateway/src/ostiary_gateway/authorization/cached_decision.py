"""The decision of the whole chain on a request, with the time for which it may be used again.

Made by `authorize.chain`; kept with a plan, and by the webhooks with their answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.core.cache import size_of
from ostiary.model import Attributes, Decision, Requirement, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class CachedDecision(Decision):
    """A decision that holds until a time, on the monotonic clock, and for one generation of the policy.

    `Authorizer.is_valid` says whether it may be used again for the same attributes. It equals every decision that
    says the same: for how long it holds is no part of that.
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
    """A refusal by the scope of a token, before the policy was asked; `scope` is what the token may be used for.

    Never hidden: it says nothing about what is there. Whoever holds a token may know what it is for.
    """

    scope: str = ""


# The ruling on a request for which nothing must be allowed.
NOTHING_ASKED = CachedDecision(Verdict.ALLOW)


def stricter(first: CachedDecision, second: CachedDecision) -> CachedDecision:
    """Both must allow: the refusal counts, and the shorter time."""
    decision = second if first.allowed else first
    return CachedDecision(
        decision.verdict,
        decision.reason,
        decision.hidden,
        until=min(first.until, second.until),
        generation=min(first.generation, second.generation),
    )


# Estimates how many bytes attributes take in memory, on the high side. Used by caches bounded in bytes.

# The objects themselves, without the text in them.
FIXED_BYTES = 1000


def attributes_size(attributes: Attributes) -> int:
    """All text in *attributes*: everything in them, the selectors too."""
    user, request = attributes.user, attributes.request
    texts = (
        *(user.username, user.uid, request.verb, request.method, request.path, request.modifier),
        *(request.api_group, request.api_version, request.namespace, request.resource, request.subresource),
        *(request.name, user.groups, user.extra, request.capabilities, request.upstream),
    )
    return size_of(texts) + _selector_size(request.field_selector) + _selector_size(request.label_selector)


def _selector_size(selector: tuple[Requirement, ...] | None) -> int:
    return sum(size_of((each.key, each.operator, each.values)) for each in selector or ())
