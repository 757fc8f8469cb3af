"""The conformance suite for audit providers:

    class TestMyProvider(AuditContract):
        @pytest.fixture
        def provider(self): return MyProvider(...)

        @pytest.fixture
        def stored(self): return lambda: [...]     # the events that it has stored so far, as lines

        @pytest.fixture
        def broken(self): return MyProvider(...)   # one that cannot store anything

Requires pytest and pytest-asyncio.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import pytest

from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.audit import AuditProvider, Begins, RecordsAtOnce
from ostiary_gateway.interfaces.lifecycle import Closes
from ostiary_gateway.testing.capabilities import check_members

Stored = Callable[[], list[str]]


def make_events(*names: str) -> list[str]:
    """Return events as the gateway encodes them: one line of ASCII JSON each."""
    return [f"{json.dumps({'kind': 'Event', 'auditID': name, 'user': {'username': 'ann'}})}\n" for name in names]


class AuditContract:
    """Requires the fixtures `provider`, `stored` and `broken`, as shown at the top of the module."""

    @pytest.fixture
    def provider(self) -> AuditProvider:
        raise NotImplementedError("give a fixture `provider`")

    @pytest.fixture
    def stored(self) -> Stored:
        raise NotImplementedError("give a fixture `stored`: a function that returns the events that were kept")

    @pytest.fixture
    def broken(self) -> AuditProvider:
        raise NotImplementedError("give a fixture `broken`: a provider that cannot keep anything")

    def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, provider: AuditProvider) -> None:
        check_members("audit", provider)
        assert inspect.iscoroutinefunction(provider.store)

    @pytest.mark.asyncio
    async def test_events_are_kept_when_the_call_returns(self, provider: AuditProvider, stored: Stored) -> None:
        _begin(provider)
        await provider.store(make_events("1", "2", "3"))
        assert _ids(stored()) == ["1", "2", "3"]
        await _close(provider)

    @pytest.mark.asyncio
    async def test_batches_are_kept_in_their_order(self, provider: AuditProvider, stored: Stored) -> None:
        _begin(provider)
        for number in range(5):
            await provider.store(make_events(f"{number}a", f"{number}b"))
        assert _ids(stored()) == [f"{number}{letter}" for number in range(5) for letter in "ab"]
        await _close(provider)

    @pytest.mark.asyncio
    async def test_events_are_kept_exactly(self, provider: AuditProvider, stored: Stored) -> None:
        _begin(provider)
        events = make_events("\u00e9\U0001d518", 'a"b\\n', "\x00\x1b[31m", "x" * 300_000)
        await provider.store(events)
        assert [json.loads(line) for line in stored()] == [json.loads(line) for line in events]
        await _close(provider)

    @pytest.mark.asyncio
    async def test_no_events_are_no_mistake(self, provider: AuditProvider, stored: Stored) -> None:
        _begin(provider)
        await provider.store([])
        await provider.store(make_events("1"))
        assert _ids(stored()) == ["1"]
        await _close(provider)

    @pytest.mark.asyncio
    async def test_what_cannot_be_kept_is_said(self, broken: AuditProvider) -> None:
        """An event that is neither stored nor counted would be lost silently."""
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the provider raises
            await _store_in(broken)
        await _close(broken)

    @pytest.mark.asyncio
    async def test_closing_twice_or_unused_is_harmless(self, provider: AuditProvider) -> None:
        await _close(provider)
        await _close(provider)

    @pytest.mark.asyncio
    async def test_what_is_taken_at_once_is_kept_too(self, provider: AuditProvider, stored: Stored) -> None:
        """For providers that accept events synchronously, one by one."""
        at_once = ability(provider, RecordsAtOnce)
        if at_once is None:
            return
        _begin(provider)
        for line in make_events(*"abcdef"):
            at_once.accept(line)
        await at_once.flush()
        assert _ids(stored()) == list("abcdef")
        assert at_once.dropped == 0
        await _close(provider)

    @pytest.mark.asyncio
    async def test_blocking_what_is_taken_at_once_is_kept_when_the_call_returns(
        self, provider: AuditProvider, stored: Stored
    ) -> None:
        at_once = ability(provider, RecordsAtOnce)
        if at_once is None:
            return
        _begin(provider, blocking=True)
        for number, line in enumerate(make_events(*"abc"), start=1):
            at_once.accept(line)
            assert len(stored()) == number
        await _close(provider)


async def _store_in(provider: AuditProvider) -> None:
    _begin(provider)
    await provider.store(make_events("1"))


def _begin(provider: AuditProvider, *, blocking: bool = False) -> None:
    beginning = ability(provider, Begins)
    if beginning is not None:
        beginning.begin(blocking=blocking)


async def _close(provider: AuditProvider) -> None:
    closing = ability(provider, Closes)
    if closing is not None:
        await closing.close()


def _ids(lines: list[str]) -> list[str]:
    return [json.loads(line)["auditID"] for line in lines]
