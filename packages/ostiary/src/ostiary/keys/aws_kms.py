"""Keys in AWS KMS: one HTTPS request per signature, with the credentials that AWS's own library finds.

awskms:arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
)
from cryptography.hazmat.primitives.serialization import load_der_public_key

from ostiary.errors import KeyUnusable
from ostiary.keys.address import PublicKey, usable_public_key
from ostiary.model import Secret, SignatureScheme

_ARN = re.compile(r"arn:aws[a-z-]*:kms:([a-z0-9-]+):[0-9]{12}:(?:key/[A-Za-z0-9-]+|alias/[A-Za-z0-9/_-]+)")
# All tries together must take less than the timeout of a handshake; AWS's library would otherwise retry for minutes.
SECONDS = 4.0
_FAMILIES = {"ecdsa": "ECDSA", "rsa-pss": "RSASSA_PSS", "rsa-pkcs1": "RSASSA_PKCS1_V1_5"}
_REFUSALS = ("AccessDeniedException", "UnrecognizedClientException", "InvalidClientTokenId", "ExpiredTokenException")


class AwsKmsKey:
    """The key provider for the scheme ``awskms``."""

    program: tuple[str, ...] = ()
    pin_source = ""

    def __init__(self, arn: str, region: str) -> None:
        self._arn, self._region = arn, region

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        match = _ARN.fullmatch(address)
        if match is None:
            raise ValueError("it is not the ARN of a key or an alias: arn:aws:kms:REGION:ACCOUNT:key/ID")
        return cls(address, match[1])

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> OpenAwsKmsKey:
        config = Config(connect_timeout=SECONDS, read_timeout=SECONDS, retries={"total_max_attempts": 2})
        with _told():
            client = botocore.session.get_session().create_client("kms", region_name=self._region, config=config)
            answer = client.get_public_key(KeyId=self._arn)
        if answer.get("KeyUsage") != "SIGN_VERIFY":
            cause = "its use in KMS is not SIGN_VERIFY"
            raise KeyUnusable("the key cannot be used", cause=cause, code="key-mismatch")
        try:
            public = usable_public_key(load_der_public_key(answer["PublicKey"]))
        except ValueError as error:
            raise KeyUnusable("the key cannot be used", cause=str(error), code="key-mismatch") from None
        return OpenAwsKmsKey(client, self._arn, public)


class _KmsClient(Protocol):
    """The part of botocore's client that we use; botocore has no types."""

    def sign(self, *, KeyId: str, Message: bytes, MessageType: str, SigningAlgorithm: str) -> dict[str, bytes]: ...

    def close(self) -> None: ...


class OpenAwsKmsKey:
    def __init__(self, client: _KmsClient, arn: str, public_key: PublicKey) -> None:
        self._client, self._arn = client, arn
        self.public_key = public_key

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        with _told():
            answer = self._client.sign(
                KeyId=self._arn, Message=digest, MessageType="DIGEST", SigningAlgorithm=_algorithm(scheme)
            )
        return bytes(answer["Signature"])

    def close(self) -> None:
        self._client.close()


def _algorithm(scheme: SignatureScheme) -> str:
    family, _, hash_name = scheme.value.rpartition("-")
    return f"{_FAMILIES[family]}_SHA_{hash_name.removeprefix('sha')}"


@contextmanager
def _told() -> Iterator[None]:
    """Convert the exceptions of AWS's library to a `KeyUnusable`. Their messages are AWS's own, and hold no secret."""
    summary = "AWS KMS does not sign"
    try:
        yield
    except (ConnectTimeoutError, ReadTimeoutError):
        raise KeyUnusable(summary, cause=f"no answer within {SECONDS:g} s", code="key-device-timeout") from None
    except (NoCredentialsError, PartialCredentialsError):
        hint = "AWS's library looks in the environment, in ~/.aws and at the instance"
        raise KeyUnusable(summary, cause="there are no AWS credentials", hint=hint, code="key-refused") from None
    except ClientError as error:
        reason = str(error.response.get("Error", {}).get("Code", "Unknown"))
        if reason in _REFUSALS:
            hint = "allow kms:Sign and kms:GetPublicKey for this identity"
            raise KeyUnusable(summary, cause=f"permission denied: {reason}", hint=hint, code="key-refused") from None
        code = "key-not-found" if reason == "NotFoundException" else "key-device-failed"
        raise KeyUnusable(summary, cause=f"it answered {reason}", code=code) from None
    except BotoCoreError as error:
        raise KeyUnusable(summary, cause=type(error).__name__, code="key-device-failed") from None
