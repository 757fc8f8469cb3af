"""What goes wrong with keys in devices: each is one clear error, and no PIN is tried twice."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256

from ostiary.errors import KeyUnusable
from ostiary.keys.opening import OpeningRules, open_key
from ostiary.model import SignatureScheme
from tests.support.device_keys.softhsm import PIN, SoftToken
from tests.support.device_keys.swtpm import SoftTpm
from tests.support.device_keys.swtpm import soft_tpm as running_tpm
from tests.support.terminal import AtTerminal

DIGEST = hashlib.sha256(b"what is signed").digest()
SCHEME = SignatureScheme.ECDSA_SHA256
# Opens a key as a client does, asks for a signature as often as it is told, and says what came of it.
PROGRAM = """
import hashlib, json, sys
from ostiary.client.exec.device_keys import open_device_key
from ostiary.client.exec.policy import AllowAll
from ostiary.errors import OstiaryError
from ostiary.model import SignatureScheme
address, times, may_ask = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ask"
try:
    key = open_device_key(address, policy=AllowAll(), may_ask=may_ask)
    for _ in range(times):
        key.sign(bytes(32), SignatureScheme.ECDSA_SHA256)
    print(json.dumps({"code": "", "signed": times}))
except OstiaryError as error:
    print(json.dumps({"code": error.code, "text": str(error)}))
"""
pytestmark = pytest.mark.needs("softhsm2-util", "pkcs11-tool", "swtpm", "tpm2_create")


def program(address: str, times: int = 1, ask: str = "") -> list[str]:
    return [sys.executable, "-c", PROGRAM, address, str(times), ask]


def result_of(address: str, **environ: str) -> dict[str, str]:
    """What a process of its own says, which nobody can be asked in."""
    done = subprocess.run(
        program(address), env={**os.environ, **environ}, capture_output=True, stdin=subprocess.DEVNULL, check=True
    )
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


class TestPins:
    def test_a_wrong_pin_is_tried_once_by_a_process_and_never_by_the_next(
        self, soft_token: SoftToken, tmp_path: Path
    ) -> None:
        token, pin = replace(soft_token, label="wrong-pin"), tmp_path / "pin"
        pin.write_text("999999")
        address = token.address("ec", pin)
        causes = []
        for _ in range(3):
            with pytest.raises(KeyUnusable) as error:
                open_key(address)
            assert error.value.code == "key-pin-wrong"
            causes.append(error.value.summary)
        # The token was asked once: from then on we know.
        assert causes == ["the PIN is wrong", *["the PIN was refused before, and is not tried again"] * 2]
        # Another process cannot know, but the token does; even the right PIN is not tried without a person.
        assert result_of(address)["code"] == "key-pin-locked"
        assert "999999" not in str(error.value)
        pin.write_text(PIN)
        assert result_of(address)["code"] == "key-pin-locked"
        # A person who types it makes the token usable again.
        person = AtTerminal(program(token.address("ec"), 1, "ask"), {**os.environ})
        person.read_until("PIN of wrong-pin: ")
        person.type(f"{PIN}\n")
        assert json.loads(person.end()[1]) == {"code": "", "signed": 1}
        assert PIN not in person.shown
        # And a PIN that was corrected in its file is tried, once more.
        assert open_key(address).sign(DIGEST, SCHEME)

    def test_without_a_pin_and_a_terminal_nobody_is_asked(self, soft_token: SoftToken) -> None:
        address = soft_token.address("ec")
        assert result_of(address)["code"] == "key-pin-needed"
        assert result_of(address, OSTIARY_KEY_PIN=PIN)["code"] == ""

    def test_a_password_of_a_tpm_key_is_checked_when_it_is_opened(self, soft_tpm: SoftTpm, tmp_path: Path) -> None:
        handle = soft_tpm.create("0x81000020", "ecc256:ecdsa", password="correct horse")
        pin = tmp_path / "pin"
        pin.write_text("wrong")
        address = f"{handle}?pin-source={pin}"
        for summary in ("the password of the key in the TPM is wrong", "the PIN was refused before"):
            with pytest.raises(KeyUnusable, match=summary) as error:
                open_key(address)
            assert error.value.code == "key-pin-wrong"
        pin.write_text("correct horse\n")
        assert open_key(address).sign(DIGEST, SCHEME)

    def test_a_tpm_that_has_locked_itself_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with running_tpm(tmp_path / "tpm") as tpm:
            monkeypatch.setenv("TPM2OPENSSL_TCTI", tpm.tcti)
            handle = tpm.create("0x81000001", "ecc256:ecdsa", password="correct horse")
            tpm.tool("tpm2_dictionarylockout", "--setup-parameters", "--max-tries=1")
            codes = []
            for text in ("first", "second"):
                (tmp_path / "pin").write_text(text)
                with pytest.raises(KeyUnusable) as error:
                    open_key(f"{handle}?pin-source={tmp_path / 'pin'}")
                codes.append(error.value.code)
            assert codes == ["key-pin-wrong", "key-pin-locked"]


class TestDevicesThatGo:
    def test_a_token_that_is_removed_is_one_clear_error(self, soft_token: SoftToken) -> None:
        token = replace(soft_token, label="removed")
        key = open_key(token.address("ec", soft_token.folder / "pin"))
        assert key.sign(DIGEST, SCHEME)
        token.delete()
        with pytest.raises(KeyUnusable) as error:
            key.sign(DIGEST, SCHEME)
        assert error.value.code in ("key-device-failed", "key-not-found")
        assert "removed" in str(error.value)

    def test_a_tpm_that_goes_and_comes_back_signs_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with running_tpm(tmp_path / "tpm") as tpm:
            monkeypatch.setenv("TPM2OPENSSL_TCTI", tpm.tcti)
            key = open_key(tpm.create("0x81000001", "ecc256:ecdsa"))
            assert key.sign(DIGEST, SCHEME)
        with pytest.raises(KeyUnusable, match="no TPM answers") as error:
            key.sign(DIGEST, SCHEME)
        assert error.value.code == "key-device-failed"
        with running_tpm(tmp_path / "tpm") as again:
            monkeypatch.setenv("TPM2OPENSSL_TCTI", again.tcti)
            signature = key.sign(DIGEST, SCHEME)
        assert isinstance(key.public_key, ec.EllipticCurvePublicKey)
        key.public_key.verify(signature, DIGEST, ec.ECDSA(Prehashed(SHA256())))

    def test_processes_share_one_tpm(self, soft_tpm: SoftTpm) -> None:
        command = program("tpm2:handle:0x81000001", times=15)
        processes = [
            subprocess.Popen(command, stdout=subprocess.PIPE, env=soft_tpm.environ, stdin=subprocess.DEVNULL)
            for _ in range(3)
        ]
        answers = [json.loads(process.communicate()[0]) for process in processes]
        assert answers == [{"code": "", "signed": 15}] * 3

    def test_a_tpm_that_another_process_keeps_is_given_up_and_nothing_piles_up(self, soft_tpm: SoftTpm) -> None:
        key = open_key("tpm2:handle:0x81000002", OpeningRules(seconds=0.3))
        threads = threading.active_count()
        with socket.create_connection(("127.0.0.1", soft_tpm.port)):
            codes = []
            for _ in range(20):
                with pytest.raises(KeyUnusable) as error:
                    key.sign(DIGEST, SignatureScheme.RSA_PSS_SHA256)
                codes.append(error.value.code)
            assert codes == ["key-device-timeout", *["key-device-busy"] * 19]
            assert threading.active_count() == threads
