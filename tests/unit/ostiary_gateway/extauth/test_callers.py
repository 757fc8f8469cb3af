"""Whether it is the proxy that asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ostiary_gateway.authentication.callers import CALLERS_SECONDS
from ostiary_gateway.config.extauth import Callers
from ostiary_gateway.extauth.callers import DoorCallers, presented_secret
from ostiary_gateway.sessions import digest
from ostiary_gateway.testing import FakeClock

HEADER = b"X-Ostiary-Door"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("the secret\n")
    return tmp_path / "secret"


def test_the_secret_of_the_file_opens_and_nothing_else_does(file: Path) -> None:
    callers = DoorCallers(Callers(token_file=file), FakeClock())
    for value, expected in ((b"the secret", True), (b"another", False), (b"the secret\n", False), (b"", False)):
        assert callers.include(None, presented_secret([(HEADER, value)])) is expected, value
    assert not callers.include(None, presented_secret([]))


def test_two_secrets_are_none(file: Path) -> None:
    callers = DoorCallers(Callers(token_file=file), FakeClock())
    assert not callers.include(None, presented_secret([(HEADER, b"the secret"), (HEADER, b"the secret")]))


def test_a_changed_secret_is_in_force_within_a_second(file: Path) -> None:
    clock = FakeClock()
    callers = DoorCallers(Callers(token_file=file), clock)
    assert callers.include(None, digest(b"the secret"))
    file.write_text("the next")
    clock.advance(seconds=CALLERS_SECONDS)
    assert not callers.include(None, digest(b"the secret"))
    assert callers.include(None, digest(b"the next"))


def test_a_file_that_cannot_be_read_opens_nothing(file: Path) -> None:
    callers = DoorCallers(Callers(token_file=file), FakeClock())
    file.write_text("")
    with pytest.raises(OSError, match="no token"):
        callers.include(None, digest(b""))


def test_without_a_file_no_secret_counts() -> None:
    assert not DoorCallers(Callers(names=("nginx",)), FakeClock()).include(None, presented_secret([]))


def test_a_client_certificate_with_a_listed_name_opens() -> None:
    leaf = trustme.CA().issue_cert("nginx.example", common_name="nginx")
    der = x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)
    assert DoorCallers(Callers(names=("nginx",)), FakeClock()).include(der, presented_secret([]))
    assert not DoorCallers(Callers(names=("other",)), FakeClock()).include(der, presented_secret([]))
