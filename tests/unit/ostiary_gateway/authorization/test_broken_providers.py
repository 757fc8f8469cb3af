"""What the gateway does with authorization providers that break their contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, cast

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.config.provider import OnError
from tests.unit.ostiary_gateway.authorization.providers import (
    ALICE,
    ALLOW,
    DENY,
    GET_POD,
    HIDDEN,
    POD,
    AtOnce,
    Slow,
    chain,
    raises,
)

BROKEN: dict[str, Callable[[Attributes], Any] | Decision] = {
    "raises": raises(RuntimeError("password=hunter2-hunter2")),
    "returns None": lambda attributes: None,
    "returns True": lambda attributes: True,
    "returns a text for a verdict": lambda attributes: Decision(cast(Verdict, "allow")),
    "refuses with ours": raises(ProviderError("the directory is away", cause="connection refused")),
}


async def test_a_provider_that_breaks_its_contract_ends_the_chain_with_an_error(subtests: pytest.Subtests) -> None:
    """S53, T5: fail closed, and tell "could not ask" from "no"."""
    cases: list[Callable[[Any], Any]] = [AtOnce, Slow]
    for how in BROKEN:
        for kind in cases:
            with subtests.test(how=how, kind=kind):
                broken, after = kind(BROKEN[how]), AtOnce(ALLOW)
                with pytest.raises(ProviderError) as caught:
                    await chain(broken, after).authorize(GET_POD)
                assert '"p0" is unavailable' in caught.value.summary
                assert "hunter2" not in str(caught.value)
                assert after.asked == []


async def test_a_provider_that_gives_up_by_itself_does_not_look_cancelled() -> None:
    """T5: else the caller would end as though somebody had cancelled it, without an answer."""
    with pytest.raises(ProviderError, match="is unavailable") as caught:
        await chain(Slow(raises(asyncio.CancelledError()))).authorize(GET_POD)
    assert caught.value.cause == "it cancelled the call"


class Stubborn:
    """Hangs, and resists being cancelled."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def authorize(self, attributes: Attributes) -> Decision:
        while True:
            try:
                await self.gate.wait()
                return ALLOW
            except asyncio.CancelledError:
                continue

    async def relevant_groups(self) -> frozenset[str]:
        await self.gate.wait()
        return frozenset()


async def test_a_provider_that_hangs_is_given_up() -> None:
    """S53, T5."""
    hanging, stubborn = Slow(ALLOW), Stubborn()
    hanging.gate.clear()
    for provider in (hanging, stubborn):
        with pytest.raises(ProviderError, match="is unavailable") as caught:
            await chain(provider, timeout=0.25).authorize(GET_POD)
        assert "within 0.25 seconds" in str(caught.value)
    with pytest.raises(ProviderError):
        await chain(stubborn, timeout=0.25).relevant_groups()
    stubborn.gate.set()


async def test_a_method_that_is_not_async_is_an_error_and_no_answer() -> None:
    class NotAsync(AtOnce):
        decide = None  # type: ignore[assignment]

        def authorize(self, attributes: Attributes) -> Decision:  # type: ignore[override]
            return ALLOW

    with pytest.raises(ProviderError):
        await chain(NotAsync(ALLOW)).authorize(GET_POD)


async def test_a_chain_may_go_on_without_a_provider_and_later_allow() -> None:
    """2.8: allow outranks error. S53: if nobody decides, it is an error and no refusal."""
    broken = AtOnce(raises(OSError("no route")))
    assert await chain(broken, AtOnce(ALLOW), on_error=OnError.NO_OPINION).authorize(GET_POD) == ALLOW
    assert await chain(broken, AtOnce(DENY), on_error=OnError.NO_OPINION).authorize(GET_POD) == DENY
    with pytest.raises(ProviderError, match='"p0" is unavailable'):
        await chain(broken, AtOnce(HIDDEN), on_error=OnError.NO_OPINION).authorize(GET_POD)
    with pytest.raises(ProviderError) as caught:
        chain(broken, broken, on_error=OnError.NO_OPINION).decide(GET_POD)
    assert '"p0"' in str(caught.value)
    assert '"p1"' in str(caught.value)


@pytest.mark.parametrize("kind", [AtOnce, Slow])
async def test_errors_are_not_remembered(kind: Callable[[Any], Any]) -> None:
    """T5: errors are never cached as answers."""
    provider = kind(raises(OSError()))
    authorizer = chain(provider)
    for _ in range(3):
        with pytest.raises(ProviderError):
            await authorizer.authorize(GET_POD)
    assert len(provider.asked) == 3
    provider.rule = lambda attributes: ALLOW
    assert await authorizer.authorize(GET_POD) == ALLOW


async def test_what_was_decided_without_somebody_may_not_be_used_again() -> None:
    """T5: he who is unavailable may be the one who denies."""
    authorizer = chain(AtOnce(raises(OSError())), AtOnce(ALLOW), on_error=OnError.NO_OPINION)
    ruling = await authorizer.authorize(GET_POD)
    assert ruling == ALLOW
    assert not authorizer.is_valid(ruling)


def test_attributes_that_cannot_be_looked_up_open_nothing() -> None:
    odd = Attributes(replace(ALICE, groups=cast("tuple[str, ...]", [*ALICE.groups])), POD)
    with pytest.raises(ProviderError):
        chain(AtOnce(ALLOW)).decide(odd)


class BadKey(AtOnce):
    def cache_key(self, attributes: Attributes) -> Hashable:
        raise KeyError("x")


def test_a_provider_that_cannot_choose_a_key_is_an_error() -> None:
    with pytest.raises(ProviderError, match="is unavailable"):
        chain(BadKey(ALLOW)).decide(GET_POD)
