"""The two signers of docs/how-to/sign-requests.md, as they stand there: against the RFC's own vectors and botocore.

The vectors are those of RFC 9421, appendix B.2, and of AWS's test suite for Signature Version 4.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key

from ostiary import RequestNotSigned, RequestToSign
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import Request
from tests.support.walkthrough import WriteFile, steps

PAGE = Path(__file__).parents[2] / "docs/how-to/sign-requests.md"
STREAMED = RequestToSign("POST", "https://example.com/", (("Host", "example.com"),), None)


def example(name: str) -> ModuleType:
    """The file of that name on the page."""
    (step,) = [step for step in steps(PAGE.read_text()) if isinstance(step, WriteFile) and step.name == name]
    module = ModuleType(name.removesuffix(".py"))
    exec(compile(step.text, f"{PAGE.name}: {name}", "exec"), module.__dict__)
    return module


# --- HTTP Message Signatures ---

# RFC 9421, B.1.4: the key, and B.2: the request that all examples sign.
ED25519 = "MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF"
RFC_REQUEST = RequestToSign(
    "POST",
    "https://example.com/foo?param=Value&Pet=dog",
    (
        ("Host", "example.com"),
        ("Date", "Tue, 20 Apr 2021 02:07:55 GMT"),
        ("Content-Type", "application/json"),
        (
            "Content-Digest",
            "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:",
        ),
        ("Content-Length", "18"),
    ),
    b'{"hello": "world"}',
)


@pytest.fixture
def message_signer() -> Callable[..., Any]:
    make: Callable[..., Any] = example("message_signatures.py").MessageSigner
    return make


def rfc_key() -> Ed25519PrivateKey:
    key = load_der_private_key(b64decode(ED25519), None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def test_the_signature_is_that_of_the_rfc(message_signer: Callable[..., Any]) -> None:
    """RFC 9421, B.2.6: Ed25519 is deterministic, so every byte is the RFC's."""
    covered = ("date", "@method", "@path", "@authority", "content-type", "content-length")
    signer = message_signer(
        rfc_key(), key_id="test-key-ed25519", covered=covered, label="sig-b26", now=lambda: 1618884473.9
    )
    names = '("date" "@method" "@path" "@authority" "content-type" "content-length")'
    assert signer.sign(RFC_REQUEST) == {
        "Signature-Input": f'sig-b26={names};created=1618884473;keyid="test-key-ed25519"',
        "Signature": "sig-b26=:"
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:",
    }


def signature_base(received: Request, url: str) -> bytes:
    """What a server verifies: made from what has arrived alone, by RFC 9421, section 2.5."""
    parameters = str(received.headers.get("Signature-Input")).removeprefix("sig1=")
    values = {"@method": received.method, "@target-uri": url + received.target}
    names = re.findall(r'"([^"]+)"', parameters.partition(")")[0])
    lines = [f'"{name}": {values[name] if name in values else received.headers.get(name)}' for name in names]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode()


@pytest.mark.parametrize("user", [None, {}])
def test_a_server_can_verify_it(
    user: dict[str, Any] | None, message_signer: Callable[..., Any], connect_to: Connect, api: ApiServer
) -> None:
    key = Ed25519PrivateKey.generate()
    with connect_to(user=user, signer=message_signer(key, key_id="k")).requests() as session:
        session.post("/api/v1/echo?a=b%20c", data=b'{"hello": "world"}')
    (received,) = api.requests
    signature = b64decode(str(received.headers.get("Signature")).removeprefix("sig1=:").removesuffix(":"))
    key.public_key().verify(signature, signature_base(received, api.url))
    assert received.headers.get("Content-Digest") == "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
    assert ('"authorization"' in str(received.headers.get("Signature-Input"))) is (user is None)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(signature, signature_base(received, "https://elsewhere.test"))


def test_a_streamed_body_is_an_error_for_message_signatures(message_signer: Callable[..., Any]) -> None:
    with pytest.raises(RequestNotSigned):
        message_signer(rfc_key(), key_id="k").sign(STREAMED)


# --- AWS Signature Version 4 ---

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


def sigv4(credentials: Credentials, **options: str) -> Any:
    options = {"service": "service", "region": "us-east-1", **options}
    return example("sigv4.py").SigV4Signer(credentials, **options)


def test_the_signature_is_that_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "get-vanilla" of AWS's test suite."""
    moment = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *args: moment.replace(tzinfo=None))
    request = RequestToSign("GET", "https://example.amazonaws.com/", (("Host", "example.amazonaws.com"),))
    assert sigv4(Credentials("AKIDEXAMPLE", SECRET)).sign(request) == {
        "X-Amz-Date": "20150830T123600Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        "SignedHeaders=host;x-amz-date, Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    }


def signature_by_botocore(received: Request, url: str, credentials: Credentials) -> str:
    """What botocore itself makes of the request that has arrived."""
    covered = re.search(r"SignedHeaders=([^,]+)", str(received.headers.get("Authorization")))
    assert covered is not None
    headers = {name: received.headers.get(name) for name in covered[1].split(";")}
    request = AWSRequest(method=received.method, url=url + received.target, data=received.body, headers=headers)
    request.context["timestamp"] = received.headers.get("X-Amz-Date")
    auth = botocore.auth.SigV4Auth(credentials.get_frozen_credentials(), "execute-api", "eu-central-1")
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return str(auth.signature(text, request))


@pytest.mark.parametrize("body", [b"", b'{"hello": "world"}', None])
def test_the_server_gets_what_botocore_would_have_signed(
    body: bytes | None, connect_to: Connect, api: ApiServer
) -> None:
    credentials = Credentials("AKIDEXAMPLE", SECRET, "the-session-token")
    signer = sigv4(credentials, service="execute-api", region="eu-central-1")
    content = iter([b"one", b"two"]) if body is None else body
    with connect_to(user={}, signer=signer).httpx() as client:
        client.post("/api/v1/echo", params={"b": "2 3", "a": "1"}, content=content, headers={"Content-Type": "a/b"})
    (received,) = api.requests
    assert str(received.headers.get("Authorization")).endswith(
        "Signature=" + signature_by_botocore(received, api.url, credentials)
    )
    assert received.headers.get("X-Amz-Security-Token") == "the-session-token"
    assert received.headers.get("X-Amz-Content-SHA256") == (None if body is not None else "UNSIGNED-PAYLOAD")
    assert "content-type;host" in str(received.headers.get("Authorization"))
