"""A gateway whose keys are in devices: of its listener, of its upstream and of its issuer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from joserfc import jwt
from joserfc.jwk import KeySet

from ostiary.keys.opening import open_key
from tests.support.cluster import Cluster
from tests.support.device_keys.certified import certify
from tests.support.device_keys.softhsm import SoftToken
from tests.support.device_keys.swtpm import SoftTpm
from tests.support.gateway import Site, role
from tests.support.ports import free_port

AUDIENCE = "https://prod.example"
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "audience": AUDIENCE,
}
IN_TPM = "tpm2:handle:0x81000001"
pytestmark = pytest.mark.needs("softhsm2-util", "pkcs11-tool", "swtpm", "tpm2_create")


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        yield cluster


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "site", ca)
    site.users("alice")
    site.policy(role("team", "get list pods", User="alice"))
    return site


def sections(site: Site, cluster: Cluster, token: SoftToken) -> dict[str, Any]:
    """Listener and issuer in the card, the upstream's key in the TPM."""
    port = free_port()
    in_card = token.address("ec", token.folder / "pin")
    listener = open_key(token.address("rsa", token.folder / "pin"))
    (site.folder / "server.pem").write_bytes(certify(site.ca, listener.public_key, "localhost"))
    proxy = certify(cluster.proxy_ca, open_key(IN_TPM).public_key, "front-proxy")
    upstream = site.by_request_header(cluster)
    (site.folder / "proxy.pem").write_bytes(proxy)
    upstream["tls"]["key"] = IN_TPM
    return {
        "listen": {"address": f"127.0.0.1:{port}", "tls": {"certificate": "server.pem", "key": listener.name}},
        "externalURL": f"https://localhost:{port}",
        "issuer": {"audiences": [AUDIENCE], "keys": {"files": [in_card]}},
        "upstreams": [upstream],
    }


def check(config: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", *flags, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=dict(os.environ))


def test_all_keys_of_a_gateway_are_in_devices_and_it_works(
    site: Site, cluster: Cluster, soft_token: SoftToken, soft_tpm: SoftTpm
) -> None:
    config = sections(site, cluster, soft_token)
    for file in site.folder.glob("*.key"):
        file.unlink()
    checked = check(site.write_config(**config))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with site.serving(**config) as gateway:
        login = gateway.login("alice")
        assert gateway.get("/api/v1/namespaces/team/pods", login.token).status_code == 200
        with gateway.http() as http:
            answer = http.post("/auth/token", data={**EXCHANGE, "subject_token": login.token})
            keys = http.get(http.get("/.well-known/openid-configuration").json()["jwks_uri"]).json()
        token = jwt.decode(answer.json()["access_token"], KeySet.import_key_set(keys))
        assert token.claims["username"] == "alice"
        # Reloaded, with the listener's key in the other device.
        (site.folder / "server.pem").write_bytes(certify(site.ca, open_key(IN_TPM).public_key, "localhost"))
        config["listen"]["tls"]["key"] = IN_TPM
        site.write_config(**config)
        gateway.signal(signal.SIGHUP)
        gateway.line("the configuration was reloaded")
        with gateway.http(login.token) as http:
            assert http.get("/api/v1/namespaces/team/pods").status_code == 200


def test_an_online_check_opens_the_keys_and_tells_what_is_wrong_with_each(
    site: Site, cluster: Cluster, soft_token: SoftToken, soft_tpm: SoftTpm
) -> None:
    config = sections(site, cluster, soft_token)
    absent, rsa = "tpm2:handle:0x810000ff", "tpm2:handle:0x81000002"
    config["listen"]["tls"]["key"] = absent
    config["upstreams"][0]["tls"]["key"] = rsa
    config["issuer"]["keys"]["files"] = [rsa]
    assert check(site.write_config(**config)).returncode == 0, "without --online nothing is opened"
    checked = check(site.write_config(**config), "--online")
    assert checked.returncode != 0
    said = checked.stdout + checked.stderr
    assert "the key was not found in the TPM" in said
    assert "the certificate is for a key of type EC P-256, and the key is of type RSA 2048" in said
    assert "not a key on the curve P-256" in said


def test_a_listener_whose_device_is_gone_says_why_and_works_again_when_it_is_back(
    site: Site, tmp_path: Path, ca: trustme.CA
) -> None:
    """Its key is that of a signing command, which can be made to fail."""
    leaf = ca.issue_cert("localhost", "127.0.0.1")
    (tmp_path / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    signer = tmp_path / "signer"
    signer.write_text(
        f"#!{sys.executable}\n"
        "import base64, json, pathlib, subprocess, sys\n"
        "request, key = json.load(sys.stdin), str(pathlib.Path(__file__).parent / 'key.pem')\n"
        "if request['kind'] == 'PublicKeyRequest':\n"
        "    sys.exit(subprocess.run(['openssl', 'pkey', '-in', key, '-pubout']).returncode)\n"
        "if pathlib.Path(__file__).with_name('gone').exists():\n"
        "    sys.exit('no card in the reader')\n"
        "done = subprocess.run(['openssl', 'pkeyutl', '-sign', '-inkey', key], check=True, capture_output=True,\n"
        "                      input=base64.b64decode(request['digest']))\n"
        "print(base64.b64encode(done.stdout).decode())\n"
    )
    signer.chmod(0o755)
    (site.folder / "server.pem").write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    listen = {"tls": {"certificate": "server.pem", "key": f"exec:{signer}"}}
    with site.serving(listen=listen) as gateway:
        assert gateway.get("/auth").status_code < 500
        (tmp_path / "gone").touch()
        with pytest.raises(Exception, match=r"(?i)ssl|tls"), gateway.http() as http:
            http.get("/auth")
        line = gateway.line("a TLS handshake failed")
        assert "no card in the reader" in line
        assert json.dumps("PRIVATE KEY") not in gateway.stderr
        (tmp_path / "gone").unlink()
        assert gateway.get("/auth").status_code < 500
