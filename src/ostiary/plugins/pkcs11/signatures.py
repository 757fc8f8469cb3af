"""One signature by a token: which mechanism it is asked for, and what becomes of the answer."""

from __future__ import annotations

import pkcs11
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from pkcs11 import MGF, Mechanism

from ostiary.model import SignatureScheme

_HASHES = {
    "sha256": (Mechanism.SHA256, MGF.SHA256, bytes.fromhex("3031300d060960864801650304020105000420")),
    "sha384": (Mechanism.SHA384, MGF.SHA384, bytes.fromhex("3041300d060960864801650304020205000430")),
    "sha512": (Mechanism.SHA512, MGF.SHA512, bytes.fromhex("3051300d060960864801650304020305000440")),
}


def sign_digest(key: pkcs11.PrivateKey, digest: bytes, scheme: SignatureScheme) -> bytes:
    hash_mechanism, mask, prefix = _HASHES[scheme.hash_name]
    if scheme.value.startswith("ecdsa"):
        numbers = bytes(key.sign(digest, mechanism=Mechanism.ECDSA))
        half = len(numbers) // 2
        return encode_dss_signature(int.from_bytes(numbers[:half], "big"), int.from_bytes(numbers[half:], "big"))
    if scheme.value.startswith("rsa-pss"):
        parameters = (hash_mechanism, mask, len(digest))
        return bytes(key.sign(digest, mechanism=Mechanism.RSA_PKCS_PSS, mechanism_param=parameters))
    # The DigestInfo of RFC 8017, 9.2; the token adds the padding.
    return bytes(key.sign(prefix + digest, mechanism=Mechanism.RSA_PKCS))
