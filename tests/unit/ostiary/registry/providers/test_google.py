"""Google's registries, with google-auth against a local metadata server and a local token exchange."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ostiary.core.duration import parse_duration
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.providers.google import GoogleProvider, is_google
from ostiary.sdk import ImageRequest
from ostiary.wire.credential_provider import Request, encode_request
from tests.support.http_server import Response
from tests.unit.ostiary_gateway.providers.common.cloud import CloudServer

CANARY = "c4n4ry-c4n4ry-c4n4ry"
TOKEN = "t0ken-of-the-p0d"
HOST = "europe-docker.pkg.dev"
ACCOUNT = "/computeMetadata/v1/instance/service-accounts/default/"
ANNOTATED = {"iam.gke.io/enable-wi-image-pull": "true"}


@pytest.fixture
def cloud() -> Iterator[CloudServer]:
    with CloudServer().running() as server:
        flavor = {"Metadata-Flavor": "Google"}
        token = {"access_token": CANARY, "expires_in": 1800, "token_type": "Bearer"}
        server.responses = {
            "/": Response(200, {}, flavor),
            "/computeMetadata/v1/project/project-id": Response(200, "project", flavor),
            "/computeMetadata/v1/universe/universe-domain": Response(200, "googleapis.com", flavor),
            ACCOUNT: Response(200, {"email": "node@example.com", "scopes": [], "aliases": ["default"]}, flavor),
            f"{ACCOUNT}token": Response(200, token, flavor),
            "/computeMetadata/v1/instance/service-accounts/node@example.com/token": Response(200, token, flavor),
            "/v1/token": Response(200, {**token, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}),
        }
        yield server


def run(cloud: CloudServer, env: dict[str, str] | None = None, **request: Any) -> subprocess.CompletedProcess[bytes]:
    address = f"127.0.0.1:{cloud.port}"
    hosts = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "GCE_METADATA_ROOT": address}
    return subprocess.run(
        [sys.executable, "-m", "ostiary.registry.providers.google"],
        input=encode_request(Request(**{"image": f"{HOST}/project/team/app", **request})),
        env={**os.environ, **hosts, "OSTIARY_GOOGLE_STS_URL": f"http://{address}/v1/token", **(env or {})},
        capture_output=True,
        timeout=100,
    )


def test_the_node_presents_the_token_of_its_metadata_server(cloud: CloudServer) -> None:
    """I30."""
    done = run(cloud)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["auth"] == {HOST: {"username": "_token", "password": CANARY}}
    assert answer["cacheKeyType"] == "Registry"
    # A minute less than the token holds, and never more.
    assert timedelta(0) < parse_duration(answer["cacheDuration"]) <= timedelta(minutes=29)
    assert all(request.headers.get("metadata-flavor", "Google") == "Google" for request in cloud.requests)


def test_an_annotated_pod_exchanges_its_own_token_and_never_uses_the_nodes(cloud: CloudServer) -> None:
    audience = "identitynamespace:project.svc.id.goog:cluster"
    env = {"OSTIARY_GOOGLE_STS_AUDIENCE": audience}
    done = run(cloud, env, service_account_token=Secret(TOKEN), service_account_annotations=ANNOTATED)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cacheDuration"] == "29m0s"
    (request,) = cloud.requests
    assert (request.path, request.form["subject_token"], request.form["audience"]) == ("/v1/token", TOKEN, audience)
    assert request.form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"


@pytest.mark.parametrize("env", [{}, {"OSTIARY_GOOGLE_STS_AUDIENCE": "a"}])
def test_a_pod_that_cannot_be_signed_in_does_not_fall_back_to_the_node(cloud: CloudServer, env: dict[str, str]) -> None:
    cloud.responses["/v1/token"] = Response(400, {"error": "invalid_grant", "error_description": f"bad token {TOKEN}"})
    done = run(cloud, env, service_account_token=Secret(TOKEN), service_account_annotations=ANNOTATED)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cloud-credential-unavailable" in done.stderr
    assert TOKEN.encode() not in done.stderr
    assert not [request for request in cloud.requests if request.path.startswith("/computeMetadata")]


def test_a_refusing_metadata_server_is_told(cloud: CloudServer) -> None:
    for path in list(cloud.responses):
        if path.endswith("/token"):
            cloud.responses[path] = Response(404, {"error": "not here"}, {"Metadata-Flavor": "Google"})
    done = run(cloud)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cloud-credential-unavailable" in done.stderr


def test_another_registry_is_answered_with_nothing_and_asks_nobody(cloud: CloudServer) -> None:
    assert "auth" not in json.loads(run(cloud, image="pkg.dev.example.com/app").stdout)
    assert cloud.requests == []


def test_a_token_is_given_to_registries_of_google_alone(subtests: pytest.Subtests) -> None:
    cases = [
        ("gcr.io", True),
        ("eu.gcr.io", True),
        ("us-central1-docker.pkg.dev", True),
        ("container.cloud.google.com", True),
        ("evilgcr.io", False),
        ("a.b.gcr.io", False),
        ("pkg.dev", False),
        ("gcr.io:5000", False),
        ("gcr.io.example.com", False),
    ]
    for registry, verdict in cases:
        with subtests.test(registry=registry, verdict=verdict):
            assert is_google(registry) is verdict


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(ConfigurationError) as caught:
        GoogleProvider({}).credentials(ImageRequest("gcr.io/app"))
    assert "ostiary[google]" in str(caught.value)
