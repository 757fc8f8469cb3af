"""Keys that sign, in contexts of the standard library: both versions of TLS, both kinds of keys, and their failures."""

from __future__ import annotations

import gc
import ssl
import threading
import types
import weakref

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ostiary.core.platform.memory_files import in_memory_file
from ostiary.errors import KeyUnusable
from ostiary.keys import openssl as library
from ostiary.keys.openssl_provider import provider, use_key
from ostiary.keys.pairing import pair_with_key
from ostiary.model import SignatureScheme
from tests.support.device_keys.certified import certify
from tests.support.device_keys.handshake import MemoryKey, shake_hands

RSA_KEY = rsa.generate_private_key(65537, 2048)
V1_2, V1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def pair(ca: trustme.CA, key: MemoryKey) -> object:
    return pair_with_key(certify(ca, key.public_key, "alice").decode(), key)


def test_an_ec_key_shakes_hands(ca: trustme.CA, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ssl.TLSVersion]] = [("1.2", V1_2), ("1.3", V1_3)]
    table: list[ec.EllipticCurve] = [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()]
    for case, version in cases:
        for curve in table:
            with subtests.test(f"{case}, {curve.name}"):
                key = MemoryKey(ec.generate_private_key(curve))
                assert shake_hands(ca, pair(ca, key), version=version) == "alice"  # type: ignore[arg-type]
                assert len(key.schemes) == 1
                assert key.schemes[0].value.startswith("ecdsa")


@pytest.mark.parametrize("version", [V1_2, V1_3], ids=["1.2", "1.3"])
def test_an_rsa_key_shakes_hands_with_pss(ca: trustme.CA, version: ssl.TLSVersion) -> None:
    key = MemoryKey(RSA_KEY)
    assert shake_hands(ca, pair(ca, key), version=version) == "alice"  # type: ignore[arg-type]
    assert key.schemes == [SignatureScheme.RSA_PSS_SHA256]


def test_what_the_key_raises_comes_out_of_the_handshake(ca: trustme.CA) -> None:
    key = MemoryKey(ec.generate_private_key(ec.SECP256R1()))
    key.failure = KeyUnusable("the token does not sign", cause="it was removed")
    with pytest.raises(KeyUnusable) as error:
        shake_hands(ca, pair(ca, key))  # type: ignore[arg-type]
    assert error.value is key.failure
    # The next handshake of this thread knows nothing of it.
    key.failure = None
    assert shake_hands(ca, pair(ca, key)) == "alice"  # type: ignore[arg-type]


def test_a_signature_that_is_too_long_is_an_error_and_no_overflow(ca: trustme.CA) -> None:
    class Babbling(MemoryKey):
        def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
            return bytes(100_000)

    with pytest.raises(ValueError, match="longer"):
        shake_hands(ca, pair(ca, Babbling(ec.generate_private_key(ec.SECP256R1()))))  # type: ignore[arg-type]


def test_other_keys_of_the_process_do_not_come_to_us(ca: trustme.CA) -> None:
    """A context without such a key, and the verification of servers, use OpenSSL's own implementation."""
    provider()
    key = MemoryKey(ec.generate_private_key(ec.SECP256R1()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.issue_cert("plain@example.test").configure_cert(context)
    assert shake_hands(ca, pair(ca, key)) == "alice"  # type: ignore[arg-type]
    assert len(key.schemes) == 1


def test_threads_shake_hands_at_once(ca: trustme.CA) -> None:
    key = MemoryKey(ec.generate_private_key(ec.SECP256R1()))
    certificate = pair(ca, key)
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda: names.append(shake_hands(ca, certificate)))  # type: ignore[arg-type]
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["alice"] * 12


def test_a_context_keeps_its_key_and_lets_it_go_with_itself(ca: trustme.CA) -> None:
    key = MemoryKey(ec.generate_private_key(ec.SECP256R1()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with in_memory_file(certify(ca, key.public_key, "alice")) as path:
        use_key(context, path, key)
    known = weakref.ref(key)
    del key
    gc.collect()
    assert known() is not None
    del context
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("other", [ec.generate_private_key(ec.SECP256R1()), RSA_KEY], ids=["another", "another type"])
def test_a_key_that_does_not_belong_to_the_certificate_is_refused(
    ca: trustme.CA, other: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
) -> None:
    certificate = certify(ca, ec.generate_private_key(ec.SECP256R1()).public_key(), "alice")
    with in_memory_file(certificate) as path, pytest.raises(ValueError, match="does not belong"):
        use_key(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path, MemoryKey(other))
    with pytest.raises(KeyUnusable) as error:
        pair_with_key(certificate.decode(), MemoryKey(other))
    assert error.value.code == "key-mismatch"


class TestInterpretersThatCannot:
    def test_another_implementation(self) -> None:
        self._fails(ssl, "pypy", "only CPython's")

    def test_an_ssl_module_that_is_built_in(self) -> None:
        self._fails(types.SimpleNamespace(_ssl=types.SimpleNamespace()), "cpython", "built in")

    def test_an_ssl_module_that_is_linked_statically(self) -> None:
        # A real extension module of this interpreter that exports nothing of OpenSSL.
        import _json

        module = types.SimpleNamespace(_ssl=_json, OPENSSL_VERSION_INFO=(3, 0, 0, 0, 0))
        self._fails(module, "cpython", "linked statically")

    def test_an_old_openssl(self) -> None:
        module = types.SimpleNamespace(_ssl=ssl._ssl, OPENSSL_VERSION_INFO=(1, 1, 1), OPENSSL_VERSION="OpenSSL 1.1.1")  # type: ignore[attr-defined]
        self._fails(module, "cpython", "OpenSSL 1.1.1")

    def test_another_openssl_than_that_of_the_ssl_module(self) -> None:
        module = types.SimpleNamespace(_ssl=ssl._ssl, OPENSSL_VERSION_INFO=(3, 9), OPENSSL_VERSION_NUMBER=1)  # type: ignore[attr-defined]
        self._fails(module, "cpython", "another OpenSSL")

    def _fails(self, module: object, implementation: str, reason: str) -> None:
        with pytest.raises(KeyUnusable, match=reason) as error:
            library._load(module, implementation=implementation)
        assert error.value.code == "key-unsupported"
