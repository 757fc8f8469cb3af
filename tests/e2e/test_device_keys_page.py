"""docs/how-to/keep-keys-in-hardware.md, followed: its commands make the keys, its addresses and settings are used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from ostiary.keys.opening import check_address, open_key
from ostiary.model import SignatureScheme
from tests.conformance.adapters.contract import PODS
from tests.support.apiserver import ApiServer
from tests.support.device_keys.certified import certify
from tests.support.device_keys.softhsm import PIN, SoftToken, module
from tests.support.device_keys.swtpm import soft_tpm
from tests.support.plugins import write_kubeconfig
from tests.support.walkthrough import ROOT

PAGE = (ROOT / "docs/how-to/keep-keys-in-hardware.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
USE = '{code}\nprint(client.get("{path}").status_code)'
pytestmark = pytest.mark.needs("softhsm2-util", "pkcs11-tool", "swtpm", "tpm2_create")


def blocks(language: str) -> list[str]:
    return [text.replace("/usr/lib/softhsm/libsofthsm2.so", str(module())) for kind, text in BLOCKS if kind == language]


def test_every_address_in_the_table_is_one() -> None:
    table = re.findall(r"^\| `(\S+:.*?)` \|", PAGE, re.MULTILINE)
    addresses = [address for cell in table for address in cell.split("`, `")]
    assert len(addresses) == 5
    for address in addresses:
        check_address(address.replace("REGION:ACCOUNT:key/ID", "eu-central-1:111122223333:key/1234"))


def test_the_page_can_be_followed(tmp_path: Path, ca: trustme.CA, api: ApiServer) -> None:
    token = SoftToken(tmp_path / "softhsm")
    (tmp_path / "softhsm/tokens").mkdir(parents=True)
    (tmp_path / "softhsm/softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/softhsm/tokens\n")
    (tmp_path / "pin").write_text(PIN)
    api.rules.certificates = {"alice"}
    with soft_tpm(tmp_path / "tpm") as tpm:
        environ = {**tpm.environ, "SOFTHSM2_CONF": token.environ["SOFTHSM2_CONF"], "HOME": str(tmp_path)}
        for text in blocks("sh"):
            subprocess.run(["sh", "-ec", text], cwd=tmp_path, env=environ, check=True, capture_output=True)
        user = yaml.safe_load(blocks("yaml")[0])["users"][0]["user"]
        extension = user["extensions"][0]["extension"]
        extension["key"] = extension["key"].replace("/etc/ostiary/pin", str(tmp_path / "pin"))
        (code,) = blocks("py")
        in_tpm = re.search(r'key="(.*?)"', code)
        assert in_tpm is not None
        for address, program in ((extension["key"], code.replace(in_tpm[0], "")), (in_tpm[1], code)):
            public = tmp_path / "public"
            script = (
                "import sys; from ostiary.keys.opening import open_key\n"
                "from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat\n"
                "key = open_key(sys.argv[1]).public_key\n"
                "open(sys.argv[2], 'wb').write(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))\n"
            )
            subprocess.run([sys.executable, "-c", script, address, str(public)], env=environ, check=True)
            (tmp_path / "alice.pem").write_bytes(certify(ca, _public(public), "alice"))
            (tmp_path / "ca.pem").write_bytes(ca.cert_pem.bytes())
            cluster = {"certificate-authority": "ca.pem"}
            (tmp_path / ".kube").mkdir(exist_ok=True)
            kubeconfig = write_kubeconfig(tmp_path / "config", server=api.url, user=user, cluster=cluster)
            done = subprocess.run(
                [sys.executable, "-c", USE.format(code=program, path=PODS)],
                env={**environ, "KUBECONFIG": str(kubeconfig)},
                capture_output=True,
                text=True,
            )
            assert done.stdout == "200\n", done.stderr


def _public(path: Path) -> ec.EllipticCurvePublicKey:
    key = load_pem_public_key(path.read_bytes())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


@pytest.mark.needs("jq", "openssl")
def test_the_signing_command_of_the_reference_signs(tmp_path: Path, ca: trustme.CA) -> None:
    reference = (ROOT / "docs/reference/exec-plugin-protocol.md").read_text()
    (script,) = re.findall(r"^```sh\n(#!/bin/sh.*?)^```", reference, re.MULTILINE | re.DOTALL)
    (tmp_path / "key.pem").write_bytes(ca.issue_cert("localhost").private_key_pem.bytes())
    command = tmp_path / "sign"
    command.write_text(script.replace("/etc/vault/key.pem", str(tmp_path / "key.pem")))
    command.chmod(0o755)
    key = open_key(f"exec:{command}")
    digest = bytes(range(32))
    assert isinstance(key.public_key, ec.EllipticCurvePublicKey)
    signature = key.sign(digest, SignatureScheme.ECDSA_SHA256)
    key.public_key.verify(signature, digest, ec.ECDSA(Prehashed(SHA256())))


def test_the_settings_of_the_gateway_are_settings() -> None:
    settings = yaml.safe_load(blocks("yaml")[1])
    check_address(settings["listen"]["tls"]["key"])
    for address in settings["issuer"]["keys"]["files"]:
        check_address(address)
