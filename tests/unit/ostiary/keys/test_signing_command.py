"""Keys that a command signs with: what it is sent, and what is made of what it prints."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from ostiary.core.process import RunLimits
from ostiary.errors import KeyUnusable
from ostiary.keys import signing_command
from ostiary.keys.opening import open_key
from ostiary.keys.signing_command import CommandKey
from ostiary.model import SignatureScheme
from tests.unit.ostiary.keys.test_held_key import PRIVATE

PUBLIC = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
PEM = PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """Prints ``public`` when it is asked for the key, and does what ``sign`` says otherwise; notes what it was sent."""
    path = tmp_path / "signer"
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "text = sys.stdin.read()\n"
        "with (folder / 'requests').open('a') as file:\n"
        "    file.write(json.dumps([sys.argv[1:], text]) + '\\n')\n"
        "if json.loads(text)['kind'] == 'PublicKeyRequest':\n"
        "    print((folder / 'public').read_text())\n"
        "else:\n"
        "    exec((folder / 'sign').read_text())\n"
    )
    path.chmod(0o755)
    (tmp_path / "public").write_text(PUBLIC)
    (tmp_path / "sign").write_text("")
    return path


def test_it_is_sent_the_digest_and_the_scheme_and_prints_the_signature(command: Path, tmp_path: Path) -> None:
    digest = bytes(range(32))
    signature = PRIVATE.sign(digest, ec.ECDSA(Prehashed(SHA256())))
    (tmp_path / "sign").write_text(f"print({base64.b64encode(signature).decode()!r})")
    key = open_key(f"exec:{command} --slot '9 a'")
    assert key.sign(digest, SignatureScheme.ECDSA_SHA256) == signature
    requests = [json.loads(line) for line in (tmp_path / "requests").read_text().splitlines()]
    assert [arguments for arguments, _ in requests] == [["--slot", "9 a"]] * 2
    version = "keys.ostiary.dev/v1"
    assert [json.loads(text) for _, text in requests] == [
        {"apiVersion": version, "kind": "PublicKeyRequest"},
        {
            "apiVersion": version,
            "kind": "SignRequest",
            "digest": base64.b64encode(digest).decode(),
            "scheme": "ecdsa-sha256",
        },
    ]


@pytest.mark.parametrize(
    ("signing", "reason", "code"),
    [
        ("sys.exit('the reader is gone')", "the reader is gone", "key-device-failed"),
        ("print('no base64 at all!')", "did not print a signature", "key-device-failed"),
        ("", "did not print a signature", "key-device-failed"),
        ("print('A' * 1000000)", "more than a signature", "key-device-failed"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9", "key-device-failed"),
        ("import time; time.sleep(60)", "did not end within", "key-device-timeout"),
    ],
)
def test_a_command_that_does_not_sign_is_one_clear_error(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signing: str, reason: str, code: str
) -> None:
    (tmp_path / "sign").write_text(signing)
    key = open_key(f"exec:{command} --password canary-99")
    if "sleep" in signing:
        limits = RunLimits(seconds=0.2, stdout_bytes=1000)
        monkeypatch.setattr(signing_command, "LIMITS", limits)
    with pytest.raises(KeyUnusable) as error:
        key.sign(bytes(32), SignatureScheme.ECDSA_SHA256)
    assert reason in str(error.value.cause)
    assert error.value.code == code
    # Arguments may hold a secret. Where the key is told, its address has been read from a configuration.
    assert "canary-99" not in str(error.value.cause)


@pytest.mark.parametrize("public", ["", "no key", PEM.decode()], ids=["nothing", "text", "a private key"])
def test_what_is_no_public_key_is_refused_and_never_quoted(command: Path, tmp_path: Path, public: str) -> None:
    (tmp_path / "public").write_text(public)
    with pytest.raises(KeyUnusable, match="does not keep the protocol") as error:
        open_key(f"exec:{command}")
    assert "PRIVATE" not in str(error.value)


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(KeyUnusable, match="cannot be started") as error:
        open_key(f"exec:{tmp_path}/absent")
    assert error.value.code == "key-not-found"


@pytest.mark.parametrize("address", ["", "   ", "'a", '"'])
def test_what_is_no_command_line_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="command"):
        CommandKey.from_address(address, Path())


def test_a_path_is_meant_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    assert CommandKey.from_address("./bin/sign a", tmp_path).program == (str(tmp_path / "bin/sign"), "a")
    assert CommandKey.from_address("sign a", tmp_path).program == ("sign", "a")


def test_a_path_never_becomes_a_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CommandKey.from_address("./sign", Path()).program == (str(tmp_path / "sign"),)
