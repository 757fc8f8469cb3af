"""What a worker keeps over reloads, and what it logs about revocations."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from ostiary.gateway.config import default_config
from ostiary.gateway.config.values import Address
from ostiary.gateway.process.listener import bind
from ostiary.gateway.process.worker import Worker
from ostiary.interfaces.token_store import Revocation, RevocationKind


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
    await worker.stop(drain=0.0)
