"""A ruling is a decision that says for how long it holds."""

from __future__ import annotations

import pytest

from ostiary.model import Decision, Verdict
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED, CachedDecision, stricter


def test_a_ruling_equals_every_decision_that_says_the_same() -> None:
    ruling = CachedDecision(Verdict.DENY, "why", True, until=5.0, generation=3)
    assert ruling == CachedDecision(Verdict.DENY, "why", True, until=9.0, generation=4)
    assert ruling == Decision(Verdict.DENY, "why", hidden=True)
    assert Decision(Verdict.DENY, "why", hidden=True) == ruling
    assert hash(ruling) == hash(Decision(Verdict.DENY, "why", hidden=True))


@pytest.mark.parametrize(
    "other",
    [
        Decision(Verdict.NO_OPINION, "why", hidden=True),
        Decision(Verdict.DENY, "another", hidden=True),
        Decision(Verdict.DENY, "why"),
        (Verdict.DENY, "why", True),
    ],
)
def test_a_ruling_differs_from_whatever_says_something_else(other: object) -> None:
    assert CachedDecision(Verdict.DENY, "why", True) != other


class Anything:
    """Says of everything that it is equal."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def test_whatever_is_no_decision_is_asked_itself_whether_it_is_equal() -> None:
    assert CachedDecision(Verdict.DENY, "why") == Anything()


def test_what_needs_no_permission_is_allowed_and_never_holds() -> None:
    assert NOTHING_ASKED.allowed
    assert NOTHING_ASKED.until == float("-inf")


ALLOW = CachedDecision(Verdict.ALLOW, "first", until=5.0, generation=3)
LATER = CachedDecision(Verdict.ALLOW, "second", until=9.0, generation=2)
DENY = CachedDecision(Verdict.DENY, "no", True, until=7.0, generation=4)


@pytest.mark.parametrize(
    ("first", "second", "says", "until", "generation"),
    [
        (ALLOW, LATER, LATER, 5.0, 2),
        (ALLOW, DENY, DENY, 5.0, 3),
        (DENY, ALLOW, DENY, 5.0, 3),
        (DENY, LATER, DENY, 7.0, 2),
    ],
)
def test_the_refusal_and_the_shorter_time_count(
    first: CachedDecision, second: CachedDecision, says: CachedDecision, until: float, generation: int
) -> None:
    both = stricter(first, second)
    assert both == says
    assert (both.until, both.generation) == (until, generation)
