"""A service provider under test, with an identity system that answers what it asks.

service = Service(tmp_path, clock, attributes={"groups": "groups"})
begun = await service.begin()                                    # what the identity system was asked
identified = await service.finish(begun, service.idp.signed_response(begun.asked, "alice"))
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lxml import etree

from ostiary.core.yaml import ConfigReader, read
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, PostedForm, Redirect, RequiredAuthentication
from ostiary_gateway.providers.saml.identity import SamlIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.saml.documents import Asked, IdentitySystem, Signer, signer, text

URL = "https://gateway.example.com"
CALLBACK = f"{URL}/auth/provider"
ENTITY = f"{URL}/auth/acme/metadata"
LOGOUT = f"{URL}/auth/acme/logout"


@dataclass(frozen=True)
class Begun:
    """A sign-in that is under way: where the browser was sent, with which message, and what the gateway remembers."""

    away: Redirect | PostedForm
    message: etree._Element
    asked: Asked


class Service:
    def __init__(
        self,
        folder: Path,
        clock: FakeClock,
        idp: IdentitySystem | None = None,
        *,
        key: Signer | None = None,
        metadata: etree._Element | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.clock = folder, clock
        self.idp = idp or IdentitySystem()
        self.metadata_file = folder / "idp.xml"
        self.metadata_file.write_bytes(text(self.idp.metadata() if metadata is None else metadata))
        self.key = key or signer("gateway")
        (folder / "saml.key").write_bytes(self.key.key_pem)
        (folder / "saml.crt").write_bytes(self.key.certificate_pem)
        values = {"metadataFile": "idp.xml", "keyFile": "saml.key", "certificateFile": "saml.crt", **settings}
        self.provider = build({name: value for name, value in values.items() if value is not None}, folder, clock)

    async def begin(self, required: RequiredAuthentication | None = None) -> Begun:
        away = await self.provider.handle_client(LoginRequest("GET", "/auth", callback_url=CALLBACK, required=required))
        assert isinstance(away, (Redirect, PostedForm))
        message = message_of(away)
        asked = Asked(str(message.get("ID")), CALLBACK, ENTITY, self.clock.now())
        return Begun(away, message, asked)

    async def finish(self, begun: Begun, response: etree._Element | bytes) -> Identified:
        document = response if isinstance(response, bytes) else text(response)
        form = (("SAMLResponse", base64.b64encode(document).decode()), ("RelayState", "checked by the gateway"))
        return await self.provider.handle_provider(
            LoginRequest("POST", "/auth/provider", form=form, callback_url=CALLBACK, remembered=begun.away.remember)
        )


def build(values: dict[str, Any], folder: Path, clock: FakeClock) -> SamlIdentity:
    """As the gateway builds it; raises what is wrong with the settings."""
    (folder / "acme.json").write_text(json.dumps(values))
    reading = ConfigReader(read(folder / "acme.json"))
    provider = SamlIdentity.from_config(reading.root, Context("acme", folder, clock, external_url=URL))
    reading.finish("the settings are wrong", strict=True)
    return provider


def message_of(away: Redirect | PostedForm, parameter: str = "SAMLRequest") -> etree._Element:
    """The document that the browser carries."""
    if isinstance(away, PostedForm):
        return etree.fromstring(base64.b64decode(dict(away.fields)[parameter]))
    value = parse_qs(urlsplit(away.url).query)[parameter][0]
    return etree.fromstring(zlib.decompress(base64.b64decode(value), -15))
