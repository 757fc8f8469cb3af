"""Who may call the webhooks: by the name in a client certificate, or by the token of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ostiary_gateway.api.webhooks import WebhookCallers
from ostiary_gateway.authentication.callers import CALLERS_SECONDS, common_name
from ostiary_gateway.config.extauth import Callers
from ostiary_gateway.http1.headers import FilteredHeaders
from ostiary_gateway.sessions import digest
from ostiary_gateway.testing import FakeClock


def der(name: str | None) -> bytes:
    certificate = trustme.CA().issue_cert(*(() if name else ("host.example.test",)), common_name=name)
    pem = certificate.cert_chain_pems[0].bytes()
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def bearing(token: str | None) -> FilteredHeaders:
    scanned = FilteredHeaders()
    scanned.authorization = None if token is None else f"Bearer {token}".encode()
    return scanned


def test_a_caller_is_known_by_the_common_name_of_its_certificate(clock: FakeClock) -> None:
    callers = WebhookCallers(Callers(names=("kube-apiserver",)), clock)
    assert callers.include(der("kube-apiserver"), bearing(None))
    assert not callers.include(der("somebody"), bearing(None))
    assert not callers.include(None, bearing("token"))


def test_a_certificate_without_a_name_is_nobodys(clock: FakeClock) -> None:
    assert common_name(der(None)) == ""
    assert not WebhookCallers(Callers(names=("kube-apiserver",)), clock).include(der(None), bearing(None))


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_a_caller_is_known_by_the_token_of_the_file(token_file: Path, clock: FakeClock) -> None:
    callers = WebhookCallers(Callers(token_file=token_file), clock)
    assert callers.include(None, bearing("first"))
    assert not callers.include(None, bearing("second"))
    assert not callers.include(None, bearing(None))


def test_of_a_remembered_head_the_digest_is_enough(token_file: Path, clock: FakeClock) -> None:
    scanned = bearing(None)
    scanned.digest = digest("first")
    assert WebhookCallers(Callers(token_file=token_file), clock).include(None, scanned)


def test_a_replaced_token_is_taken_up_within_a_second(token_file: Path, clock: FakeClock) -> None:
    callers = WebhookCallers(Callers(token_file=token_file), clock)
    assert callers.include(None, bearing("first"))
    token_file.write_text("second")
    clock.advance(seconds=CALLERS_SECONDS)
    assert callers.include(None, bearing("second"))
    assert not callers.include(None, bearing("first"))


def test_a_file_that_is_missing_or_empty_is_an_error_and_lets_nobody_in(token_file: Path, clock: FakeClock) -> None:
    callers = WebhookCallers(Callers(token_file=token_file), clock)
    token_file.write_text("\n")
    with pytest.raises(OSError, match="holds no token"):
        callers.include(None, bearing(""))
    token_file.unlink()
    with pytest.raises(FileNotFoundError):
        callers.include(None, bearing("first"))
