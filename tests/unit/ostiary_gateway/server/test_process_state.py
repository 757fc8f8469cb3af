"""What a worker keeps over reloads, and what it logs about revocations."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ostiary.errors import TooManyRequests
from ostiary_gateway.config import default_config
from ostiary_gateway.config.values import Address
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.testing import FakeClock
from tests.support.count_store import CountingTokenStore, MemoryCountStore


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (RevocationKind.USER, "alice", ("user", "alice")),
        (RevocationKind.GROUP, "devs", ("group", "devs")),
        (RevocationKind.SESSION, "0a1b2c3d4e5f6g7h8i9j0k", ("session_id", "0a1b2c3d4e5f6g7h8i9j0k")),
        (RevocationKind.TOKEN, "ab" * 32, ("digest", "abababab")),
        (RevocationKind.BEFORE, "", ("before", "2026-01-01T00:00:00+00:00")),
    ],
)
async def test_a_revocation_says_whom_it_is_about(
    caplog: pytest.LogCaptureFixture, kind: RevocationKind, value: str, told: tuple[str, str]
) -> None:
    """S64."""
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    revocation = Revocation(kind, value, datetime(2026, 1, 1, tzinfo=UTC), by="root")
    with caplog.at_level(logging.INFO, "ostiary.gateway"):
        await worker.app.shared.authenticator.revoked_streams.apply(revocation)
    (record,) = [record for record in caplog.records if "a revocation took effect" in record.message]
    fields = vars(record)
    assert (fields["kind"], fields["by"], fields[told[0]]) == (kind.value, "root", told[1])
    assert "ab" * 5 not in str(fields)
    await worker.close(drain=0.0)


def admitted(worker: Worker) -> int:
    """How many of twenty requests the rate limit of a user lets pass."""
    passed = 0
    for _ in range(20):
        try:
            worker.app.shared.limits.check_rate("alice")
        except TooManyRequests:
            break
        passed += 1
    return passed


async def test_replicas_whose_store_keeps_counts_limit_a_user_together() -> None:
    clock = FakeClock()
    counts = MemoryCountStore(clock)
    config = replace(default_config(clock=clock), limits=LimitSettings(requests_per_second=0.001, burst=10))
    workers = [
        Worker(
            replace(config, store=replace(config.store, instance=CountingTokenStore(counts, clock))),
            bind(Address("127.0.0.1", 0)),
            clock=clock,
        )
        for _ in range(2)
    ]
    assert admitted(workers[0]) == 10
    await workers[0].close(drain=0.0)
    workers[1].app.shared.limits.check_rate("alice")
    exchange = workers[1].app.shared.count_exchange
    assert exchange is not None
    await exchange.exchange()
    assert admitted(workers[1]) == 0
    await workers[1].close(drain=0.0)


async def test_a_store_that_keeps_no_counts_is_asked_for_none() -> None:
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    assert worker.app.shared.count_exchange is None
    assert not worker.app.shared.counts.is_joined
    await worker.close(drain=0.0)
