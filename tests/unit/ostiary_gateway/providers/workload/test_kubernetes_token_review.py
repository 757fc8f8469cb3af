"""An API server that is asked about each token knows when a pod is gone; when it cannot be asked, that is no "no"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret
from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.http_server import Response
from tests.support.issuer import Issuer
from tests.support.workloads import GATEWAY, SERVICE_ACCOUNT, platform_token
from tests.unit.ostiary_gateway.providers.workload.conftest import Make

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
CANARY = "token-of-the-gateway-canary"


@pytest.fixture
def by_review(make: Make, cluster: Cluster, tmp_path: Path) -> WorkloadIdentity:
    (tmp_path / "reader").write_text(cluster.add_token("system:serviceaccount:gateway:ostiary"))
    return make(f"platform: kubernetes\nserver: {cluster.url}\nca: ca.pem\ntokenFile: reader\ntokenReview: true")


async def test_a_token_of_a_pod_that_is_gone_is_refused(by_review: WorkloadIdentity, cluster: Cluster) -> None:
    cluster.add_pod("default", "web")
    token = Secret(cluster.request_token("default", "deployer", audiences=[GATEWAY], pod="web"))
    assert await by_review.verify_token(token)
    cluster.remove("pods", "default", "web")
    with pytest.raises(LoginRefused):
        await by_review.verify_token(token)


async def test_the_probe_asks_about_a_token_that_is_none(by_review: WorkloadIdentity, cluster: Cluster) -> None:
    assert await by_review.probe() == f"the token reviews of localhost:{cluster.port}"
    cluster.trust.tokens.clear()
    with pytest.raises(ProviderError):
        await by_review.probe()


async def test_a_bad_token_is_refused_before_anybody_is_asked(by_review: WorkloadIdentity, cluster: Cluster) -> None:
    for token in ("x", cluster.request_token("default", "deployer")):
        with pytest.raises(LoginRefused):
            await by_review.verify_token(Secret(token))
    assert cluster.to(PATH) == []


USER = {"username": SERVICE_ACCOUNT["sub"]}
ANSWERS: dict[str, tuple[Response, type[Exception]]] = {
    "no": (Response(201, {"status": {"authenticated": False}}), LoginRefused),
    "no, in other words": (Response(201, {"status": {}}), LoginRefused),
    "yes, as a text": (Response(201, {"status": {"authenticated": "true", "user": USER}}), LoginRefused),
    "audiences ignored": (Response(201, {"status": {"authenticated": True, "user": USER}}), LoginRefused),
    "another audience": (
        Response(201, {"status": {"authenticated": True, "user": USER, "audiences": ["api"]}}),
        LoginRefused,
    ),
    "another user": (
        Response(201, {"status": {"authenticated": True, "user": {"username": "x"}, "audiences": [GATEWAY]}}),
        LoginRefused,
    ),
    "no status": (Response(201, {}), ProviderError),
    "not JSON": (Response(200, b"<html>"), ProviderError),
    "401": (Response(401, {"kind": "Status"}), ProviderError),
    "403": (Response(403, {"kind": "Status", "status": {"authenticated": True}}), ProviderError),
    "500": (Response(500), ProviderError),
    "a redirect": (Response(302, headers={"Location": "https://evil.example"}), ProviderError),
}


@pytest.mark.parametrize(("reply", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_only_a_clear_yes_for_us_lets_somebody_in(
    make: Make, issuer: Issuer, clock: FakeClock, tmp_path: Path, reply: Response, expected: type[Exception]
) -> None:
    issuer.failures[PATH] = reply
    (tmp_path / "reader").write_text(CANARY)
    provider = make(f"platform: kubernetes\nserver: {issuer.url}\nca: ca.pem\ntokenFile: reader\ntokenReview: true")
    token = platform_token(clock, issuer.key, SERVICE_ACCOUNT, issuer="https://kubernetes.default.svc.cluster.local")
    with pytest.raises(expected) as caught:
        await provider.verify_token(Secret(token))
    text: Any = f"{caught.value}{caught.value!r}"
    assert token not in text
    assert CANARY not in text
    assert issuer.requests[0].bearer == CANARY
