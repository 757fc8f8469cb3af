"""Two more identity systems on loopback, at which everybody who comes is Alice: npm's samlp, and that of pysaml2.

    with samlp(request.config, service=signer("gateway"), encrypted=True) as idp: ...
    with Pysaml2.running(tmp_path, lambda: metadata_of_the_gateway) as idp: ...

Both check the signatures of requests, and speak with keys of their own. `metadata` is what the gateway is told.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import npm
from tests.support.saml.documents import POST, REDIRECT, IdentitySystem, Signer, signer, text

SOURCE = Path(__file__).parent / "samlp"
GROUPS = ["developers", "drinkers"]


@dataclass(frozen=True)
class Running:
    url: str
    metadata: bytes


@contextmanager
def samlp(config: pytest.Config, *, service: Signer, encrypted: bool = False, **options: Any) -> Iterator[Running]:
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
    folder = npm.installed(config, SOURCE, what="samlp")
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

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            self._sign_in(query, REDIRECT)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._sign_in({key: values[0] for key, values in parse_qs(body).items()}, POST)

        def _sign_in(self, sent: dict[str, str], binding: str) -> None:
            page = _answer(server_for(url), sent, binding, policy).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *parts: Any) -> None: ...

    def server_for(url: str) -> Any:
        return _server(folder, url, service_metadata())

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        idp = IdentitySystem(f"{url}/idp", name="pysaml2")
        yield Running(url, text(idp.metadata(url=url)))
        server.shutdown()


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


def _answer(server: Any, sent: dict[str, str], binding: str, policy: dict[str, Any]) -> str:
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
