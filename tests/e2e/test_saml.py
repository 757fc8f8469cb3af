"""In a real browser: people sign in at three identity systems of SAML, and out of them.

SimpleSAMLphp, npm's samlp and that of pysaml2 share no code, with each other or with us.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.chromium import Chromium
from tests.support.gateway import ServedGateway, Site
from tests.support.ports import free_port
from tests.support.saml.documents import signer
from tests.support.saml.others import pysaml2, samlp
from tests.support.saml.simplesamlphp import PASSWORD, SimpleSamlPhp

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]
ENTITLEMENT = "urn:oid:1.3.6.1.4.1.5923.1.1.1.7"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium.running() as running:
        yield running


@dataclass
class Office:
    """Where the gateway runs; its address is known before it starts."""

    site: Site
    port: int

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def write(self, name: str, content: bytes) -> str:
        (self.site.folder / name).write_bytes(content)
        return name

    @contextmanager
    def serving(self, **settings: Any) -> Iterator[ServedGateway]:
        key = signer("gateway")
        identity = {
            "name": "acme",
            "type": "saml",
            "keyFile": self.write("saml.key", key.key_pem),
            "certificateFile": self.write("saml.crt", key.certificate_pem),
            **settings,
        }
        with self.site.serving(
            listen={"address": f"127.0.0.1:{self.port}"},
            externalURL=self.url,
            identity=[identity],
            groups=[{"name": "teams", "provider": "acme"}],
        ) as gateway:
            yield gateway


@pytest.fixture
def office(tmp_path: Path, ca: trustme.CA) -> Office:
    return Office(Site(tmp_path / "gateway", ca), free_port())


@pytest.fixture
def simplesamlphp(tmp_path: Path) -> Iterator[SimpleSamlPhp]:
    with SimpleSamlPhp.running(tmp_path / "simplesamlphp") as idp:
        yield idp


def sign_in(chromium: Chromium, office: Office) -> None:
    chromium.go(f"{office.url}/auth")
    chromium.fill("Username", "alice")
    chromium.fill("Password", PASSWORD)
    chromium.click("button", "Login")
    chromium.see("You are signed in")


@pytest.mark.needs("php")
def test_signing_out_there_ends_the_session_here(
    office: Office, chromium: Chromium, simplesamlphp: SimpleSamlPhp
) -> None:
    """S1, S10. Single logout that the identity system starts, by redirect."""
    idp = simplesamlphp
    with office.serving(metadataURL=idp.metadata_url) as gateway:
        idp.trust(gateway.get("/auth/metadata").text)
        chromium.person()
        sign_in(chromium, office)
        chromium.go(f"{office.url}/auth/token")
        chromium.see("You are signed in")
        # It asks the gateway, and goes on only with a signed answer.
        chromium.go(f"{idp.url}/saml2/idp/initSLO.php?RelayState=/logout.php")
        chromium.see("You have been logged out")
        assert "alice" in gateway.line("the identity system")
        chromium.go(f"{office.url}/auth/token")
        chromium.see("Enter your username and password")


@pytest.mark.needs("php")
def test_signing_out_here_ends_the_session_there(
    office: Office, chromium: Chromium, simplesamlphp: SimpleSamlPhp
) -> None:
    """S1, S10. Single logout that a person starts on our page."""
    idp = simplesamlphp
    with office.serving(metadataURL=idp.metadata_url) as gateway:
        idp.trust(gateway.get("/auth/metadata").text)
        chromium.person()
        sign_in(chromium, office)
        # As long as there is a session there, nobody is asked for a password again.
        chromium("forget", domain="localhost")
        chromium.go(f"{office.url}/auth")
        chromium.see("You are signed in")
        chromium.click("button", "Sign out")
        chromium.see("signed out")
        assert chromium.url.startswith(f"{office.url}/")
        chromium.go(f"{office.url}/auth")
        chromium.see("Enter your username and password")


@pytest.mark.needs("php")
def test_a_person_whom_the_identity_system_does_not_sign_in_is_told(
    office: Office, chromium: Chromium, simplesamlphp: SimpleSamlPhp
) -> None:
    """The gateway asks for a way to sign in that SimpleSAMLphp does not have; the log says which one it was."""
    idp = simplesamlphp
    with office.serving(metadataURL=idp.metadata_url, authnContext=["https://refeds.org/profile/mfa"]) as gateway:
        idp.trust(gateway.get("/auth/metadata").text)
        chromium.person()
        chromium.go(f"{office.url}/auth")
        chromium.fill("Username", "alice")
        chromium.fill("Password", PASSWORD)
        chromium.click("button", "Login")
        chromium.see("not in the way that is required here")
        assert "AuthnContextClassRef" in gateway.line("not in the way that is required here")


@pytest.mark.parametrize(
    ("binding", "options"),
    [
        ("redirect", {}),
        ("post", {"signResponse": True, "signAssertion": False}),
        ("redirect", {"encrypted": True}),
    ],
    ids=["assertion", "response", "encrypted"],
)
def test_people_sign_in_at_samlp(office: Office, chromium: Chromium, binding: str, options: dict[str, Any]) -> None:
    """S1, S10."""
    destination = f"{office.url}/auth/acme/provider"
    options = {"destination": destination, "recipient": destination, **options}
    with samlp(service=signer("gateway"), **options) as idp:
        settings: dict[str, Any] = {"metadataFile": office.write("idp.xml", idp.metadata), "binding": binding}
        settings |= {"attributes": {"groups": "groups"}, "encryption": {"required": "encrypted" in options}}
        with office.serving(**settings):
            chromium.person()
            chromium.go(f"{office.url}/auth")
            chromium.see("You are signed in")
            assert "alice" in chromium.text


@pytest.mark.needs("xmlsec1")
@pytest.mark.parametrize(
    ("binding", "policy"),
    [("redirect", {}), ("post", {"sign_response": True, "sign_assertion": False})],
    ids=["assertion", "response"],
)
def test_people_sign_in_at_pysaml2(
    office: Office, chromium: Chromium, tmp_path: Path, binding: str, policy: dict[str, Any]
) -> None:
    """S1, S10."""
    with pysaml2(tmp_path / "pysaml2", lambda: gateway.get("/auth/metadata").text, **policy) as idp:
        settings = {"metadataFile": office.write("idp.xml", idp.metadata), "binding": binding}
        with office.serving(**settings, attributes={"groups": ENTITLEMENT}) as gateway:
            chromium.person()
            chromium.go(f"{office.url}/auth")
            chromium.see("You are signed in")
            assert "alice" in chromium.text
