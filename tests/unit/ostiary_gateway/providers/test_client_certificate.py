"""A client certificate says who somebody is, as it does to Kubernetes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.client_certificate import CREDENTIAL_ID, ClientCertificateIdentity
from ostiary_gateway.providers.client_certificate_reading import read_certificate
from ostiary_gateway.providers.common.refresh import Renewal
from ostiary_gateway.testing import FakeClock
from tests.support.certificates import DAY, certificate


def visit(der: bytes | None) -> LoginRequest:
    return LoginRequest("GET", "/auth", peer_certificate=der)


@pytest.fixture
def provider(clock: FakeClock) -> ClientCertificateIdentity:
    return ClientCertificateIdentity(clock=clock)


async def test_the_common_name_is_the_user_and_the_organizations_are_groups(
    provider: ClientCertificateIdentity, clock: FakeClock
) -> None:
    """S1, S28, S41."""
    der = certificate("alice", organizations=("dev", "a,b", "dev"), now=clock.now())
    user = await provider.handle_client(visit(der))
    digest = hashlib.sha256(der).hexdigest()
    assert user == UserInfo("alice", groups=("dev", "a,b"), extra=((CREDENTIAL_ID, (f"X509SHA256={digest}",)),))


async def test_the_credential_id_can_be_left_out(clock: FakeClock) -> None:
    provider = ClientCertificateIdentity(credential_id=False, clock=clock)
    assert (await provider.handle_client(visit(certificate("alice", now=clock.now())))).extra == ()


@pytest.mark.parametrize("names", [(), ("alice", "bob"), (" alice",), ("ali\nce",)])
async def test_a_certificate_without_one_usable_name_is_refused(
    provider: ClientCertificateIdentity, clock: FakeClock, names: tuple[str, ...]
) -> None:
    with pytest.raises(LoginRefused, match="has no user name"):
        await provider.handle_client(visit(certificate(*names, now=clock.now())))


@pytest.mark.parametrize("der", [None, b"", b"nonsense"])
async def test_without_a_certificate_nobody_comes_in(provider: ClientCertificateIdentity, der: bytes | None) -> None:
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(der))


async def test_a_certificate_whose_time_ended_while_the_connection_was_open_is_refused(
    provider: ClientCertificateIdentity, clock: FakeClock
) -> None:
    der = certificate("alice", now=clock.now())
    clock.advance(DAY.total_seconds())
    assert await provider.handle_client(visit(der))
    clock.advance(1)
    with pytest.raises(LoginRefused, match="not valid"):
        await provider.handle_client(visit(der))


@pytest.mark.parametrize(
    ("usage", "good"),
    [
        (None, False),
        (ExtendedKeyUsageOID.CLIENT_AUTH, True),
        (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, True),
        (ExtendedKeyUsageOID.SERVER_AUTH, False),
        (ExtendedKeyUsageOID.EMAIL_PROTECTION, False),
    ],
)
async def test_a_certificate_for_another_purpose_is_refused(
    provider: ClientCertificateIdentity, clock: FakeClock, usage: ObjectIdentifier | None, good: bool
) -> None:
    """T6."""
    request = visit(certificate("alice", now=clock.now(), usage=usage))
    if good:
        assert await provider.handle_client(request)
        return
    with pytest.raises(LoginRefused):
        await provider.handle_client(request)


async def test_a_session_can_be_made_to_end_with_its_first_token() -> None:
    """T3."""
    assert not hasattr(ClientCertificateIdentity(), "revalidate")
    with pytest.raises(LoginRefused):
        await ClientCertificateIdentity(renewal=Renewal.SIGN_IN).revalidate(UserInfo("alice"))


def test_it_reads_its_settings() -> None:
    for text, problems in (("{}", 0), ("{credentialID: false, renewal: signIn}", 0), ("renewal: 1h", 1)):
        reading = ConfigReader(parse(text))
        ClientCertificateIdentity.from_config(reading.root, Context())
        assert len(reading.problems) == problems


@given(st.binary(max_size=100))
def test_any_bytes_are_a_certificate_or_none(der: bytes) -> None:
    assert read_certificate(der) is None


# --- X.509-SVIDs, of a mesh or of Kubernetes' pod certificates ---


SPIFFE_ID = "spiffe://example.org/ns/shop/sa/deployer"


def usage(*, sign: bool = False) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    others = dict.fromkeys((*names, "decipher_only", "crl_sign"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=sign, **others)


def svid(clock: FakeClock, *uris: str, extensions: Sequence[x509.ExtensionType] | None = None, name: str = "") -> bytes:
    given = [x509.BasicConstraints(ca=False, path_length=None), usage()] if extensions is None else extensions
    names = [x509.UniformResourceIdentifier(uri) for uri in uris] + [x509.DNSName("deployer.example.org")]
    organizations = ("SPIRE", "system:masters")
    return certificate(
        *filter(None, (name,)), organizations=organizations, now=clock.now(), alternative=names, extensions=given
    )


@pytest.fixture
def mesh(clock: FakeClock) -> ClientCertificateIdentity:
    reading = ConfigReader(parse("spiffeTrustDomain: example.org\ncredentialID: false"))
    provider = ClientCertificateIdentity.from_config(reading.root, Context("mesh", clock=clock))
    assert (reading.problems, reading.unknown_fields()) == ([], ())
    return provider


async def test_the_spiffe_id_is_the_user_and_the_subject_counts_for_nothing(
    mesh: ClientCertificateIdentity, clock: FakeClock
) -> None:
    """S41, S72."""
    assert await mesh.handle_client(visit(svid(clock, SPIFFE_ID, name="alice"))) == UserInfo(SPIFFE_ID)
    assert await mesh.handle_client(visit(svid(clock, SPIFFE_ID, extensions=()))) == UserInfo(SPIFFE_ID)


@pytest.mark.parametrize(
    "uris",
    [
        (),
        (SPIFFE_ID, "spiffe://example.org/another"),
        ("https://example.org/ns/shop", SPIFFE_ID),
        ("spiffe://example.com/ns/shop/sa/deployer",),
        ("spiffe://example.org",),
        ("spiffe://example.org/a/../b",),
        ("https://example.org/ns/shop/sa/deployer",),
    ],
)
async def test_a_certificate_that_is_no_svid_of_the_trust_domain_is_refused(
    mesh: ClientCertificateIdentity, clock: FakeClock, uris: tuple[str, ...]
) -> None:
    with pytest.raises(LoginRefused):
        await mesh.handle_client(visit(svid(clock, *uris, name="alice")))


@pytest.mark.parametrize(
    "extensions", [[x509.BasicConstraints(ca=True, path_length=None)], [usage(sign=True)]], ids=["CA", "signs"]
)
async def test_a_certificate_that_may_sign_others_is_nobodys(
    mesh: ClientCertificateIdentity, clock: FakeClock, extensions: list[x509.ExtensionType]
) -> None:
    with pytest.raises(LoginRefused):
        await mesh.handle_client(visit(svid(clock, SPIFFE_ID, extensions=extensions)))


async def test_without_the_setting_a_spiffe_id_is_no_name(
    provider: ClientCertificateIdentity, clock: FakeClock
) -> None:
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(svid(clock, SPIFFE_ID)))


@pytest.mark.parametrize("domain", ["spiffe://example.org", "Example.org", "a/b"])
def test_what_is_no_trust_domain_is_told(domain: str) -> None:
    reading = ConfigReader(parse(f"spiffeTrustDomain: {domain}"))
    ClientCertificateIdentity.from_config(reading.root, Context("mesh"))
    assert [problem.place.path for problem in reading.problems] == ["spiffeTrustDomain"]
