"""Azure's registries, with azure-identity against a local managed identity and a local registry over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.providers.azure import USERNAME, AzureProvider, mirrors_of
from ostiary.sdk import ImageRequest
from ostiary.wire.credential_provider import Request, encode_request
from tests.support.http_server import Response
from tests.unit.ostiary_gateway.providers.common.cloud import CloudServer

CANARY = "c4n4ry-c4n4ry-c4n4ry"
ACCESS = "4ccess-t0ken-0f-the-n0de"
MODULE = "ostiary.registry.providers.azure"


class Azure:
    """A managed identity, as App Service has it, and a registry on this machine."""

    def __init__(self, identity: CloudServer, registry: CloudServer, authority: Path) -> None:
        self.identity, self.registry = identity, registry
        self.host = f"localhost:{registry.port}"
        identity.responses = {
            "/msi/token": Response(200, {"access_token": ACCESS, "expires_on": "4102444800", "resource": "r"}),
        }
        realm = f"https://{self.host}/oauth2/token"
        self.challenge(f'Bearer realm="{realm}",service="{self.host}"')
        registry.responses["/oauth2/exchange"] = Response(200, {"refresh_token": CANARY})
        self.env = {
            "IDENTITY_ENDPOINT": f"http://127.0.0.1:{identity.port}/msi/token",
            "IDENTITY_HEADER": "header",
            "OSTIARY_AZURE_REGISTRY_SUFFIXES": "localhost",
            "REQUESTS_CA_BUNDLE": str(authority),
        }

    def challenge(self, header: str) -> None:
        self.registry.responses["/v2/"] = Response(401, {}, {"WWW-Authenticate": header})

    def run(self, *words: str, **request: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", MODULE, *words],
            input=encode_request(Request(**{"image": f"{self.host}/team/app", **request})),
            env={**os.environ, **self.env},
            capture_output=True,
            timeout=100,
        )


@pytest.fixture
def azure(ca: trustme.CA, tmp_path: Path) -> Iterator[Azure]:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with CloudServer().running() as identity, CloudServer(ca).running() as registry:
        yield Azure(identity, registry, tmp_path / "ca.pem")


def test_the_nodes_identity_becomes_a_login_of_the_registry(azure: Azure) -> None:
    """I30."""
    done = azure.run()
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["auth"] == {azure.host: {"username": USERNAME, "password": CANARY}}
    assert (answer["cacheKeyType"], answer["cacheDuration"]) == ("Registry", "1h0m0s")
    assert azure.identity.requests[0].query["resource"] == "https://containerregistry.azure.net"
    challenged, exchanged = azure.registry.requests
    assert (challenged.method, challenged.path) == ("GET", "/v2/")
    assert (exchanged.method, exchanged.path) == ("POST", "/oauth2/exchange")
    assert dict(exchanged.form) == {"grant_type": "access_token", "service": azure.host, "access_token": ACCESS}


def test_a_mirror_is_answered_for_under_the_name_of_the_image(azure: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in azure.env.items():
        monkeypatch.setenv(name, value)
    request = ImageRequest("mcr.example.com/team/app")
    found = AzureProvider(mirrors={"mcr.example.com": azure.host}).credentials(request)
    assert found is not None
    assert list(found.response(request).auth) == ["mcr.example.com"]


def test_mirrors_are_given_as_an_option() -> None:
    words = ["--registry-mirror=a.example.com:b.azurecr.io, c:d.azurecr.io", "--other=x:y"]
    assert mirrors_of(words) == {"a.example.com": "b.azurecr.io", "c": "d.azurecr.io"}


@pytest.mark.parametrize(
    "header",
    [
        'Bearer realm="https://thief.example.com/oauth2/token",service="x"',
        'Bearer realm="http://HOST/oauth2/token",service="x"',
        'Bearer realm="https://HOST@thief.example.com/",service="x"',
        'Bearer service="x"',
        'Basic realm="https://HOST/oauth2/token"',
        'Bearer realm="broken',
        "",
    ],
)
def test_a_challenge_that_leads_elsewhere_gets_no_token(azure: Azure, header: str) -> None:
    azure.challenge(header.replace("HOST", azure.host))
    done = azure.run()
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cloud-credential-unavailable" in done.stderr
    assert [request.path for request in azure.registry.requests] == ["/v2/"]
    assert ACCESS.encode() not in done.stderr


@pytest.mark.parametrize("answer", [Response(401, {"errors": [ACCESS]}), Response(200, {}), Response(200, [CANARY])])
def test_a_refused_exchange_is_told_and_never_quoted(azure: Azure, answer: Response) -> None:
    azure.registry.responses["/oauth2/exchange"] = answer
    done = azure.run()
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the registry" in done.stderr
    assert ACCESS.encode() not in done.stderr
    assert CANARY.encode() not in done.stderr


def test_the_token_does_not_follow_a_redirect(azure: Azure) -> None:
    azure.registry.responses["/oauth2/exchange"] = Response(307, {}, {"Location": f"https://{azure.host}/elsewhere"})
    assert b"status 307" in azure.run().stderr
    assert [request.path for request in azure.registry.requests] == ["/v2/", "/oauth2/exchange"]


def test_a_pod_that_does_not_say_who_it_is_does_not_fall_back_to_the_node(azure: Azure) -> None:
    done = azure.run(service_account_token=Secret(CANARY))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"kubernetes.azure.com/acr-client-id" in done.stderr
    assert azure.identity.requests == []
    assert CANARY.encode() not in done.stderr


def test_a_pod_signs_in_as_the_application_of_its_annotations() -> None:
    annotations = {"kubernetes.azure.com/acr-client-id": "client", "kubernetes.azure.com/acr-tenant-id": "tenant"}
    request = ImageRequest("team.azurecr.io/app", Secret(CANARY), annotations)
    identity = AzureProvider({}).identity(request)
    assert type(identity).__name__ == "ClientAssertionCredential"


def test_another_registry_is_answered_with_nothing_and_asks_nobody(azure: Azure) -> None:
    done = azure.run(image="azurecr.io.example.com/app")
    assert "auth" not in json.loads(done.stdout)
    assert azure.identity.requests == azure.registry.requests == []


@pytest.mark.parametrize(
    ("registry", "verdict"),
    [("team.azurecr.io", True), ("team.azurecr.cn", True), ("azurecr.io", False), ("teamazurecr.io", False)],
)
def test_a_token_is_sent_to_registries_of_azure_alone(registry: str, verdict: bool) -> None:
    assert AzureProvider({}).is_azure(registry) is verdict


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ConfigurationError) as caught:
        AzureProvider({}).credentials(ImageRequest("team.azurecr.io/app"))
    assert "ostiary[azure]" in str(caught.value)
