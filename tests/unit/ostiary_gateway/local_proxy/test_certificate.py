"""The certificate of a listener: for 127.0.0.1 alone, by an authority that signs nothing else."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary_gateway.local_proxy.certificate import LIFETIME, RENEWED_BEFORE, load_into, make_certificate
from ostiary_gateway.testing import FakeClock


def test_it_is_one_for_loopback_and_its_authority_is_confined_to_that() -> None:
    made = make_certificate(SYSTEM_CLOCK)
    authority = x509.load_pem_x509_certificate(made.authority_pem.encode())
    leaf = x509.load_pem_x509_certificate(made.certificate_pem.encode())
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == []
    constraints = authority.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    # Neither the key of the authority nor that of the certificate is in what goes into a kubeconfig.
    assert "PRIVATE" not in made.authority_pem + made.certificate_pem
    assert made.key_pem.reveal() not in repr(made)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_into(context, made)


def test_it_lasts_for_years_and_is_renewed_in_time(clock: FakeClock) -> None:
    made = make_certificate(clock)
    assert datetime.fromtimestamp(made.expires_at, UTC) == clock.now() + LIFETIME
    clock.advance((LIFETIME - RENEWED_BEFORE - timedelta(seconds=1)).total_seconds())
    assert not made.should_be_renewed(clock.now())
    clock.advance(1)
    assert made.should_be_renewed(clock.now())
    assert not made.is_expired(clock.now())
    clock.advance(RENEWED_BEFORE.total_seconds())
    assert made.is_expired(clock.now())
