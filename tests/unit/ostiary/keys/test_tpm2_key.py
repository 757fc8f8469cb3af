"""Keys in a TPM: their addresses, and every signature that TLS may ask for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import KeyUnusable
from ostiary.keys.opening import open_key
from ostiary.keys.tpm2 import Tpm2Key
from ostiary.model import SignatureScheme
from tests.support.device_keys.swtpm import SoftTpm


@pytest.mark.parametrize(
    "scheme",
    [SignatureScheme.ECDSA_SHA256, SignatureScheme.RSA_PSS_SHA256, SignatureScheme.RSA_PKCS1_SHA256],
    ids=lambda scheme: scheme.value,
)
@pytest.mark.needs("swtpm", "tpm2_create")
def test_a_persistent_handle_signs(soft_tpm: SoftTpm, scheme: SignatureScheme) -> None:
    key = open_key("tpm2:handle:0x81000001" if "ecdsa" in scheme.value else "tpm2:handle:0x81000002")
    digest = hashlib.sha256(b"what is signed").digest()
    signature, prehashed = key.sign(digest, scheme), Prehashed(hashes.SHA256())
    public = key.public_key
    if isinstance(public, ec.EllipticCurvePublicKey):
        return public.verify(signature, digest, ec.ECDSA(prehashed))
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), 32)
    public.verify(signature, digest, pss if "pss" in scheme.value else padding.PKCS1v15(), prehashed)
    return None


@pytest.mark.needs("swtpm", "tpm2_create", "openssl")
def test_a_file_that_only_this_tpm_can_load_signs(soft_tpm: SoftTpm, tmp_path: Path) -> None:
    key = open_key(soft_tpm.create_file(tmp_path / "client.tss2.pem"))
    digest = bytes(32)
    signature = key.sign(digest, SignatureScheme.ECDSA_SHA256)
    assert isinstance(key.public_key, ec.EllipticCurvePublicKey)
    key.public_key.verify(signature, digest, ec.ECDSA(Prehashed(hashes.SHA256())))


@pytest.mark.needs("swtpm", "tpm2_create")
@pytest.mark.parametrize("address", ["tpm2:handle:0x810000fe", "tpm2:file:/nowhere/key.pem", "tpm2:file:/etc/passwd"])
def test_what_is_not_there_is_told(soft_tpm: SoftTpm, address: str) -> None:
    with pytest.raises(KeyUnusable) as error:
        open_key(address)
    assert error.value.code == "key-not-found"


@pytest.mark.needs("swtpm", "tpm2_create")
def test_openssl_without_the_provider_is_told(
    soft_tpm: SoftTpm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENSSL_MODULES", str(tmp_path))
    with pytest.raises(KeyUnusable, match="no provider") as error:
        open_key("tpm2:handle:0x81000003")
    assert "tpm2-openssl" in str(error.value.hint)


def test_what_is_no_address_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "handle:",
        "handle:1",
        "handle:0x80000001",
        "handle:0x810000001",
        "file:",
        "nv:0x1",
        "handle:0x81000001?tcti=cmd:sh",
    ]
    for address in cases:
        with subtests.test(address=address), pytest.raises(ValueError):  # each with a sentence of its own
            Tpm2Key.from_address(address, Path())


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        Tpm2Key.from_address(text, Path("/folder"))
    except ValueError:
        return
    assert text.startswith(("handle:0x81", "file:"))
