"""Asking everything outside that a configuration needs: each answers, fails, or does not answer in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ostiary.errors import ProviderError
from ostiary.gateway.config import default_config
from ostiary.gateway.config.settings import Identity
from ostiary.gateway.process.online_check import ProbeResult, probe_all


class Probed:
    """An identity provider that can be probed."""

    def __init__(self, answer: str | Exception | None) -> None:
        self.answer, self.count = answer, 0

    async def handle_client(self, request: object) -> None: ...

    async def handle_provider(self, request: object) -> None: ...

    async def probe(self) -> str:
        self.count += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


async def probe(**answers: str | Exception | None) -> list[ProbeResult]:
    identity = tuple(Identity(name, "test", Probed(answer)) for name, answer in answers.items())  # type: ignore[arg-type]
    return await probe_all(replace(default_config(), identity=identity, upstreams=()), seconds=0.01)


async def test_each_system_is_reported_in_the_order_of_the_configuration() -> None:
    broken = ProviderError("it cannot be reached", cause="connection refused", hint="start it")
    first, second, third = await probe(first="it answered", second=broken, third=None)
    assert first == ProbeResult('identity "first"', True, "it answered")
    assert not second.ok
    assert "connection refused" in second.detail
    assert second.detail.endswith("(start it)")
    assert third == ProbeResult('identity "third"', False, "it did not answer within 0.01 seconds")


async def test_a_provider_that_is_configured_twice_is_asked_once() -> None:
    provider = Probed("it answered")
    identity = tuple(Identity(name, "test", provider) for name in ("one", "two"))  # type: ignore[arg-type]
    results = await probe_all(replace(default_config(), identity=identity, upstreams=()))
    assert [result.what for result in results] == ['identity "one"']
    assert provider.count == 1
