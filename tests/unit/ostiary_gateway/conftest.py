"""Fixtures of the gateway's unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary.testing import FakeClock
from tests.support.issuer import Issuer
from tests.support.relying_party import RelyingParty
from tests.unit.ostiary_gateway.signing_in import make

__all__ = ["make"]


@pytest.fixture
async def party(ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[RelyingParty]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with Issuer(ca, clock).running() as issuer:
        party = RelyingParty(issuer, tmp_path, clock)
        yield party
        await party.close()
