"""One open key: its thread, its time limit, what happens after a failure, and when nobody has it any more."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ostiary.errors import KeyUnusable
from ostiary.keys.held_key import HeldKey
from ostiary.model import DeviceKey, SignatureScheme
from tests.support.device_keys.handshake import MemoryKey

SCHEME = SignatureScheme.ECDSA_SHA256
PRIVATE = ec.generate_private_key(ec.SECP256R1())


class Device:
    """Gives a key as often as it is opened, and knows them all."""

    def __init__(self) -> None:
        self.keys: list[MemoryKey] = []

    def open(self) -> DeviceKey:
        self.keys.append(MemoryKey(PRIVATE))
        return self.keys[-1]


def test_a_key_that_has_failed_is_opened_again_before_its_next_signature() -> None:
    device = Device()
    key = HeldKey("test:key", device.open)
    assert key.sign(bytes(32), SCHEME)
    device.keys[0].failure = KeyUnusable("gone")
    with pytest.raises(KeyUnusable, match="gone") as error:
        key.sign(bytes(32), SCHEME)
    assert error.value.where == "test:key"
    assert device.keys[0].closed == 1
    assert key.sign(bytes(32), SCHEME)
    assert len(device.keys) == 2


def test_another_key_in_the_place_of_the_first_does_not_sign() -> None:
    keys = iter([MemoryKey(PRIVATE), MemoryKey(ec.generate_private_key(ec.SECP256R1()))])
    first = next(keys)
    key = HeldKey("test:key", lambda: first if not first.schemes else next(keys))
    first.failure = KeyUnusable("gone")
    with pytest.raises(KeyUnusable, match="gone"):
        key.sign(bytes(32), SCHEME)
    with pytest.raises(KeyUnusable, match="another one than before") as error:
        key.sign(bytes(32), SCHEME)
    assert error.value.code == "key-mismatch"


def test_a_device_that_hangs_is_given_up_and_all_others_are_refused_until_it_answers() -> None:
    go_on, answered = threading.Event(), threading.Event()

    class Hanging(MemoryKey):
        def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
            go_on.wait(30)
            try:
                return super().sign(digest, scheme)
            finally:
                answered.set()

    key = HeldKey("test:key", lambda: Hanging(PRIVATE), seconds=0.05)
    with pytest.raises(KeyUnusable) as error:
        key.sign(bytes(32), SCHEME)
    assert error.value.code == "key-device-timeout"
    with pytest.raises(KeyUnusable) as error:
        key.sign(bytes(32), SCHEME)
    assert error.value.code == "key-device-busy"
    go_on.set()
    assert answered.wait(30)
    deadline = time.monotonic() + 60
    while True:
        # The thread says so a moment after the device has answered. On a busy machine a signature may be late again.
        try:
            assert key.sign(bytes(32), SCHEME)
        except KeyUnusable as late:
            assert late.code in ("key-device-busy", "key-device-timeout")  # noqa: PT017
            assert time.monotonic() < deadline, "it does not recover"
            time.sleep(0.01)
        else:
            return


def test_the_device_is_let_go_when_nobody_has_the_key() -> None:
    device = Device()
    key = HeldKey("test:let-go", device.open)
    (thread,) = [each for each in threading.enumerate() if each.name == "key test:let-go"]
    del key
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()
    assert device.keys[0].closed == 1


def test_a_closed_key_does_not_sign_and_can_be_closed_twice() -> None:
    key = HeldKey("test:key", Device().open)
    key.close()
    key.close()
    with pytest.raises(KeyUnusable, match="does not sign"):
        key.sign(bytes(32), SCHEME)


def test_a_key_that_was_opened_before_a_fork_says_so_in_the_child() -> None:
    key = HeldKey("test:key", Device().open)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = b"nothing"
        try:
            key.sign(bytes(32), SCHEME)
        except KeyUnusable as error:
            code = (error.cause or "").encode()
        os.write(writing, code)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"the process was forked after the key had been opened"


def test_a_kind_of_key_that_tls_does_not_sign_with_is_refused() -> None:
    class Edwards(MemoryKey):
        def __init__(self) -> None:
            self.public_key = ed25519.Ed25519PrivateKey.generate().public_key()  # type: ignore[assignment]
            self.closed = 0

    with pytest.raises(KeyUnusable, match="neither an EC nor an RSA key"):
        HeldKey("test:key", Edwards)
