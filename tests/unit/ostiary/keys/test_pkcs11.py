"""Keys in a token of SoftHSM: found, signing in every scheme, and shared."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from ostiary.errors import KeyUnusable
from ostiary.keys.opening import open_key
from ostiary.model import SignatureScheme
from tests.support.device_keys.softhsm import SoftToken, module

HASHES: dict[str, hashes.HashAlgorithm] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
pytestmark = pytest.mark.needs("softhsm2-util", "pkcs11-tool")


@pytest.mark.parametrize("scheme", SignatureScheme, ids=lambda scheme: scheme.value)
def test_a_token_signs_in_every_scheme(soft_token: SoftToken, scheme: SignatureScheme) -> None:
    label = "ec" if scheme.value.startswith("ecdsa") else "rsa"
    key = open_key(soft_token.address(label, soft_token.folder / "pin"))
    digest = hashlib.new(scheme.hash_name, b"what is signed").digest()
    signature, algorithm = key.sign(digest, scheme), HASHES[scheme.hash_name]
    public = key.public_key
    if isinstance(public, ec.EllipticCurvePublicKey):
        return public.verify(signature, digest, ec.ECDSA(Prehashed(algorithm)))
    pss = padding.PSS(padding.MGF1(algorithm), algorithm.digest_size)
    public.verify(signature, digest, pss if "pss" in scheme.value else padding.PKCS1v15(), Prehashed(algorithm))
    return None


def test_closing_one_key_does_not_log_the_others_out(soft_token: SoftToken) -> None:
    pin = soft_token.folder / "pin"
    first, second = open_key(soft_token.address("ec", pin)), open_key(soft_token.address("rsa", pin))
    first.close()
    # Its thread closes it; that it has ended is seen by the thread's own end.
    for thread in threading.enumerate():
        if thread.name == f"key {first.name}":
            thread.join(10)
    assert second.sign(bytes(32), SignatureScheme.RSA_PSS_SHA256)


def test_an_address_is_opened_once_and_threads_share_it(soft_token: SoftToken) -> None:
    address = soft_token.address("ec", soft_token.folder / "pin")
    keys, errors = set(), []

    def sign() -> None:
        try:
            key = open_key(address)
            keys.add(key)
            for _ in range(20):
                key.sign(bytes(32), SignatureScheme.ECDSA_SHA256)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=sign) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("pkcs11:token=card;object=absent?module-path={module}", "no private key matches"),
        ("pkcs11:token=absent;object=ec?module-path={module}", "no token matches"),
        ("pkcs11:object=ec?module-path={module}", "of them match"),
        ("pkcs11:object=ec?module-path=/nowhere/absent.so", "cannot be loaded"),
        ("pkcs11:object=ec?module-path=/etc/passwd", "cannot be loaded"),
    ],
)
def test_what_is_not_there_is_told(
    soft_token: SoftToken, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    monkeypatch.setenv("OSTIARY_KEY_PIN", (soft_token.folder / "pin").read_text().strip())
    with pytest.raises(KeyUnusable, match=reason) as error:
        open_key(address.format(module=module()))
    assert error.value.code == "key-not-found"
    assert error.value.where == address.format(module=module())


def test_a_forked_child_opens_the_key_itself(soft_token: SoftToken) -> None:
    """In a process of its own: this one has threads that a child does not survive."""
    script = (
        "import os, sys\n"
        "from ostiary.keys.opening import open_key\n"
        "from ostiary.model import SignatureScheme\n"
        "key = open_key(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    own = open_key(sys.argv[1])\n"
        "    assert key.is_closed and own is not key\n"
        "    own.sign(bytes(32), SignatureScheme.ECDSA_SHA256)\n"
        "    print('the child signs', flush=True)\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "key.sign(bytes(32), SignatureScheme.ECDSA_SHA256)\n"
        "print('the parent signs')\n"
    )
    address = soft_token.address("ec", soft_token.folder / "pin")
    done = subprocess.run(
        [sys.executable, "-c", script, address], env=soft_token.environ, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["the child signs", "the parent signs"], done.stderr
