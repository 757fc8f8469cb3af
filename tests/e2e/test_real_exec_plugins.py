"""Exec plugins of the clouds, as people have them installed, run by our client before a real request.

None of them reaches its cloud: `aws` signs with a key of the test, and `gke-gcloud-auth-plugin` gets its token from a
server of the test. kubelogin and aws-iam-authenticator are in `tests/interop/test_exec_plugins.py`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ostiary.client.connection import Connection
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer, Response
from tests.support.plugins import exec_user
from tests.support.tiers import missing

Connect = Callable[..., Connection]
PODS = "/api/v1/namespaces/default/pods"
SECRET_KEY = "a-secret-key-of-the-test"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and no trace of the clouds that this machine may know."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def requests_with(connection: Connection, api: ApiServer, count: int = 3) -> str:
    """The token that arrived with each of several requests."""
    with connection.httpx() as client:
        for _ in range(count):
            assert client.get(PODS).status_code == 200
    (authorization,) = {request.headers.get("authorization") for request in api.requests if request.target == PODS}
    assert authorization is not None
    return str(authorization).removeprefix("Bearer ")


def test_aws_eks_get_token(home: Path, monkeypatch: pytest.MonkeyPatch, connect_to: Connect, api: ApiServer) -> None:
    """D7, E72."""
    if shutil.which("aws") is None:
        missing("aws")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    user = exec_user(
        "aws",
        version="v1beta1",
        args=["--region", "eu-central-1", "eks", "get-token", "--cluster-name", "dev", "--output", "json"],
        env=[{"name": "AWS_STS_REGIONAL_ENDPOINTS", "value": "regional"}],
    )
    connection = connect_to(user=user)
    form, _, signed = requests_with(connection, api).partition(".")
    assert form == "k8s-aws-v1"
    url = urlsplit(base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4)).decode())
    assert url.hostname == "sts.eu-central-1.amazonaws.com", "the environment of the kubeconfig was passed on"
    assert parse_qs(url.query)["Action"] == ["GetCallerIdentity"]
    assert SECRET_KEY not in signed


@pytest.fixture
def token_server() -> Iterator[HttpServer]:
    """Where a service account of Google exchanges its signed assertion for a token."""
    token = {"access_token": "ya29.of-the-test", "expires_in": 3600, "token_type": "Bearer"}
    with HttpServer(Response(body=token)).running() as server:
        yield server


def test_gke_gcloud_auth_plugin(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    connect_to: Connect,
    api: ApiServer,
    token_server: HttpServer,
) -> None:
    if shutil.which("gke-gcloud-auth-plugin") is None:
        # Of Google's own package repository, which not every machine has: not an error in CI either.
        pytest.skip("gke-gcloud-auth-plugin is not installed")
    key = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    account = {
        "type": "service_account",
        "project_id": "team",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "ci@team.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{token_server.url}/token",
    }
    (home / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(home / "account.json"))
    # It answers in v1beta1 whatever it is asked for, so the kubeconfig must say that.
    user = exec_user(
        "gke-gcloud-auth-plugin",
        version="v1beta1",
        args=["--use_application_default_credentials"],
        provideClusterInfo=True,
    )
    assert requests_with(connect_to(user=user), api) == "ya29.of-the-test"
    (request,) = token_server.requests
    grant_types = request.form.get_list("grant_type")
    assert grant_types == ["urn:ietf:params:oauth:grant-type:jwt-bearer"], "one run for all requests"
