"""Which tokens and client certificates are those of callers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ostiary_gateway.authentication.callers import (
    CALLERS_SECONDS,
    MOST_CERTIFICATES,
    CallerToken,
    CertificateNames,
    common_name,
)
from ostiary_gateway.sessions import digest
from ostiary_gateway.testing import FakeClock

AUTHORITY = trustme.CA()


def certificate(common_name: str | None) -> bytes:
    """A client certificate in DER."""
    leaf = AUTHORITY.issue_cert("caller.example", common_name=common_name)
    return x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).public_bytes(Encoding.DER)


def test_only_certificates_with_a_listed_name_are_accepted_each_time() -> None:
    names = CertificateNames(["nginx", "envoy"])
    for name, expected in (("nginx", True), ("envoy", True), ("other", False), (None, False)):
        der = certificate(name)
        assert [names.include(der), names.include(der)] == [expected, expected], name


def test_without_a_certificate_or_without_names_nobody_is_accepted() -> None:
    assert not CertificateNames(["nginx"]).include(None)
    # It is not even read.
    assert not CertificateNames([]).include(b"no certificate")


def test_a_certificate_is_accepted_after_many_others() -> None:
    names, der = CertificateNames(["nginx"]), certificate("nginx")
    assert names.include(der)
    for number in range(MOST_CERTIFICATES + 1):
        assert not names.include(certificate(f"other-{number}"))
    assert names.include(der)


def test_the_token_of_the_file_is_read_again_after_a_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", FakeClock()
    file.write_text(" first\n")
    token = CallerToken(file, clock)
    assert token.digest() == digest(b"first")
    file.write_text("second")
    clock.advance(CALLERS_SECONDS / 2)
    assert token.digest() == digest(b"first")
    clock.advance(CALLERS_SECONDS / 2)
    assert token.digest() == digest(b"second")


def test_the_time_may_be_told_by_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = CallerToken(file, FakeClock())
    assert token.digest(1000.0) == digest(b"first")
    file.write_text("second")
    assert token.digest(1000.5) == digest(b"first")
    assert token.digest(1000.0 + CALLERS_SECONDS) == digest(b"second")


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file_holds_no_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(OSError, match="no token"):
        CallerToken(tmp_path / "token", FakeClock()).digest()


@pytest.mark.parametrize(
    ("usages", "name"),
    [
        ([ExtendedKeyUsageOID.CLIENT_AUTH], "nginx"),
        ([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE], "nginx"),
        ([ExtendedKeyUsageOID.SERVER_AUTH], ""),
        ([], ""),
    ],
)
def test_only_a_certificate_for_clients_has_a_name(usages: list[x509.ObjectIdentifier], name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nginx")])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 7)
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    assert common_name(builder.sign(key, SHA256()).public_bytes(Encoding.DER)) == name
