"""One process of the gateway: what it says about itself, and why it cannot listen."""

from __future__ import annotations

import errno
import logging
import socket
from datetime import UTC, datetime

import pytest

from ostiary.errors import ConfigurationError
from ostiary.gateway.config import default_config
from ostiary.gateway.config.values import Address
from ostiary.gateway.process.health import HealthReport
from ostiary.gateway.process.worker import Worker, bind, listen_hint
from ostiary.interfaces.token_store import Revocation, RevocationKind

UNASKED = frozenset({"upstream b", "upstream c"})


async def test_a_probe_reads_plus_as_good() -> None:
    """H4."""
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    good = (await worker.report()).text()
    assert good == "[+] accepting requests\n[+] token store\n[+] revocations\nready\n"
    await worker.stop(drain=0.0)
    assert (await worker.report()).text().startswith("[-] accepting requests: it is stopping\n")


def test_what_is_never_asked_is_not_called_good() -> None:
    report = HealthReport((("upstream a", ""), ("upstream b", ""), ("upstream c", "failed 3 times in a row")), UNASKED)
    assert report.text().splitlines()[:3] == [
        "[+] upstream a",
        "[ ] upstream b: not asked, it has no health path",
        "[-] upstream c: failed 3 times in a row",
    ]
    assert HealthReport(report.checks[:2], UNASKED).ready


# --- where it cannot listen ---


def test_an_address_that_is_taken_is_somebody_elses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError) as raised:
        bind(Address("127.0.0.1", taken.getsockname()[1]))
    assert raised.value.hint == "stop the process that listens there, or choose another address"


def test_an_address_of_another_machine_cannot_be_freed_by_stopping_anything() -> None:
    # For documentation (RFC 5737): no machine has it.
    with pytest.raises(ConfigurationError) as raised:
        bind(Address("192.0.2.1", 0))
    assert raised.value.hint == "name an address of this machine; 0.0.0.0 or [::] stands for all of them"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "choose a port from 1024 on, or give the process CAP_NET_BIND_SERVICE"),
        (errno.ENOMEM, "choose another address"),
        (None, "choose another address"),
    ],
)
def test_every_reason_has_a_hint_that_fits(number: int | None, hint: str) -> None:
    assert listen_hint(number) == hint


# --- what it logs ---


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
