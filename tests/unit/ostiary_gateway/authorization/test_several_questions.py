"""A request that requires several things: all must be allowed, and the first refusal ends it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authorization.providers import ALICE, POD, AtOnce, Slow

QUESTIONS = tuple(Attributes(ALICE, replace(POD, verb=verb)) for verb in ("get", "create", "delete"))


async def test_the_first_refusal_ends_it_and_is_the_one_that_is_told(subtests: pytest.Subtests) -> None:
    kinds: list[type[AtOnce] | type[Slow]] = [AtOnce, Slow]

    def allow_but(refused: str, attributes: Attributes) -> Decision:
        verb = attributes.request.verb
        return Decision(Verdict.DENY, f"no {verb}") if verb == refused else Decision(Verdict.ALLOW, verb)

    for refused in ["get", "create", "delete"]:
        for kind in kinds:
            with subtests.test(refused=refused, kind=kind):
                clock = FakeClock()
                provider = kind(partial(allow_but, refused))
                authorizer = Authorizer([Link("only", provider)], clock=clock)
                ruling = authorizer.decide(*QUESTIONS)
                if ruling is None:
                    ruling = await authorizer.authorize(*QUESTIONS)
                assert (ruling.verdict, ruling.reason) == (Verdict.DENY, f"no {refused}")
                verbs = ["get", "create", "delete"]
                assert [asked.request.verb for asked in provider.asked] == verbs[: verbs.index(refused) + 1]


@pytest.mark.parametrize("kind", [AtOnce, Slow])
async def test_all_of_it_is_asked_where_everything_is_allowed(
    kind: type[AtOnce] | type[Slow], clock: FakeClock
) -> None:
    provider = kind(Decision(Verdict.ALLOW))
    authorizer = Authorizer([Link("only", provider)], clock=clock)
    ruling = authorizer.decide(*QUESTIONS) or await authorizer.authorize(*QUESTIONS)
    assert ruling.allowed
    assert len(provider.asked) == 3
