"""Amazon's registry, with botocore against a local server that speaks the protocol of ECR and STS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ostiary.core.duration import parse_duration
from ostiary.errors import ConfigurationError, CredentialError
from ostiary.model import Secret
from ostiary.registry.providers import ecr
from ostiary.registry.providers.ecr import EcrProvider, EcrRegistry, parse_host
from ostiary.sdk import ImageRequest
from ostiary.wire.credential_provider import Request, encode_request
from ostiary_gateway.testing import FakeClock

moto_server = pytest.importorskip("moto.server", reason="needs moto, the local server of Amazon's APIs")

CANARY = "c4n4ry-c4n4ry-c4n4ry"
HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
ROLE = "arn:aws:iam::123456789012:role/pull"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def environ(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ECR_ROLE_ARN", raising=False)
    return {**os.environ, **settings}


def run(environ: dict[str, str], **request: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ostiary.registry.providers.ecr"],
        input=encode_request(Request(**{"image": f"{HOST}/team/app", **request})),
        env=environ,
        capture_output=True,
        timeout=100,
    )


def test_the_node_gets_the_login_of_the_images_registry(environ: dict[str, str]) -> None:
    """I30."""
    done = run(environ)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["cacheKeyType"] == "Registry"
    assert list(answer["auth"]) == [HOST]
    assert answer["auth"][HOST]["username"] == "AWS"
    assert answer["auth"][HOST]["password"]
    assert parse_duration(answer["cacheDuration"]) >= timedelta(0)


def test_a_pod_takes_on_the_role_of_its_annotation(environ: dict[str, str]) -> None:
    annotations = {"eks.amazonaws.com/ecr-role-arn": ROLE}
    without_keys = {name: value for name, value in environ.items() if "ACCESS_KEY" not in name}
    token = Secret(f"header.{CANARY}.signature")
    done = run(without_keys, service_account_token=token, service_account_annotations=annotations)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["auth"][HOST]["username"] == "AWS"


def test_a_pod_without_a_role_is_not_served_by_the_nodes_own(environ: dict[str, str]) -> None:
    done = run(environ, service_account_token=Secret(CANARY))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"eks.amazonaws.com/ecr-role-arn" in done.stderr
    assert CANARY.encode() not in done.stderr


def test_a_cloud_that_cannot_be_asked_is_told_without_secrets(environ: dict[str, str]) -> None:
    # Nothing listens on port 1.
    done = run({**environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"cloud-credential-unavailable" in done.stderr
    assert CANARY.encode() not in done.stderr


def test_another_registry_is_answered_with_nothing_and_asks_nobody(environ: dict[str, str]) -> None:
    done = run({**environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, image="quay.io/team/app")
    assert done.returncode == 0, done.stderr
    assert "auth" not in json.loads(done.stdout)


def test_a_host_says_whose_registry_it_is(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, EcrRegistry | None]] = [
        (HOST, EcrRegistry("123456789012", "eu-west-1")),
        (f"{HOST}:443", EcrRegistry("123456789012", "eu-west-1")),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", EcrRegistry("123456789012", "cn-north-1")),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", EcrRegistry("123456789012", "us-gov-west-1", True)),
        ("123456789012.dkr-ecr.us-west-2.on.aws", EcrRegistry("123456789012", "us-west-2", dual_stack=True)),
        ("123456789012.dkr.ecr.eusc-de-east-1.amazonaws.eu", EcrRegistry("123456789012", "eusc-de-east-1")),
        ("123456789012.dkr.ecr.us-iso-east-1.c2s.ic.gov", EcrRegistry("123456789012", "us-iso-east-1")),
        ("public.ecr.aws", EcrRegistry("", "us-east-1")),
        ("ecr-public.aws.com", EcrRegistry("", "us-east-1")),
        ("12345.dkr.ecr.eu-west-1.amazonaws.com", None),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com.example.com", None),
        ("x123456789012.dkr.ecr.eu-west-1.amazonaws.com", None),
        ("docker.io", None),
    ]
    for host, registry in cases:
        with subtests.test(host=host, registry=registry):
            assert parse_host(host) == registry


# --- what others can build on ---


class FakeSession:
    """A session of somebody's own: what botocore would answer, and what it was asked for."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.asked: list[tuple[str, str]] = []

    def create_client(self, service: str, *, region_name: str, config: object) -> FakeSession:
        self.asked.append((service, region_name))
        return self

    def get_authorization_token(self, **_: object) -> Any:
        return {"authorizationData": self.data}


class OwnEcr(EcrProvider):
    def __init__(self, session: FakeSession, clock: FakeClock) -> None:
        super().__init__({}, clock=clock)
        self._own = session

    def session(self, registry: EcrRegistry, request: ImageRequest) -> Any:
        return self._own


def test_public_images_are_asked_for_in_the_one_region_and_kept_for_half_of_the_tokens_life(clock: FakeClock) -> None:
    expires_at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    session = FakeSession({"authorizationToken": "QVdTOnB3", "expiresAt": expires_at})
    found = OwnEcr(session, clock).credentials(ImageRequest("public.ecr.aws/team/app"))
    assert session.asked == [("ecr-public", "us-east-1")]
    assert found is not None
    assert found.auth is not None
    assert (found.auth.username, found.auth.password.reveal(), found.cache) == ("AWS", "pw", timedelta(hours=6))


def test_a_token_without_an_end_is_not_kept(clock: FakeClock) -> None:
    found = OwnEcr(FakeSession([{"authorizationToken": "QVdTOnB3"}]), clock).credentials(ImageRequest(f"{HOST}/app"))
    assert found is not None
    assert found.cache == timedelta(0)


@pytest.mark.parametrize("token", [None, "", "!!", "QVdT"])
def test_an_answer_without_a_login_is_refused(clock: FakeClock, token: str | None) -> None:
    with pytest.raises(CredentialError):
        OwnEcr(FakeSession([{"authorizationToken": token}]), clock).credentials(ImageRequest(f"{HOST}/app"))


def test_a_missing_library_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigurationError) as caught:
        EcrProvider({}).credentials(ImageRequest(f"{HOST}/app"))
    assert caught.value.code == "library-missing"
    assert "ostiary[ecr]" in str(caught.value)
    assert ecr.main.__doc__
