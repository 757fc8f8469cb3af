"""Keys in AWS KMS: moto stands for a KMS that signs, and a small server for one that does not."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import boto3
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ostiary.errors import ConfigurationError, KeyUnusable
from ostiary.keys.aws_kms import AwsKmsKey
from ostiary.keys.opening import OpeningRules, open_key
from ostiary.keys.pairing import pair_with_key
from ostiary.model import SignatureScheme
from tests.support.device_keys.certified import certify
from tests.support.device_keys.handshake import shake_hands
from tests.support.http_server import HOLD, HttpServer, Request, Response

moto_server = pytest.importorskip("moto.server", reason="needs moto, the local server of Amazon's APIs")
REGION = "eu-central-1"
ARN = f"arn:aws:kms:{REGION}:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
DIGEST = hashlib.sha256(b"what is signed").digest()


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-canary")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield boto3.client("kms", region_name=REGION)
    finally:
        server.stop()


def documented_kms(private: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> AbstractContextManager[HttpServer]:
    """GetPublicKey, and Sign with MessageType DIGEST; the salt of PSS is as long as the digest."""

    def answer(action: str, request: dict[str, str]) -> dict[str, str]:
        if action.endswith("GetPublicKey"):
            der = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            return {"KeyUsage": "SIGN_VERIFY", "PublicKey": b64encode(der).decode()}
        assert request["MessageType"] == "DIGEST"
        digest, algorithm = b64decode(request["Message"]), request["SigningAlgorithm"]
        if isinstance(private, ec.EllipticCurvePrivateKey):
            assert algorithm == "ECDSA_SHA_256"
            signature = private.sign(digest, ec.ECDSA(Prehashed(SHA256())))
        else:
            assert algorithm == "RSASSA_PSS_SHA_256"
            signature = private.sign(digest, padding.PSS(padding.MGF1(SHA256()), 32), Prehashed(SHA256()))
        return {"Signature": b64encode(signature).decode()}

    return kms_that_answers(200, answer)


Answer = Callable[[str, dict[str, str]], dict[str, str]]


def kms_that_answers(status: int, body: dict[str, str] | Answer) -> AbstractContextManager[HttpServer]:
    def respond(request: Request) -> Response:
        content = body(request.headers["X-Amz-Target"], request.json) if callable(body) else body
        return Response(status, content, {"Content-Type": "application/x-amz-json-1.1"})

    return HttpServer(respond).running()


@pytest.mark.parametrize("spec", ["ECC_NIST_P256", "RSA_2048"])
def test_a_key_signs_what_it_is_sent(kms: Any, spec: str) -> None:
    """moto takes the digest for the message, and hashes it once more: that much can be verified with it."""
    arn = kms.create_key(KeySpec=spec, KeyUsage="SIGN_VERIFY")["KeyMetadata"]["Arn"]
    key = open_key(f"awskms:{arn}")
    if isinstance(key.public_key, ec.EllipticCurvePublicKey):
        signature = key.sign(DIGEST, SignatureScheme.ECDSA_SHA256)
        key.public_key.verify(signature, DIGEST, ec.ECDSA(SHA256()))
    else:
        signature = key.sign(DIGEST, SignatureScheme.RSA_PKCS1_SHA256)
        key.public_key.verify(signature, DIGEST, padding.PKCS1v15(), SHA256())


@pytest.mark.parametrize("kind", ["EC", "RSA"])
def test_a_handshake_with_a_kms_that_signs_digests_as_amazon_documents_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, ca: trustme.CA
) -> None:
    private = ec.generate_private_key(ec.SECP256R1()) if kind == "EC" else rsa.generate_private_key(65537, 2048)
    with documented_kms(private) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        key = open_key(f"awskms:{ARN}")
        certificate = pair_with_key(certify(ca, private.public_key(), "alice").decode(), key)
        assert shake_hands(ca, certificate) == "alice"


def test_a_key_for_encryption_is_refused(kms: Any) -> None:
    arn = kms.create_key(KeySpec="RSA_2048", KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["Arn"]
    with pytest.raises(KeyUnusable, match="SIGN_VERIFY") as error:
        open_key(f"awskms:{arn}")
    assert error.value.code == "key-mismatch"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("AccessDeniedException", "key-refused"),
        ("NotFoundException", "key-not-found"),
        ("DisabledException", "key-device-failed"),
    ],
)
def test_a_kms_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch, reason: str, code: str) -> None:
    with kms_that_answers(400, {"__type": reason, "message": "no"}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(KeyUnusable, match=reason) as error:
            open_key(f"awskms:{ARN}")
    assert error.value.code == code
    assert "canary" not in str(error.value)


def test_a_slow_kms_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer(HOLD).running() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(KeyUnusable) as error:
            open_key(f"awskms:{ARN}", OpeningRules(open_seconds=0.3))
    assert error.value.code == "key-device-timeout"


def test_a_kms_is_not_asked_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(KeyUnusable, match="no AWS credentials") as error:
        open_key(f"awskms:{ARN}")
    assert error.value.code == "key-refused"


@pytest.mark.parametrize("text", ["", "alias/x", "arn:aws:s3:::bucket", ARN + "/more", ARN.replace("key/", "key:")])
def test_what_is_no_arn_of_a_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ARN"):
        AwsKmsKey.from_address(text, Path())
    with pytest.raises(ConfigurationError):
        open_key(f"awskms:{text}")


@pytest.mark.parametrize("name", ["key/1234abcd-12ab", "alias/kube/client"])
def test_keys_and_aliases_in_every_partition_are_read(name: str) -> None:
    for partition in ("aws", "aws-cn", "aws-us-gov"):
        AwsKmsKey.from_address(f"arn:{partition}:kms:eu-central-1:111122223333:{name}", Path())
