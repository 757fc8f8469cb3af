"""Two more identity systems on loopback, at which everybody who comes is Alice: npm's samlp, and that of pysaml2.

    with samlp(service=signer("gateway"), encrypted=True) as idp: ...
    with Pysaml2.running(tmp_path, lambda: metadata_of_the_gateway) as idp: ...

Both check the signatures of requests, and speak with keys of their own. `metadata` is what the gateway is told.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import npm
from tests.support.http_server import HttpServer, Request, Response
from tests.support.saml.documents import POST, REDIRECT, IdentitySystem, Signer, signer, text

SOURCE = Path(__file__).parent / "samlp"
GROUPS = ["developers", "drinkers"]


@dataclass(frozen=True)
class Running:
    url: str
    metadata: bytes


@contextmanager
def samlp(*, service: Signer, encrypted: bool = False, **options: Any) -> Iterator[Running]:
    own = signer("samlp")
    settings = {
        "issuer": "urn:samlp",
        "key": own.key_pem.decode(),
        "cert": own.certificate_pem.decode(),
        "serviceCert": service.certificate_pem.decode(),
        "sessionIndex": "session-at-samlp",
        "user": {"id": "alice", "claims": {"groups": GROUPS}},
        **options,
    }
    if encrypted:
        public = service.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        settings |= {"encryptionCert": service.certificate_pem.decode(), "encryptionPublicKey": public.decode()}
    folder = npm.installed(SOURCE)
    command = ["node", "server.js", json.dumps(settings)]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "samlp does not start"
        idp = IdentitySystem("urn:samlp", name="samlp")
        yield Running(url, text(idp.metadata(url=url)))
        process.stdin.close()
        process.wait(30)


@contextmanager
def pysaml2(folder: Path, service_metadata: Callable[[], str], **policy: Any) -> Iterator[Running]:
    """*policy* is how it signs and encrypts, in its own words."""
    own = signer("pysaml2")
    folder.mkdir(exist_ok=True)
    (folder / "idp.key").write_bytes(own.key_pem)
    (folder / "idp.crt").write_bytes(own.certificate_pem)

    def sign_in(request: Request) -> Response:
        sent, binding = (request.query, REDIRECT) if request.method == "GET" else (request.form, POST)
        idp = _server(folder, server.url, service_metadata())
        return Response(200, _answer(idp, sent, binding, policy).encode(), {"Content-Type": "text/html"})

    with HttpServer(sign_in).running() as server:
        system = IdentitySystem(f"{server.url}/idp", name="pysaml2")
        yield Running(server.url, text(system.metadata(url=server.url)))


def _server(folder: Path, url: str, service_metadata: str) -> Any:
    from saml2.config import IdPConfig
    from saml2.server import Server

    settings = {
        "entityid": f"{url}/idp",
        "service": {
            "idp": {
                "endpoints": {"single_sign_on_service": [(f"{url}/sso", REDIRECT), (f"{url}/sso", POST)]},
                "want_authn_requests_signed": True,
                "policy": {"default": {"lifetime": {"minutes": 5}, "name_form": _URI}},
            }
        },
        "key_file": str(folder / "idp.key"),
        "cert_file": str(folder / "idp.crt"),
        "xmlsec_binary": "/usr/bin/xmlsec1",
        "metadata": {"inline": [service_metadata]},
    }
    return Server(config=IdPConfig().load(settings))


_URI = "urn:oasis:names:tc:SAML:2.0:attrname-format:uri"


def _answer(server: Any, sent: Mapping[str, str], binding: str, policy: dict[str, Any]) -> str:
    from saml2.saml import NAMEID_FORMAT_PERSISTENT, NameID

    detached = {key: sent[name] for key, name in (("sigalg", "SigAlg"), ("signature", "Signature")) if name in sent}
    if detached:
        detached["relay_state"] = sent["RelayState"]
    asked = server.parse_authn_request(sent["SAMLRequest"], binding, **detached)
    answer = server.response_args(asked.message, [POST])
    answer.pop("name_id_policy", None)
    response = server.create_authn_response(
        {"eduPersonEntitlement": GROUPS},
        userid="alice",
        name_id=NameID(text="alice", format=NAMEID_FORMAT_PERSISTENT),
        authn={"class_ref": "urn:oasis:names:tc:SAML:2.0:ac:classes:Password", "authn_auth": "people"},
        sign_alg="http://www.w3.org/2001/04/xmldsig-more#rsa-sha256",
        digest_alg="http://www.w3.org/2001/04/xmlenc#sha256",
        **{"sign_assertion": True, "sign_response": False, **policy},
        **answer,
    )
    made = server.apply_binding(POST, str(response), answer["destination"], sent["RelayState"], response=True)
    return str(made["data"])
