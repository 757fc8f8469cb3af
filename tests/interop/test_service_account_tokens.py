"""The registry door's tokens of service accounts, from the real API server: TokenRequest, its bounds and refusals."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ostiary.cli import cached_workload_token
from ostiary.cli.login.platforms import sources as kubernetes
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.platforms.sources import find_proof
from ostiary.client.api_requests import ApiRequests
from ostiary.client.connection import connect
from ostiary.errors import OstiaryError
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.model import ProvidersConfig, TokenAttributes
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, PodCoordinates
from ostiary.registry.kubelet.token_request import ApiServerTokens
from tests.interop.support import people
from tests.interop.support.cluster import RealCluster
from tests.interop.support.people import binding, cluster_role, rule, service_account
from tests.interop.support.process import wait_until
from tests.support.providers import ProviderScript

AUDIENCE = "registry.example"
POD = PodCoordinates("team", "puller", "", service_account="image-puller")


@pytest.fixture(scope="module", autouse=True)
def objects(cluster: RealCluster) -> Iterator[None]:
    account = people.account("image-puller", "team")
    account["metadata"]["annotations"] = {"example.com/tenant": "blue"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "puller", "namespace": "team"},
        "spec": {"serviceAccountName": "image-puller", "containers": [{"name": "main", "image": "example.test/app"}]},
    }
    asker = people.account("token-asker", "team")
    cluster.apply(
        account,
        asker,
        cluster_role("token-asker", rule("serviceaccounts", "get"), rule("serviceaccounts/token", "create")),
        binding("token-asker", "token-asker", service_account("token-asker", "team")),
    )
    cluster.apply(pod)
    yield
    cluster.admin.output("delete", "pod", "puller", "-n", "team", "--force", "--grace-period=0")


@pytest.fixture
def tokens(cluster: RealCluster) -> ApiServerTokens:
    token = cluster.admin.output("create", "token", "token-asker", "-n", "team").strip()
    return ApiServerTokens(ApiRequests(connect(cluster.kubeconfig({"token": token}))))


@pytest.fixture
def account(tokens: ApiServerTokens) -> KubernetesServiceAccount:
    account, annotations = tokens.service_account("team", "image-puller")
    assert annotations["example.com/tenant"] == "blue"
    return account


def claims(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    decoded: dict[str, Any] = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


def refusal(call: Any) -> OstiaryError:
    with pytest.raises(OstiaryError) as raised:
        call()
    return raised.value


def test_a_token_has_our_audience_and_is_bound_to_the_pod_and_the_account(
    tokens: ApiServerTokens, account: KubernetesServiceAccount
) -> None:
    said = claims(tokens.token(account, pod=POD, audience=AUDIENCE).reveal())
    assert said["aud"] == [AUDIENCE]
    assert said["sub"] == "system:serviceaccount:team:image-puller"
    assert said["kubernetes.io"]["pod"]["name"] == "puller"
    assert said["kubernetes.io"]["serviceaccount"]["uid"] == account.uid


def test_a_provider_is_given_the_token_and_the_annotations(tokens: ApiServerTokens, tmp_path: Path) -> None:
    script = ProviderScript(tmp_path).answer({"*.registry.io": ("robot", "word")})
    attributes = TokenAttributes(AUDIENCE, "Token", True, ("example.com/tenant",))
    config = ProvidersConfig((script.config(token_attributes=attributes),))
    lookup = Keyring(config, bin_dir=tmp_path, tokens=tokens).lookup("a.registry.io/app", pod=POD)
    assert [credential.username for credential in lookup] == ["robot"]
    (request,) = script.requests
    assert claims(request["serviceAccountToken"])["aud"] == [AUDIENCE]
    assert request["serviceAccountAnnotations"] == {"example.com/tenant": "blue"}


def test_the_servers_refusals_are_told_in_our_words(
    cluster: RealCluster, tokens: ApiServerTokens, account: KubernetesServiceAccount
) -> None:
    assert "no such service account" in refusal(lambda: tokens.service_account("team", "nobody")).summary
    gone = PodCoordinates("team", "gone", "", service_account="image-puller")
    assert 'pods "gone" not found' in refusal(lambda: tokens.token(account, pod=gone, audience=AUDIENCE)).summary
    default, _ = tokens.service_account("team", "default")
    other = refusal(lambda: tokens.token(default, pod=POD, audience=AUDIENCE))
    assert "different serviceaccount name" in other.summary
    replaced = KubernetesServiceAccount("team", "image-puller", "00000000-0000-0000-0000-000000000000")
    assert "was replaced" in refusal(lambda: tokens.token(replaced, pod=POD, audience=AUDIENCE)).summary
    nobody = cluster.admin.output("create", "token", "default", "-n", "team").strip()
    without_rights = ApiServerTokens(ApiRequests(connect(cluster.kubeconfig({"token": nobody}))))
    denied = refusal(lambda: without_rights.token(account, pod=POD, audience=AUDIENCE))
    assert "permission denied" in denied.summary
    assert '"create" on serviceaccounts/token' in (denied.hint or "")
    unknown = ApiServerTokens(ApiRequests(connect(cluster.kubeconfig({"token": "nothing"}))))
    assert "rejects the credential" in refusal(lambda: unknown.service_account("team", "default")).summary


def test_a_pod_without_a_projected_volume_requests_a_token_for_itself(
    cluster: RealCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--from kubernetes`` as the pod's own account, which needs a role for that and says so without it."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", "puller")
    (folder / "token").write_text(cluster.admin.output("create", "token", "image-puller", "-n", "team", *bound).strip())
    (folder / "namespace").write_text("team")
    (folder / "ca.crt").write_bytes((cluster.folder / "ca.pem").read_bytes())
    for module in (cached_workload_token, kubernetes):
        monkeypatch.setattr(module, "PROJECTED_TOKEN", str(tmp_path / "none"))
        monkeypatch.setattr(module, "POD_TOKEN", str(folder / "token"))
    address = urlsplit(cluster.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    choice = PlatformChoice("https://gateway.example", "kubernetes")
    denied = refusal(lambda: find_proof(choice))
    assert 'cannot create resource "serviceaccounts/token"' in (denied.cause or "")
    assert "projected volume" in (denied.hint or "")

    cluster.apply(binding("own-token", "token-asker", service_account("image-puller", "team")))
    wait_until(lambda: has_proof(choice), what="the role of the pod's account")
    proof = find_proof(choice)
    assert proof.claims["aud"] == ["https://gateway.example"]
    assert proof.subject == "system:serviceaccount:team:image-puller"
    said: Any = proof.claims["kubernetes.io"]
    assert said["pod"]["name"] == "puller"


def has_proof(choice: PlatformChoice) -> bool:
    try:
        find_proof(choice)
    except OstiaryError:
        return False
    return True
