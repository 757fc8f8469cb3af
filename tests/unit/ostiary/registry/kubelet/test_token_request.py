"""Tokens from an API server: which requests are sent, what is kept for how long, and what each refusal says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from ostiary.client.api_requests import ApiReply, ApiRequests
from ostiary.client.connection import connect
from ostiary.errors import CredentialError, OstiaryError, ProviderError
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, PodCoordinates
from ostiary.registry.kubelet.token_request import ApiServerTokens
from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster

POD = PodCoordinates("shop", "web", "", service_account="builder")
NO_POD = PodCoordinates("shop", "", "", service_account="builder")
AUDIENCE = "registry.example"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(trustme.CA()) as cluster:
        cluster.add_namespace("shop")
        pod = {"metadata": {"name": "web"}, "spec": {"serviceAccountName": "builder", "containers": []}}
        cluster.add("pods", "shop", pod)
        yield cluster


@pytest.fixture(autouse=True)
def account(cluster: Cluster) -> Iterator[KubernetesServiceAccount]:
    cluster.requests.clear()
    annotations = {"example.com/tenant": "blue"}
    made = cluster.add("serviceaccounts", "shop", {"metadata": {"name": "builder", "annotations": annotations}})
    yield KubernetesServiceAccount("shop", "builder", made["metadata"]["uid"])
    cluster.refuse = None
    cluster.remove("serviceaccounts", "shop", "builder")


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> ApiRequests:
    return ApiRequests(connect(cluster.kubeconfig(tmp_path / "node", {"token": cluster.add_token("node")})))


@pytest.fixture
def tokens(server: ApiRequests, clock: FakeClock) -> ApiServerTokens:
    return ApiServerTokens(server, clock=clock)


def failure(call: object) -> OstiaryError:
    assert callable(call)
    with pytest.raises(OstiaryError) as raised:
        call()
    return raised.value


class Scripted:
    """An API server that answers every request for a token with a new one that lives for *seconds*."""

    def __init__(self, clock: FakeClock, *, seconds: int = 3600) -> None:
        self.clock, self.seconds, self.posts = clock, seconds, 0
        self.refusal: ApiReply | OstiaryError | None = None
        self.release = threading.Event()
        self.release.set()

    def send(self, method: str, path: str, body: bytes | None = None) -> ApiReply:
        assert self.release.wait(20)
        if isinstance(self.refusal, OstiaryError):
            raise self.refusal
        if self.refusal is not None:
            return self.refusal
        self.posts += 1
        expires = self.clock.now().timestamp() + self.seconds
        stamp = datetime.fromtimestamp(expires, UTC).isoformat()
        spec = f'{{"audiences": ["{AUDIENCE}"], "expirationSeconds": {self.seconds}}}'
        status = f'{{"token": "token-{self.posts}", "expirationTimestamp": "{stamp}"}}'
        return ApiReply(201, f'{{"kind": "TokenRequest", "spec": {spec}, "status": {status}}}'.encode())


# --- what is asked ---


def test_the_account_comes_with_its_uid_and_annotations(
    tokens: ApiServerTokens, account: KubernetesServiceAccount
) -> None:
    assert tokens.service_account("shop", "builder") == (account, {"example.com/tenant": "blue"})


def test_an_account_is_never_kept_so_that_an_annotation_can_be_taken_away(
    tokens: ApiServerTokens, cluster: Cluster
) -> None:
    tokens.service_account("shop", "builder")
    cluster.update("serviceaccounts", "shop", {"metadata": {"name": "builder"}})
    assert tokens.service_account("shop", "builder")[1] == {}


def test_a_token_is_bound_to_the_account_the_pod_and_the_audience(
    tokens: ApiServerTokens, account: KubernetesServiceAccount, cluster: Cluster
) -> None:
    """I33."""
    assert tokens.token(account, pod=POD, audience=AUDIENCE)
    (record,) = cluster.to("/api/v1/namespaces/shop/serviceaccounts/builder/token")
    assert record.method == "POST"
    assert b'"audiences": ["registry.example"]' in record.body
    assert b'"name": "web"' in record.body
    assert account.uid.encode() in record.body


def test_without_a_pod_the_token_is_bound_to_the_account_alone(
    tokens: ApiServerTokens, account: KubernetesServiceAccount, cluster: Cluster
) -> None:
    assert tokens.token(account, pod=NO_POD, audience=AUDIENCE)
    (record,) = cluster.to("/api/v1/namespaces/shop/serviceaccounts/builder/token")
    assert b"boundObjectRef" not in record.body


# --- what is kept ---


def test_a_token_is_kept_until_a_fifth_of_its_life_is_left(clock: FakeClock, account: KubernetesServiceAccount) -> None:
    api = Scripted(clock)
    source = ApiServerTokens(api, clock=clock)

    def ask() -> str:
        return source.token(account, pod=POD, audience=AUDIENCE).reveal()

    assert [ask(), ask()] == ["token-1", "token-1"]
    clock.advance(minutes=47)
    assert ask() == "token-1"
    clock.advance(minutes=1)
    assert [ask(), ask()] == ["token-2", "token-2"]


def test_a_token_that_lives_for_weeks_is_kept_for_a_day(clock: FakeClock, account: KubernetesServiceAccount) -> None:
    source = ApiServerTokens(Scripted(clock, seconds=30 * 86400), clock=clock)
    assert source.token(account, pod=POD, audience=AUDIENCE).reveal() == "token-1"
    clock.advance(hours=23)
    assert source.token(account, pod=POD, audience=AUDIENCE).reveal() == "token-1"
    clock.advance(hours=1)
    assert source.token(account, pod=POD, audience=AUDIENCE).reveal() == "token-2"


def test_an_old_token_serves_while_no_newer_one_can_be_had_and_no_longer(
    clock: FakeClock, account: KubernetesServiceAccount
) -> None:
    api = Scripted(clock)
    source = ApiServerTokens(api, clock=clock)
    source.token(account, pod=POD, audience=AUDIENCE)
    api.refusal = ProviderError("the API server is unreachable", code="api-server-unreachable")
    clock.advance(minutes=59)
    assert source.token(account, pod=POD, audience=AUDIENCE).reveal() == "token-1"
    clock.advance(minutes=1)
    with pytest.raises(ProviderError):
        source.token(account, pod=POD, audience=AUDIENCE)


def test_two_pods_two_accounts_and_two_audiences_never_share_a_token(
    tokens: ApiServerTokens, account: KubernetesServiceAccount, cluster: Cluster
) -> None:
    given = {
        tokens.token(account, pod=POD, audience=AUDIENCE).reveal(),
        tokens.token(account, pod=NO_POD, audience=AUDIENCE).reveal(),
        tokens.token(account, pod=POD, audience="elsewhere").reveal(),
    }
    cluster.remove("serviceaccounts", "shop", "builder")
    cluster.add("serviceaccounts", "shop", {"metadata": {"name": "builder"}})
    again, _ = tokens.service_account("shop", "builder")
    given.add(tokens.token(again, pod=POD, audience=AUDIENCE).reveal())
    assert len(given) == 4


def test_many_who_want_the_same_token_send_one_request(clock: FakeClock, account: KubernetesServiceAccount) -> None:
    api = Scripted(clock)
    api.release.clear()
    source = ApiServerTokens(api, clock=clock)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(source.token, account, pod=POD, audience=AUDIENCE) for _ in range(8)]
        api.release.set()
        assert {future.result(20).reveal() for future in waiting} == {"token-1"}
    assert api.posts == 1


def test_the_number_of_tokens_is_bounded_and_the_oldest_make_room(
    clock: FakeClock, account: KubernetesServiceAccount
) -> None:
    api = Scripted(clock)
    source = ApiServerTokens(api, clock=clock, limit=2)
    for name in ("a", "b", "c", "c", "b", "a"):
        source.token(account, pod=PodCoordinates("shop", name, ""), audience=AUDIENCE)
    assert api.posts == 4


# --- refusals ---


def test_an_account_that_does_not_exist_is_told_by_name(tokens: ApiServerTokens) -> None:
    error = failure(lambda: tokens.service_account("shop", "nobody"))
    assert 'serviceaccounts "nobody" not found' in error.summary
    assert "kubectl get serviceaccounts" in (error.hint or "")


def test_an_account_that_was_replaced_is_no_longer_given_tokens(tokens: ApiServerTokens) -> None:
    error = failure(
        lambda: tokens.token(KubernetesServiceAccount("shop", "builder", "another"), pod=NO_POD, audience=AUDIENCE)
    )
    assert "was replaced" in error.summary
    assert "does not match the UID" in error.summary


def test_a_pod_of_another_account_is_refused(tokens: ApiServerTokens, cluster: Cluster) -> None:
    cluster.add("serviceaccounts", "shop", {"metadata": {"name": "other"}})
    other, _ = tokens.service_account("shop", "other")
    error = failure(lambda: tokens.token(other, pod=POD, audience=AUDIENCE))
    assert "different serviceaccount name" in error.summary


def test_a_pod_that_does_not_exist_is_told(tokens: ApiServerTokens, account: KubernetesServiceAccount) -> None:
    gone = PodCoordinates("shop", "gone", "", service_account="builder")
    error = failure(lambda: tokens.token(account, pod=gone, audience=AUDIENCE))
    assert 'pods "gone" not found' in error.summary


@pytest.mark.parametrize(("subresource", "needed"), [("", '"get" on serviceaccounts'), ("token", '"create" on')])
def test_who_may_not_ask_is_told_which_permission_is_missing(
    tokens: ApiServerTokens, account: KubernetesServiceAccount, cluster: Cluster, subresource: str, needed: str
) -> None:
    cluster.refuse = lambda user, asked: "no" if asked.subresource == subresource else None
    calls = {
        "": lambda: tokens.service_account("shop", "builder"),
        "token": lambda: tokens.token(account, pod=POD, audience=AUDIENCE),
    }
    error = failure(calls[subresource])
    assert isinstance(error, CredentialError)
    assert error.summary.startswith("permission denied: ")
    assert needed in (error.hint or "")


def test_a_node_that_may_not_use_the_audience_is_told_the_verb(
    tokens: ApiServerTokens, account: KubernetesServiceAccount, cluster: Cluster
) -> None:
    cluster.refuse = lambda user, asked: 'audience "registry.example" not found in pod spec' if asked.name else None
    error = failure(lambda: tokens.token(account, pod=POD, audience=AUDIENCE))
    assert "not found in pod spec" in error.summary
    assert "request-serviceaccounts-token-audience" in (error.hint or "")
    assert AUDIENCE in (error.hint or "")


def test_a_token_for_another_audience_is_not_handed_on(clock: FakeClock, account: KubernetesServiceAccount) -> None:
    source = ApiServerTokens(Scripted(clock), clock=clock)
    error = failure(lambda: source.token(account, pod=POD, audience="elsewhere"))
    assert "for another audience" in error.summary
    assert "token-1" not in str(error)


def test_a_token_that_has_expired_already_is_not_handed_on(clock: FakeClock, account: KubernetesServiceAccount) -> None:
    api = Scripted(clock)
    source = ApiServerTokens(api, clock=clock)
    late = api.send("POST", "")
    clock.advance(hours=2)
    api.refusal = late
    assert "expired already" in failure(lambda: source.token(account, pod=POD, audience=AUDIENCE)).summary


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "rejects the credential"), (429, "could not answer"), (503, "could not answer"), (422, "refused")],
)
def test_no_differs_from_could_not_ask(
    clock: FakeClock, account: KubernetesServiceAccount, status: int, says: str
) -> None:
    api = Scripted(clock)
    api.refusal = ApiReply(status, b"not JSON")
    error = failure(lambda: ApiServerTokens(api, clock=clock).token(account, pod=POD, audience=AUDIENCE))
    assert says in error.summary


def test_an_api_server_that_is_away_is_an_outage(
    cluster: Cluster, account: KubernetesServiceAccount, tmp_path: Path, clock: FakeClock
) -> None:
    kubeconfig = cluster.kubeconfig(tmp_path / "away", {"token": "x"})
    kubeconfig.write_text(kubeconfig.read_text().replace(str(cluster.port), "1"))
    source = ApiServerTokens(ApiRequests(connect(kubeconfig)), clock=clock)
    error = failure(lambda: source.service_account("shop", "builder"))
    assert (type(error), error.code) == (ProviderError, "api-server-unreachable")
