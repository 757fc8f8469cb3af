"""An issuer over TLS, and relying parties of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import Issuer

Make = Callable[..., OidcIdentity]


@pytest.fixture
def issuer(ca: trustme.CA, clock: FakeClock) -> Iterator[Issuer]:
    with Issuer(ca, clock).running() as server:
        yield server


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> Path:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return tmp_path / "ca.pem"


@pytest.fixture
async def make(issuer: Issuer, ca_file: Path, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[OidcIdentity] = []
    (tmp_path / "secret").write_text(f"{issuer.client_secret}\n")

    def make(seconds: float = 60.0, **settings: Any) -> OidcIdentity:
        given: dict[str, Any] = {
            "issuer": issuer.url,
            "client_id": issuer.client_id,
            "client_secret_file": tmp_path / "secret",
            "outbound": Outbound("the issuer", ca=ca_file, seconds=seconds),
            "clock": clock,
        }
        made.append(OidcIdentity(**{**given, **settings}))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()


@pytest.fixture
def provider(make: Make) -> OidcIdentity:
    return make()
