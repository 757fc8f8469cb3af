"""The real kubectl asks the gateway's self reviews: it sends protobuf, and gets what it prefers for an answer."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary.wire import status
from ostiary_gateway.api.self_reviews import SelfReviews
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.authorization import NonResourceRule, ResourceRule, Rules
from ostiary_gateway.proxy.reviews import ReviewAnswer, ReviewRequest, is_self_review
from ostiary_gateway.wire.request_info import request_info
from tests.support.http_server import HttpServer, Request, Response
from tests.support.kubectl import find_kubectl
from tests.support.plugins import write_kubeconfig

pytestmark = pytest.mark.needs("kubectl")

ANN = UserInfo("ann", "u1", ("dev", "ops"), (("team", ("x", "y")),))


class Policy:
    """Ann may get pods in the namespace dev, and metrics."""

    def decide(self, attributes: Attributes) -> Decision:
        request = attributes.request
        pods = (request.verb, request.resource, request.namespace) == ("get", "pods", "dev")
        metrics = (request.verb, request.path, request.is_resource) == ("get", "/metrics", False)
        return Decision(Verdict.ALLOW if pods or metrics else Verdict.NO_OPINION, "canary-reason")

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return Rules((ResourceRule(("get",), ("",), ("pods",)),), (NonResourceRule(("get",), ("/metrics",)),))


REVIEWS = SelfReviews(Authorizer([Link("policy", Policy())]))


def gateway(request: Request) -> Response:
    info = request_info(RequestLine(request.method, request.path))
    answer = ReviewAnswer(404, "application/json", status.no_route().body)
    if is_self_review(info):
        headers = request.headers
        review = ReviewRequest(request.body, headers.get("Content-Type", ""), headers.get("Accept", ""))
        found = REVIEWS.answer(info, ANN, review)
        assert isinstance(found, ReviewAnswer)
        answer = found
    return Response(answer.code, answer.body, {"Content-Type": answer.content_type})


@pytest.fixture
def kubeconfig(ca: trustme.CA, tmp_path: Path) -> Iterator[Path]:
    cluster = {"certificate-authority-data": b64encode(ca.cert_pem.bytes()).decode()}
    with HttpServer(gateway, tls=ca).running() as server:
        user = {"token": "t"}
        yield write_kubeconfig(tmp_path / "config", server=server.url, user=user, cluster=cluster, namespace="dev")


def kubectl(kubeconfig: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(find_kubectl()), "--kubeconfig", str(kubeconfig), "--cache-dir", str(kubeconfig.parent / "cache")]
    return subprocess.run([*command, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


def test_kubectl_auth_can_i_tells_our_policy(kubeconfig: Path) -> None:
    assert kubectl(kubeconfig, "auth", "can-i", "get", "pods").stdout == "yes\n"
    assert kubectl(kubeconfig, "auth", "can-i", "get", "/metrics").stdout == "yes\n"
    for asked in (["delete", "pods"], ["get", "pods", "-n", "other"], ["get", "/healthz"]):
        refused = kubectl(kubeconfig, "auth", "can-i", *asked)
        assert (refused.returncode, refused.stdout) == (1, "no\n")


def test_kubectl_auth_can_i_list_shows_our_rules(kubeconfig: Path) -> None:
    shown = kubectl(kubeconfig, "auth", "can-i", "--list")
    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert sorted(rows) == [["[/metrics]", "[]", "[get]"], ["pods", "[]", "[]", "[get]"]]


def test_kubectl_auth_whoami_shows_who_the_token_says(kubeconfig: Path) -> None:
    """S40."""
    shown = kubectl(kubeconfig, "auth", "whoami")
    assert shown.returncode == 0, shown.stderr
    rows = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in shown.stdout.splitlines()[1:]}
    assert rows["Username"] == "ann"
    assert rows["UID"] == "u1"
    assert rows["Groups"] == "[dev ops system:authenticated]"
    assert rows["Extra: team"] == "[x y]"
