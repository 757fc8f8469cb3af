"""Two other readers of SAML, which judge the same responses as ours: python3-saml and pysaml2.

Both are told what our provider is told: the identity system's key, our name and key, and the request that is answered.
They look at the clock of this machine, so a scene for them must be of now. An answer is the NameID that they believe,
or None for a refusal, in whatever way it is told.
"""

from __future__ import annotations

import base64
import logging
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.saml.attacks.scene import ACS, ENTITY, REQUEST, Scene
from tests.support.saml.documents import POST, REDIRECT, Signer, text

SKEW = timedelta(seconds=30)
logging.getLogger("saml2").setLevel(logging.CRITICAL)


def python3_saml(scene: Scene, document: bytes, folder: Path) -> str | None:
    from onelogin.saml2.auth import OneLogin_Saml2_Auth

    settings = {
        "strict": True,
        "sp": {
            "entityId": ENTITY,
            "assertionConsumerService": {"url": ACS, "binding": POST},
            "x509cert": scene.gateway.certificate_pem.decode(),
            "privateKey": scene.gateway.key_pem.decode(),
        },
        "idp": {
            "entityId": scene.idp.entity_id,
            "singleSignOnService": {"url": "https://idp.example.com/sso", "binding": REDIRECT},
            "x509cert": scene.idp.signer.certificate_pem.decode(),
        },
        "security": {"rejectDeprecatedAlgorithm": True},
    }
    parts = urlsplit(ACS)
    request = {
        "https": "on",
        "http_host": parts.netloc,
        "script_name": parts.path,
        "get_data": {},
        "post_data": {"SAMLResponse": base64.b64encode(document).decode()},
    }
    try:
        auth = OneLogin_Saml2_Auth(request, settings)
        auth.process_response(request_id=REQUEST)
        return str(auth.get_nameid()) if auth.is_authenticated() else None
    except Exception:
        return None


def pysaml2(scene: Scene, document: bytes, folder: Path) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            client = _pysaml2_client(text(scene.idp.metadata()), scene.gateway, folder)
            response = client.parse_authn_request_response(
                base64.b64encode(document).decode(), POST, outstanding={REQUEST: "/"}
            )
        return None if response is None else str(response.get_subject().text)
    except Exception:
        return None


@cache
def _pysaml2_client(scene_metadata: bytes, gateway: Signer, folder: Path) -> Any:
    from saml2.client import Saml2Client
    from saml2.config import SPConfig

    (folder / "sp.key").write_bytes(gateway.key_pem)
    (folder / "sp.crt").write_bytes(gateway.certificate_pem)
    keys = {"key_file": str(folder / "sp.key"), "cert_file": str(folder / "sp.crt")}
    settings = {
        "entityid": ENTITY,
        "service": {
            "sp": {
                "endpoints": {"assertion_consumer_service": [(ACS, POST)]},
                "allow_unsolicited": False,
                "want_assertions_signed": False,
                "want_response_signed": False,
                "want_assertions_or_response_signed": True,
            }
        },
        **keys,
        "encryption_keypairs": [keys],
        "xmlsec_binary": "/usr/bin/xmlsec1",
        "metadata": {"inline": [scene_metadata.decode()]},
        "accepted_time_diff": int(SKEW.total_seconds()),
    }
    return Saml2Client(config=SPConfig().load(settings))
