"""Metadata of the identity system: from a file or an address, signed or not, and for how long it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from ostiary.errors import ProviderError
from ostiary_gateway.providers.saml.metadata import IdentitySystem as Described
from ostiary_gateway.providers.saml.metadata import read_metadata
from ostiary_gateway.providers.saml.settings import ALGORITHMS, SamlBinding
from ostiary_gateway.providers.saml.xml import DocumentRefused
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import HttpServer, Response
from tests.support.saml.documents import MD, IdentitySystem, sign, signer, text
from tests.support.saml.service import Service
from tests.unit.ostiary_gateway.providers.saml.test_logout import by_redirect, logout_request


def read(document: etree._Element | bytes, **options: Any) -> Described:
    content = document if isinstance(document, bytes) else text(document)
    return read_metadata(content, algorithms=tuple(ALGORITHMS), **options)


def test_it_says_where_and_with_which_keys() -> None:
    idp = IdentitySystem()
    system = read(idp.metadata(idp.signer, signer("idp-new")))
    assert system.entity_id == idp.entity_id
    assert system.sign_on[SamlBinding.REDIRECT].location == "https://idp.example.com/sso"
    assert system.logout[SamlBinding.POST].response_location == "https://idp.example.com/slo"
    assert system.certificates == (idp.signer.certificate, signer("idp-new").certificate)


def test_one_of_several_is_named() -> None:
    one, other = IdentitySystem("https://one.example.com"), IdentitySystem("https://other.example.com")
    both = etree.Element(f"{{{MD}}}EntitiesDescriptor")
    both.extend([one.metadata(), other.metadata()])
    for each in both:
        del each.attrib["ID"]
    assert read(both, entity_id=other.entity_id).entity_id == other.entity_id
    for name in ("", "https://third.example.com"):
        with pytest.raises(DocumentRefused):
            read(both, entity_id=name)


def test_what_cannot_be_used_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        (b"https://idp.example.com/sso", b"http://idp.example.com/sso", "not a https URL"),
        (b"https://idp.example.com/sso", b"javascript:alert(1)", "not a https URL"),
        (b"SAML:2.0:protocol", b"SAML:1.1:protocol", "not that of one identity system"),
        (b'use="signing"', b'use="encryption"', "no certificate"),
        (b"<ds:X509Certificate>", b"<ds:X509Certificate>!", "not base64"),
        (b"<ds:X509Certificate>", b"<ds:X509Certificate>AAAA", "cannot be read"),
        (b"SingleSignOnService", b"SingleSignOnPlace", "no SingleSignOnService"),
        (b"<md:EntityDescriptor", b"<!DOCTYPE x><md:EntityDescriptor", "document type"),
    ]
    for pattern, replacement, cause in cases:
        with subtests.test(pattern=pattern, replacement=replacement, cause=cause):
            document = text(IdentitySystem().metadata())
            assert pattern in document
            with pytest.raises(DocumentRefused, match=cause):
                read(document.replace(pattern, replacement))


def test_a_weak_key_is_refused() -> None:
    with pytest.raises(DocumentRefused, match="1024 bits"):
        read(IdentitySystem(name="idp-weak", kind="weak").metadata())


def test_with_a_pinned_certificate_it_must_be_signed_with_that() -> None:
    federation, idp = signer("federation"), IdentitySystem()
    pinned = {"pinned": federation.certificate}
    assert read(sign(idp.metadata(), federation), **pinned).entity_id == idp.entity_id
    for wrong in (idp.metadata(), sign(idp.metadata(), idp.signer), sign(idp.metadata(), signer("stranger"))):
        with pytest.raises(DocumentRefused):
            read(wrong, **pinned)
    changed = text(sign(idp.metadata(), federation)).replace(
        b"https://idp.example.com/sso", b"https://evil.example/sso"
    )
    with pytest.raises(DocumentRefused):
        read(changed, **pinned)


async def test_it_holds_until_it_says_so(tmp_path: Path, clock: FakeClock) -> None:
    until = f"{clock.now().replace(microsecond=0).isoformat().replace('+00:00', 'Z')}"
    idp = IdentitySystem()
    service = Service(tmp_path, clock, idp, metadata=idp.metadata(validUntil=until))
    with pytest.raises(ProviderError, match="cannot be used") as failure:
        await service.begin()
    assert "valid until" in str(failure.value.cause)


# --- an address ---


class Address(HttpServer):
    """Serves one document at `url`. An empty document is an error."""

    def __init__(self) -> None:
        super().__init__(lambda request: Response(200 if self.document else 503, self.document))
        self.url += "/metadata"
        self.document = b""


@pytest.fixture
def address() -> Iterator[Address]:
    with Address().running() as address:
        yield address


@pytest.fixture
async def fetched(tmp_path: Path, clock: FakeClock, address: Address) -> Any:
    service = Service(tmp_path, clock, metadataFile=None, metadataURL=address.url)
    address.document = text(service.idp.metadata())
    yield service
    await service.provider.close()


async def test_an_address_is_asked_now_and_then(fetched: Service, clock: FakeClock, address: Address) -> None:
    for _ in range(3):
        await fetched.begin()
    assert len(address.requests) == 1
    clock.advance(hours=1)
    await fetched.begin()
    assert len(address.requests) == 2


async def test_what_an_address_said_holds_for_a_day_while_it_is_down(
    fetched: Service, clock: FakeClock, address: Address
) -> None:
    await fetched.begin()
    address.document = b""
    clock.advance(hours=23)
    await fetched.begin()
    clock.advance(hours=2)
    with pytest.raises(ProviderError, match="unavailable"):
        await fetched.begin()


async def test_a_new_key_is_found_when_the_first_response_needs_it(
    fetched: Service, clock: FakeClock, address: Address
) -> None:
    begun = await fetched.begin()
    newer = signer("idp-new")
    signed = fetched.idp.sign(fetched.idp.assertion(begun.asked), newer)
    address.document = text(fetched.idp.metadata(newer))
    assert await fetched.finish(begun, fetched.idp.response(begun.asked, signed))
    assert len(address.requests) == 2


async def test_responses_of_strangers_do_not_become_questions(fetched: Service, address: Address) -> None:
    begun = await fetched.begin()
    signed = fetched.idp.sign(fetched.idp.assertion(begun.asked), signer("stranger"))
    response = fetched.idp.response(begun.asked, signed)
    for _ in range(5):
        with pytest.raises(Exception, match="invalid"):
            await fetched.finish(begun, response)
    assert len(address.requests) == 2


async def test_metadata_that_cannot_be_used_is_an_outage(fetched: Service, address: Address) -> None:
    address.document = b"<html>an error page</html>"
    with pytest.raises(ProviderError) as failure:
        await fetched.begin()
    assert "not SAML metadata" in str(failure.value.cause)


async def test_a_logout_with_a_new_key_is_believed_as_well(fetched: Service, address: Address) -> None:
    await fetched.begin()
    newer = signer("idp-new")
    address.document = text(fetched.idp.metadata(newer))
    assert (await fetched.provider.handle_logout(by_redirect(logout_request(fetched), newer))).subject == "alice"
