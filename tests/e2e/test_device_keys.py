"""Every adapter with a key that never leaves its device: a smartcard, and a TPM in a process of its own."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary import KeyUnusable, PluginRefused
from ostiary.client.exec.policy import DenyAll
from ostiary.keys.opening import open_key
from tests.conformance.adapters.contract import PODS, Driver
from tests.conformance.adapters.test_aiohttp import AiohttpDriver
from tests.conformance.adapters.test_httpx import AsyncHttpx2Driver, AsyncHttpxDriver, Httpx2Driver, HttpxDriver
from tests.conformance.adapters.test_kr8s import Kr8sDriver
from tests.conformance.adapters.test_kubernetes import KubernetesDriver
from tests.conformance.adapters.test_kubernetes_aio import KubernetesAioDriver, KubernetesAsyncioDriver
from tests.conformance.adapters.test_lightkube import AsyncLightkubeDriver, LightkubeDriver
from tests.conformance.adapters.test_requests import RequestsDriver
from tests.conformance.adapters.test_urllib3 import Urllib3Driver
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.cluster import Cluster
from tests.support.connect_desk import connect_desk
from tests.support.device_keys.certified import certify
from tests.support.device_keys.softhsm import SoftToken
from tests.support.plugins import PluginScript

DRIVERS: list[type[Driver]] = [
    *(HttpxDriver, Httpx2Driver, AsyncHttpxDriver, AsyncHttpx2Driver, RequestsDriver, Urllib3Driver, AiohttpDriver),
    *(KubernetesDriver, KubernetesAioDriver, KubernetesAsyncioDriver, LightkubeDriver, AsyncLightkubeDriver),
    Kr8sDriver,
]
EXTENSION = "ostiary.dev/client-key"
pytestmark = pytest.mark.needs("softhsm2-util", "pkcs11-tool", "swtpm", "tpm2_create")


@pytest.fixture(params=["softhsm EC", "softhsm RSA", "swtpm EC", "swtpm RSA"])
def address(request: pytest.FixtureRequest) -> str:
    if "softhsm" in request.param:
        token: SoftToken = request.getfixturevalue("soft_token")
        return token.address("ec" if "EC" in request.param else "rsa", token.folder / "pin")
    request.getfixturevalue("soft_tpm")
    return "tpm2:handle:0x81000001" if "EC" in request.param else "tpm2:handle:0x81000002"


@pytest.fixture
def certificate(ca: trustme.CA, address: str) -> bytes:
    return certify(ca, open_key(address).public_key, "alice")


def user_with(certificate: bytes, address: str) -> dict[str, Any]:
    return {
        "client-certificate-data": b64encode(certificate).decode(),
        "extensions": [{"name": EXTENSION, "extension": {"key": address}}],
    }


@pytest.mark.parametrize("open_driver", DRIVERS, ids=lambda driver: driver.__name__.removesuffix("Driver"))
def test_every_adapter_presents_the_certificate_of_a_key_in_a_device(
    open_driver: Callable[..., Driver], connect_to: Connect, api: ApiServer, certificate: bytes, address: str
) -> None:
    """E4."""
    api.rules.certificates = {"alice"}
    driver = open_driver(connect_to(user=user_with(certificate, address)))
    try:
        assert driver.get(PODS).status == 200
    finally:
        driver.close()
    assert api.requests[-1].certificate == "alice"


@pytest.mark.parametrize("address", ["softhsm EC"], indirect=True)
class TestWhereTheAddressComesFrom:
    def test_a_program_gives_it_to_connect(
        self, connect_to: Connect, api: ApiServer, certificate: bytes, address: str, tmp_path: Path
    ) -> None:
        api.rules.certificates = {"alice"}
        (tmp_path / "alice.pem").write_bytes(certificate)
        with connect_to(user={"client-certificate": str(tmp_path / "alice.pem")}, key=address).httpx() as client:
            assert client.get(PODS).status_code == 200

    def test_a_program_gives_an_object_that_signs(
        self, connect_to: Connect, api: ApiServer, certificate: bytes, address: str
    ) -> None:
        api.rules.certificates = {"alice"}
        user = {"client-certificate-data": b64encode(certificate).decode()}
        with connect_to(user=user, key=open_key(address)).httpx() as client:
            assert client.get(PODS).status_code == 200

    def test_an_exec_plugin_answers_with_it(
        self, connect_to: Connect, api: ApiServer, certificate: bytes, address: str, plugin: PluginScript
    ) -> None:
        api.rules.certificates = {"alice"}
        plugin.answer(certificate=certificate.decode(), key_address=address)
        with connect_to().httpx() as client:
            assert client.get(PODS).status_code == 200
        assert plugin.runs == 1

    def test_the_policy_is_asked_about_the_library_that_a_kubeconfig_has_us_load(
        self, connect_to: Connect, certificate: bytes, address: str
    ) -> None:
        with (
            connect_to(user=user_with(certificate, address), policy=DenyAll()).httpx() as client,
            pytest.raises(PluginRefused),
        ):
            client.get(PODS)

    def test_a_renewed_certificate_of_the_same_key_is_taken_up(
        self,
        connect_to: Connect,
        api: ApiServer,
        certificate: bytes,
        address: str,
        tmp_path: Path,
        ca: trustme.CA,
        clock: Any,
    ) -> None:
        file = tmp_path / "alice.pem"
        file.write_bytes(certificate)
        user = {**user_with(certificate, address), "client-certificate": str(file)}
        del user["client-certificate-data"]
        with connect_to(user=user).httpx() as client:
            client.get(PODS)
            file.write_bytes(certify(ca, open_key(address).public_key, "renewed"))
            clock.advance(seconds=2)
            client.get(PODS)
        assert [request.certificate for request in api.requests] == ["alice", "renewed"]


@pytest.mark.parametrize("address", ["softhsm EC", "swtpm EC"], indirect=True)
def test_a_key_of_another_type_than_the_certificate_is_one_clear_error(
    connect_to: Connect, address: str, soft_token: SoftToken, ca: trustme.CA
) -> None:
    rsa = open_key(soft_token.address("rsa", soft_token.folder / "pin"))
    user = user_with(certify(ca, rsa.public_key, "alice"), address)
    with connect_to(user=user).httpx() as client, pytest.raises(KeyUnusable) as error:
        client.get(PODS)
    assert error.value.code == "key-mismatch"
    assert error.value.cause == "the certificate is for a key of type RSA 2048, and the key is of type EC P-256"


@pytest.mark.parametrize("open_driver", DRIVERS, ids=lambda driver: driver.__name__.removesuffix("Driver"))
def test_a_key_that_stops_signing_is_one_clear_error_in_every_adapter(
    open_driver: Callable[..., Driver], connect_to: Connect, ca: trustme.CA, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(ca.issue_cert("localhost").private_key_pem.bytes())
    signer = write_signer(tmp_path, 'sys.exit("the card reader is gone")')
    address = f"exec:{signer}"
    user = user_with(certify(ca, open_key(address).public_key, "alice"), address)
    driver = open_driver(connect_to(user=user))
    try:
        with pytest.raises(Exception) as error:  # of any library
            driver.get(PODS)
    finally:
        driver.close()
    causes: list[BaseException] = [error.value]
    while (cause := causes[-1].__cause__ or causes[-1].__context__ or _reason(causes[-1])) is not None:
        causes.append(cause)
    ours = [each for each in causes if isinstance(each, KeyUnusable)]
    assert ours, causes
    assert "the card reader is gone" in str(ours[0])


def _reason(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, BaseException) else None


def write_signer(folder: Path, signing: str) -> Path:
    """A signing command whose public key is that of ``key.pem``, and that does *signing* when it must sign."""
    path = folder / "signer"
    path.write_text(
        f"#!{sys.executable}\n"
        "import base64, json, subprocess, sys\n"
        "request = json.load(sys.stdin)\n"
        f"key = {str(folder / 'key.pem')!r}\n"
        "if request['kind'] == 'PublicKeyRequest':\n"
        "    subprocess.run(['openssl', 'pkey', '-in', key, '-pubout'], check=True)\n"
        "    sys.exit()\n"
        f"{signing}\n"
    )
    path.chmod(0o755)
    return path


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("address", ["softhsm EC", "swtpm EC"], indirect=True)
def test_kubectl_uses_the_key_through_ostiary_connect(
    ca: trustme.CA, certificate: bytes, address: str, tmp_path: Path
) -> None:
    """D6, E4. It opens the device itself, in a process of its own, and kubectl learns nothing of the key."""
    with Cluster(ca) as cluster, connect_desk(tmp_path, cluster, user_with(certificate, address)) as desk:
        desk.connect()
        cluster.add_pod("default", "web")
        assert "web" in desk.kubectl().output("get", "pods")
        assert {record.certificate for record in cluster.requests} == {"alice"}
