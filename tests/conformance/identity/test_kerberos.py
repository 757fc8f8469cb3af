"""Kerberos keeps the contract of an identity provider, with tickets of a real KDC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

pytest.importorskip("gssapi", reason="missing: gssapi")

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.kerberos.identity import KerberosIdentity, KerberosService
from ostiary_gateway.providers.kerberos.principals import PrincipalNames, Realm
from ostiary_gateway.providers.kerberos.settings import KerberosRenewal
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.kdc import PROGRAMS, REALM, Kdc, running_kdc


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as kdc:
        kdc.add_person("alice")
        kdc.add_service("HTTP/localhost", "HTTP/elsewhere")
        kdc.keytab("HTTP/localhost")
        yield kdc


@pytest.mark.needs(*PROGRAMS)
class TestKerberosIdentity(IdentityContract):
    """S3, S10, S30."""

    @pytest.fixture
    async def provider(self, kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KerberosIdentity]:
        monkeypatch.setenv("KRB5_CONFIG", kdc.environment["KRB5_CONFIG"])
        provider = KerberosIdentity(
            KerberosService(str(kdc.folder / "service.keytab"), external_url="https://localhost:1234"),
            PrincipalNames([Realm(REALM)]),
            renewal=KerberosRenewal.KDC,
            clock=SYSTEM_CLOCK,
        )
        yield provider
        await provider.close()

    @pytest.fixture
    def proof(self, kdc: Kdc) -> LoginRequest:
        return ticket_for(kdc, "localhost")

    @pytest.fixture
    def wrong_proof(self, kdc: Kdc) -> LoginRequest:
        return ticket_for(kdc, "elsewhere")


def ticket_for(kdc: Kdc, host: str) -> LoginRequest:
    header = kdc.negotiate(kdc.kinit("alice"), host)
    return LoginRequest("GET", "/auth", headers=(("authorization", header),), remote_address="192.0.2.7")
