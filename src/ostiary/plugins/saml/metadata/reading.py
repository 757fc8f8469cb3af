"""What an identity system says about itself: its name, its keys, and where browsers are sent. Pure.

    EntityDescriptor -> IDPSSODescriptor -> KeyDescriptor, SingleSignOnService, SingleLogoutService

Called by `metadata.source` with a document of the operator's file, or of an address. With a pinned certificate the
document must be signed with its key, and only what is signed is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from lxml import etree

from ostiary.plugins.common.outbound import is_safe
from ostiary.plugins.saml.settings import SamlBinding
from ostiary.plugins.saml.xml.documents import (
    DS,
    MD,
    SAMLP,
    DocumentRefused,
    children,
    decode_base64,
    duration_seconds,
    name,
    parse,
    quoted,
    text_of,
    time_of,
)
from ostiary.plugins.saml.xml.keys import check_strength
from ostiary.plugins.saml.xml.signatures import verify_element

MAX_METADATA = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`response_location` is where answers go, if they go elsewhere than requests."""

    location: str
    response_location: str


@dataclass(frozen=True, slots=True)
class IdentitySystem:
    """`certificates` hold the keys that it signs with; several, while it changes them. The first endpoint counts."""

    entity_id: str
    certificates: tuple[x509.Certificate, ...] = field(repr=False)
    sign_on: Mapping[SamlBinding, Endpoint]
    logout: Mapping[SamlBinding, Endpoint]
    wants_signed_requests: bool = False
    valid_until: datetime | None = None
    cache_seconds: float | None = None


def read_metadata(
    data: bytes,
    *,
    entity_id: str = "",
    pinned: x509.Certificate | None = None,
    algorithms: Collection[str],
) -> IdentitySystem:
    """The identity system with *entity_id*, or the only one; raises `DocumentRefused`."""
    root = parse(data, limit=MAX_METADATA)
    if pinned is not None:
        root = verify_element(root, [pinned], algorithms)
    entity = _entity(root, entity_id)
    role = _role(entity)
    above = [root] if root is entity else [root, entity]
    ends = [end for each in (*above, role) if (end := time_of(each, "validUntil")) is not None]
    caches = [text for each in (*above, role) if (text := each.get("cacheDuration"))]
    seconds = [duration for text in caches if (duration := duration_seconds(text)) is not None]
    sign_on = _endpoints(role, "SingleSignOnService")
    if not sign_on:
        raise DocumentRefused("it has no SingleSignOnService with the redirect or the POST binding")
    return IdentitySystem(
        entity_id=str(entity.get("entityID")),
        certificates=_certificates(role),
        sign_on=sign_on,
        logout=_endpoints(role, "SingleLogoutService"),
        wants_signed_requests=role.get("WantAuthnRequestsSigned") in ("true", "1"),
        valid_until=min(ends, default=None),
        cache_seconds=min(seconds, default=None),
    )


def _entity(root: etree._Element, entity_id: str) -> etree._Element:
    if root.tag == name(MD, "EntityDescriptor"):
        entities = [root]
    elif root.tag == name(MD, "EntitiesDescriptor"):
        entities = [each for each in root.iter(name(MD, "EntityDescriptor")) if children(each, MD, "IDPSSODescriptor")]
    else:
        raise DocumentRefused("it is not SAML metadata")
    fitting = [each for each in entities if each.get("entityID") and entity_id in ("", each.get("entityID"))]
    if len(fitting) == 1:
        return fitting[0]
    if entity_id:
        raise DocumentRefused(f"it is not about {quoted(entity_id)}")
    raise DocumentRefused("it is about several identity systems, or none: name one with identitySystem")


def _role(entity: etree._Element) -> etree._Element:
    roles = [
        each
        for each in children(entity, MD, "IDPSSODescriptor")
        if SAMLP in (each.get("protocolSupportEnumeration") or "").split()
    ]
    if len(roles) != 1:
        raise DocumentRefused("it is not that of one identity system for SAML 2.0")
    return roles[0]


def _certificates(role: etree._Element) -> tuple[x509.Certificate, ...]:
    descriptors = [each for each in children(role, MD, "KeyDescriptor") if each.get("use") in (None, "signing")]
    texts = [text_of(each) for key in descriptors for each in key.iter(name(DS, "X509Certificate"))]
    certificates = tuple(_certificate(text) for text in texts)
    if not certificates:
        raise DocumentRefused("it has no certificate with a key for signatures")
    return certificates


def _certificate(text: str) -> x509.Certificate:
    try:
        certificate = x509.load_der_x509_certificate(decode_base64(text))
        key = certificate.public_key()
    except ValueError:
        raise DocumentRefused("a certificate cannot be read") from None
    try:
        check_strength(key)
    except ValueError as error:
        raise DocumentRefused(str(error)) from None
    return certificate


def _endpoints(role: etree._Element, kind: str) -> dict[SamlBinding, Endpoint]:
    known = {each.uri: each for each in SamlBinding}
    endpoints: dict[SamlBinding, Endpoint] = {}
    for element in children(role, MD, kind):
        binding = known.get(element.get("Binding") or "")
        if binding is None or binding in endpoints:
            continue
        location = element.get("Location") or ""
        endpoint = Endpoint(location, element.get("ResponseLocation") or location)
        for url in (endpoint.location, endpoint.response_location):
            if not is_safe(url) or not url.isascii() or not url.isprintable() or " " in url or "#" in url:
                raise DocumentRefused(f"a {kind} is not a https URL: {quoted(url)}")
        endpoints[binding] = endpoint
    return endpoints
