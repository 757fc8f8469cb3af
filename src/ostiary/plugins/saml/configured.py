"""From the settings to what the provider is made of: its own key, the way to the metadata, and the reader of it.

Called by the provider while the gateway starts. Every mistake is noted where the setting stands.
"""

from __future__ import annotations

from functools import partial

from cryptography import x509

from ostiary.core.clock import Clock
from ostiary.core.config import Fields
from ostiary.errors import ConfigurationError
from ostiary.plugins.common.jwt.issuer import usable_url
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.saml.metadata.reading import read_metadata
from ostiary.plugins.saml.metadata.source import SYSTEM, MetadataFile, MetadataSource, MetadataUrl
from ostiary.plugins.saml.settings import SamlSettings
from ostiary.plugins.saml.xml.keys import OwnKey, read_certificate


def own_key(settings: SamlSettings, fields: Fields, clock: Clock) -> OwnKey | None:
    if settings.key_file is None and settings.certificate_file is None:
        if settings.encryption.required:
            fields.problem("encrypted assertions need a key", "encryption", "set keyFile and certificateFile")
        return None
    if settings.key_file is None or settings.certificate_file is None:
        fields.problem("keyFile and certificateFile are set together, or not at all", "keyFile")
        return None
    key = OwnKey(settings.key_file, settings.certificate_file, clock=clock)
    key.check(fields)
    return key


def outbound_to_metadata(settings: SamlSettings, fields: Fields) -> Outbound:
    try:
        return Outbound(SYSTEM, ca=settings.ca)
    except ConfigurationError as error:
        fields.problem(error.cause or error.summary, "ca")
        # Never asked: with a problem noted, the gateway does not start.
        return Outbound(SYSTEM)


def metadata_source(settings: SamlSettings, fields: Fields, outbound: Outbound, clock: Clock) -> MetadataSource:
    pinned = _pinned(settings, fields)
    read = partial(read_metadata, entity_id=settings.identity_system, pinned=pinned, algorithms=settings.algorithms)
    url, path = settings.metadata_url, settings.metadata_file
    if bool(url) == (path is not None):
        mistake = "either metadataFile or metadataURL is set" + (", not both" if url else ": it is missing")
        fields.problem(mistake, "metadataFile", "the identity system has a page or a button for its metadata")
    if url and usable_url(url, plain=True) is None:
        fields.problem("it is not a https URL", "metadataURL", "plain http is for this machine only")
    if path is None:
        return MetadataUrl(url, read, outbound, refresh=settings.metadata_refresh, clock=clock)
    source = MetadataFile(path, read, clock=clock)
    source.file.check(fields, "metadataFile")
    return source


def _pinned(settings: SamlSettings, fields: Fields) -> x509.Certificate | None:
    if settings.metadata_certificate_file is None:
        return None
    try:
        return read_certificate(str(settings.metadata_certificate_file))
    except ConfigurationError as error:
        fields.problem(f"{error.summary}: {error.cause}", "metadataCertificateFile")
        return None
