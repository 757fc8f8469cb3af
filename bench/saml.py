"""A sign-in by SAML: CPU time of the gateway, from the redirect with a signed request to the tokens.

A gateway in a process of its own, with sessions in SQLite and an audit log; the browser and the identity system are
here, and are not counted. Each sign-in is three requests: the way there, the form that comes back, and the browser that
comes for it.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import trustme
from lxml import etree

from bench.idle import _processor_seconds
from bench.pace import pace
from bench.table import Row
from ostiary_gateway.interfaces.identity import Redirect
from tests.support.gateway import ServedGateway, Site
from tests.support.ports import free_port
from tests.support.saml.documents import Asked, IdentitySystem, encrypt, signer, text
from tests.support.saml.service import message_of

# As many sign-ins as one address may begin, with their returns, in a minute.
WARM_UP, SIGN_INS = 3, pace(25, quick=2)
GROUPS = {"groups": [f"group-{number}" for number in range(20)]}


def run() -> Iterator[Row]:
    for what, is_encrypted in (("assertion signed", False), ("assertion signed and encrypted", True)):
        milliseconds = _measured(is_encrypted=is_encrypted)
        yield Row(f"a SAML sign-in, {what}, 20 groups: CPU of the gateway", f"{milliseconds:.1f} ms", "<= 15 ms")


def _measured(*, is_encrypted: bool) -> float:
    idp, key = IdentitySystem(), signer("gateway")
    with tempfile.TemporaryDirectory() as name:
        site, port = Site(Path(name) / "gateway", trustme.CA()), free_port()
        for file, content in (
            ("idp.xml", text(idp.metadata())),
            ("saml.key", key.key_pem),
            ("saml.crt", key.certificate_pem),
        ):
            (site.folder / file).write_bytes(content)
        identity = {"name": "acme", "type": "saml", "metadataFile": "idp.xml", "attributes": {"groups": "groups"}}
        with site.serving(
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=f"https://localhost:{port}",
            identity=[{**identity, "keyFile": "saml.key", "certificateFile": "saml.crt"}],
            groups=[{"name": "teams", "provider": "acme"}],
        ) as gateway:
            for _ in range(WARM_UP):
                _sign_in(gateway, idp, is_encrypted=is_encrypted)
            before = _processor_seconds(gateway.pid)
            for _ in range(SIGN_INS):
                _sign_in(gateway, idp, is_encrypted=is_encrypted)
            return (_processor_seconds(gateway.pid) - before) / SIGN_INS * 1000


def _sign_in(gateway: ServedGateway, idp: IdentitySystem, *, is_encrypted: bool) -> None:
    with gateway.http() as browser:
        away = browser.get("/auth").headers["location"]
        state = parse_qs(urlsplit(away).query)["RelayState"][0]
        form = {"SAMLResponse": _response(away, idp, is_encrypted=is_encrypted), "RelayState": state}
        parked = browser.post("/auth/acme/provider", data=form, headers={"Origin": "https://idp.example.com"})
        answer: httpx.Response = browser.get(parked.headers["location"])
        assert answer.status_code == 200, answer.text


def _response(away: str, idp: IdentitySystem, *, is_encrypted: bool) -> str:
    request: etree._Element = message_of(Redirect(away))
    issuer = request.find("{*}Issuer").text
    asked = Asked(str(request.get("ID")), request.get("AssertionConsumerServiceURL"), issuer, datetime.now(UTC))
    assertion = idp.sign(idp.assertion(asked, "alice", GROUPS, assertion_id=f"_assertion-of{asked.request_id}"))
    if is_encrypted:
        assertion = encrypt(assertion, signer("gateway").certificate_pem)
    return base64.b64encode(text(idp.response(asked, assertion))).decode()
