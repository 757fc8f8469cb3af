"""The registry door from end to end: an image goes in, the credentials to try come out."""

from __future__ import annotations

import json
import logging
import threading
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.model import Secret
from ostiary.registry.credentials import ImageCredential, Provenance, RegistryLogin, SourceKind
from ostiary.registry.docker_config import DockerConfig, NodeDockerConfig, PullSecret, parse_config_json
from ostiary.registry.docker_store import DockerStore
from ostiary.registry.explain import explain
from ostiary.registry.keyring import Keyring, Lookup
from ostiary.registry.kubelet.model import ProviderConfig
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, PodCoordinates
from ostiary.registry.metrics import LookupVerdict
from ostiary.wire.credential_provider import ProviderDialect
from ostiary_gateway.testing import FakeClock
from tests.support.providers import ProviderScript, providers_config, token_attributes

POD = PodCoordinates("ns", "pod-1", "pod-uid", "sa-name")
ACCOUNT = KubernetesServiceAccount("ns", "sa-name", "sa-uid")


def provider(tmp_path: Path, name: str = "provider", key: str = "test.registry.io", **fields: Any) -> ProviderScript:
    return ProviderScript(tmp_path / "bin", name).answer({key: (name, "password")}, **fields)


def keyring(*configs: ProviderConfig, tmp_path: Path, **options: Any) -> Keyring:
    return Keyring(providers_config(*configs), bin_dir=tmp_path / "bin", **options)


def names(lookup: Lookup) -> list[str]:
    return [one.username for one in lookup]


# --- providers ---


def test_a_provider_that_matches_is_asked(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    """I10, I12, I13."""
    cases = [
        ("test.registry.io", "test.registry.io/foo/bar", "test.registry.io", "Registry"),
        ("test.registry.io/foo/bar", "test.registry.io/foo/bar", "test.registry.io/foo/bar", "Registry"),
        ("test.registry.io", "test.registry.io/foo/bar", "test.registry.io", "Image"),
        ("test.registry.io", "test.registry.io/foo/bar", "test.registry.io", "Global"),
        ("*.registry.io:8080", "test.registry.io:8080/foo", "*.registry.io:8080", "Registry"),
        ("*.*.registry.io", "foo.bar.registry.io/foo/bar", "*.*.registry.io", "Image"),
        ("*.registry.io", "test.registry.io/x", "*.registry.io", "Global"),
    ]
    for pattern, image, key, key_type in cases:
        with subtests.test(pattern=pattern, image=image, key=key, key_type=key_type):
            tmp_path = tmp_path_factory.mktemp("case")
            script = provider(tmp_path, key=key, key_type=key_type)
            (found,) = keyring(script.config(pattern), tmp_path=tmp_path).lookup(image)
            assert (found.username, found.password, found.key) == ("provider", Secret("password"), key)
            assert (found.source.kind, found.source.name) == (SourceKind.PROVIDER, "provider")
            assert found.service_account is None
            assert script.requests[0]["image"] == image


@pytest.mark.parametrize("image", ["test.registry.io:5000/foo", "test.registry.io/foo"])
def test_a_provider_of_the_proposal_is_asked_whatever_the_port_if_its_pattern_has_none(
    tmp_path: Path, image: str
) -> None:
    """I17."""
    script = provider(tmp_path).print_exactly(b'{"username": "u", "password": "p"}')
    proposed = replace(script.config("*.registry.io"), dialect=ProviderDialect.PROPOSAL)
    ring = keyring(proposed, tmp_path=tmp_path)
    assert names(ring.lookup(image)) == ["u"]
    (trace,) = explain(ring, image).providers
    assert (trace.matches, trace.patterns[0].matches) == (True, True)
    assert script.requests[0] == {"image": image}


def test_a_provider_of_the_kubelet_is_not_asked_if_only_the_image_has_a_port(tmp_path: Path) -> None:
    """I17."""
    script = provider(tmp_path)
    ring = keyring(script.config("*.registry.io"), tmp_path=tmp_path)
    assert names(ring.lookup("test.registry.io:5000/foo")) == []
    (trace,) = explain(ring, "test.registry.io:5000/foo").providers
    assert (trace.matches, script.runs) == (False, 0)


def test_a_provider_that_does_not_match_is_not_run(tmp_path: Path) -> None:
    """I10."""
    script = provider(tmp_path)
    lookup = keyring(script.config("other.registry.io"), tmp_path=tmp_path).lookup("test.registry.io/foo")
    assert (lookup.found, lookup.failures, script.runs) == ((), (), 0)
    assert lookup.verdict is LookupVerdict.NONE


def test_without_providers_nothing_is_found(tmp_path: Path) -> None:
    assert keyring(tmp_path=tmp_path).lookup("test.registry.io/foo").found == ()


def test_tag_and_digest_are_not_told_and_short_names_are_completed(tmp_path: Path) -> None:
    """I11."""
    script = provider(tmp_path, key="docker.io")
    ring = keyring(script.config("docker.io"), tmp_path=tmp_path)
    assert ring.lookup("nginx:1.25").repository == "docker.io/library/nginx"
    assert ring.lookup("index.docker.io/nginx@sha256:" + "0" * 64).repository == "docker.io/library/nginx"
    assert {request["image"] for request in script.requests} == {"docker.io/library/nginx"}


def test_what_is_no_image_name_is_refused(tmp_path: Path) -> None:
    """I11."""
    with pytest.raises(ImageNameError):
        keyring(tmp_path=tmp_path).lookup("https://registry.io/x")


def test_all_providers_that_match_are_asked_and_equal_keys_stand_in_their_order(tmp_path: Path) -> None:
    """I24."""
    first, second = provider(tmp_path, "zebra"), provider(tmp_path, "ant")
    ring = keyring(first.config(), second.config(), tmp_path=tmp_path)
    assert names(ring.lookup("test.registry.io/foo")) == ["zebra", "ant"]
    assert [one.config.name for one in ring.matching_providers("test.registry.io/foo")] == ["zebra", "ant"]


def test_a_longer_key_of_a_later_provider_comes_first(tmp_path: Path) -> None:
    first, second = provider(tmp_path, "first"), provider(tmp_path, "second", key="test.registry.io/team")
    ring = keyring(first.config(), second.config(), tmp_path=tmp_path)
    assert names(ring.lookup("test.registry.io/team/app")) == ["second", "first"]
    assert names(ring.lookup("test.registry.io/other")) == ["first"]


def test_an_empty_answer_is_no_credential_and_no_failure(tmp_path: Path) -> None:
    script = provider(tmp_path).answer({})
    lookup = keyring(script.config(), tmp_path=tmp_path).lookup("test.registry.io/foo")
    assert (lookup.found, lookup.failures) == ((), ())


def test_a_provider_that_fails_takes_nothing_from_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """I25."""
    bad, good = provider(tmp_path, "bad").exit(1), provider(tmp_path, "good")
    with caplog.at_level(logging.WARNING):
        lookup = keyring(bad.config(), good.config(), tmp_path=tmp_path).lookup("test.registry.io/foo")
    assert names(lookup) == ["good"]
    (failure,) = lookup.failures
    assert (failure.provider, failure.error.code) == ("bad", "credential-provider-failed")
    assert 'credential provider "bad"' in caplog.text
    assert "password" not in caplog.text


def test_failing_is_told_apart_from_having_nothing(tmp_path: Path) -> None:
    bad = provider(tmp_path).exit(1)
    assert keyring(bad.config(), tmp_path=tmp_path).lookup("test.registry.io/foo").verdict is LookupVerdict.FAILED


def test_providers_run_side_by_side(tmp_path: Path) -> None:
    first, second = provider(tmp_path, "first"), provider(tmp_path, "second")
    ring = keyring(first.config(), second.config(), tmp_path=tmp_path)
    with first.held() as one, second.held() as other, ThreadPoolExecutor(1) as pool:
        looking = pool.submit(ring.lookup, "test.registry.io/foo")
        # If the second waited for the first, this would wait for ever.
        other.wait_for_runs()
        one.wait_for_runs()
        other.let_go()
        one.let_go()
        assert names(looking.result(timeout=60)) == ["first", "second"]


def test_fifty_lookups_without_a_cache_are_fifty_runs(tmp_path: Path) -> None:
    script = provider(tmp_path, key_type="Image")
    ring = keyring(script.config(), tmp_path=tmp_path)

    def five(thread: int) -> int:
        return sum(len(ring.lookup(f"test.registry.io/app-{thread}-{number}")) for number in range(5))

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(five, range(10))) == 50
    assert script.runs == 50


def test_the_second_lookup_is_served_from_the_cache_and_says_so(tmp_path: Path, clock: FakeClock) -> None:
    """I23."""
    script = provider(tmp_path, duration="1m")
    ring = keyring(script.config(), tmp_path=tmp_path, clock=clock)
    (first,), (second,), (third,) = (ring.lookup("test.registry.io/foo") for _ in range(3))
    assert (first.cached, second.cached, third.cached) == (False, True, True)
    clock.advance(61)
    (fourth,) = ring.lookup("test.registry.io/foo")
    assert not fourth.cached
    assert script.runs == 2


def test_fresh_and_cached_credentials_are_told_apart_in_one_lookup(tmp_path: Path) -> None:
    kept, not_kept = provider(tmp_path, "kept", duration="1h"), provider(tmp_path, "fresh", duration="0s")
    ring = keyring(kept.config(), not_kept.config(), tmp_path=tmp_path)
    ring.lookup("test.registry.io/foo")
    assert [(one.username, one.cached) for one in ring.lookup("test.registry.io/foo")] == [
        ("kept", True),
        ("fresh", False),
    ]


async def test_an_event_loop_gets_the_same(tmp_path: Path) -> None:
    script = provider(tmp_path, duration="1m")
    ring = keyring(script.config(), tmp_path=tmp_path)
    for cached in (False, True):
        (found,) = await ring.lookup_async("test.registry.io/foo")
        assert (found.username, found.cached) == ("provider", cached)


def test_trio_gets_the_same(tmp_path: Path) -> None:
    first, second = provider(tmp_path, "first"), provider(tmp_path, "second")
    ring = keyring(first.config(), second.config(), tmp_path=tmp_path)
    assert names(trio.run(ring.lookup_async, "test.registry.io/foo")) == ["first", "second"]


# --- rejected credentials ---


def test_a_rejected_credential_is_not_served_again(tmp_path: Path) -> None:
    script = provider(tmp_path, duration="1h")
    ring = keyring(script.config(), tmp_path=tmp_path)
    (old,) = ring.lookup("test.registry.io/foo")
    script.answer({"test.registry.io": ("renewed", "password")}, duration="1h")
    assert ring.report_rejected(old)
    (new,) = ring.lookup("test.registry.io/foo")
    assert (new.username, new.cached, script.runs) == ("renewed", False, 2)
    assert not ring.report_rejected(old), "a late report must not drop the newer credential"
    assert ring.lookup("test.registry.io/foo").found[0].cached


def test_a_copy_of_a_rejected_credential_counts_as_well(tmp_path: Path) -> None:
    ring = keyring(provider(tmp_path, duration="1h").config(), tmp_path=tmp_path)
    (found,) = ring.lookup("test.registry.io/foo")
    assert ring.report_rejected(replace(found, cached=True))


def test_a_rejected_credential_of_a_file_has_the_file_read_again(tmp_path: Path, clock: FakeClock) -> None:
    configs = iter([node("old"), node("new")])
    ring = keyring(tmp_path=tmp_path, docker_config=NodeDockerConfig(read=lambda: next(configs), clock=clock))
    (old,) = ring.lookup("test.registry.io/x")
    assert ring.report_rejected(old)
    assert names(ring.lookup("test.registry.io/x")) == ["new"]
    assert not ring.report_rejected(old)


# --- pull secrets and the node's file ---


def node(name: str = "default") -> DockerConfig:
    return DockerConfig({"test.registry.io": RegistryLogin(name, Secret("default-password"))}, file="/config.json")


def secret(kind: str, key: str, content: object, name: str = "pull") -> PullSecret:
    return PullSecret("ns", name, kind, {key: json.dumps(content).encode()})


PLAIN = {"test.registry.io": {"username": "user", "password": "password"}}
ENCODED = {"test.registry.io": {"auth": b64encode(b"user:password").decode()}}
CONFIG_JSON, DOCKERCFG = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"
USER_HASH = "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d"


@pytest.mark.parametrize(
    "pull_secret",
    [
        secret(CONFIG_JSON, ".dockerconfigjson", {"auths": ENCODED}),
        secret(DOCKERCFG, ".dockercfg", ENCODED),
        secret(CONFIG_JSON, ".dockerconfigjson", {"auths": PLAIN}),
        secret(DOCKERCFG, ".dockercfg", PLAIN),
    ],
)
def test_a_pull_secret_is_found(tmp_path: Path, pull_secret: PullSecret) -> None:
    (found,) = keyring(tmp_path=tmp_path).lookup("test.registry.io/x", pull_secrets=[pull_secret])
    assert (found.username, found.password, found.hash) == ("user", Secret("password"), USER_HASH)
    assert str(found.source) == "secret ns/pull"
    assert "user:password" not in repr(pull_secret)


@pytest.mark.parametrize(
    "pull_secret",
    [
        secret(CONFIG_JSON, ".dockercfg", PLAIN),
        secret(DOCKERCFG, ".dockerconfigjson", {"auths": PLAIN}),
        secret("Opaque", ".dockerconfigjson", {"auths": PLAIN}),
    ],
)
def test_a_secret_whose_type_and_key_do_not_belong_together_is_passed_over(
    tmp_path: Path, pull_secret: PullSecret
) -> None:
    assert not keyring(tmp_path=tmp_path).lookup("test.registry.io/x", pull_secrets=[pull_secret])


def test_a_broken_pull_secret_fails_the_lookup_and_is_not_quoted(tmp_path: Path) -> None:
    broken = PullSecret("ns", "pull", CONFIG_JSON, {".dockerconfigjson": b'{"auths": canary'})
    with pytest.raises(ConfigurationError) as caught:
        keyring(tmp_path=tmp_path).lookup("test.registry.io/x", pull_secrets=[broken])
    assert "secret ns/pull" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_the_nodes_file_counts_where_the_pull_secrets_do_not_match(tmp_path: Path) -> None:
    ring = keyring(tmp_path=tmp_path, docker_config=NodeDockerConfig(read=node))
    other = secret(DOCKERCFG, ".dockercfg", {"other.registry.io": PLAIN["test.registry.io"]})
    assert names(ring.lookup("test.registry.io/x")) == ["default"]
    assert names(ring.lookup("test.registry.io/x", pull_secrets=[other])) == ["default"]


def test_pull_secrets_come_first_then_the_nodes_file_then_providers(tmp_path: Path) -> None:
    script = provider(tmp_path, key="test.registry.io/x", duration="1h")
    ring = keyring(script.config(), tmp_path=tmp_path, docker_config=NodeDockerConfig(read=node))
    pull_secret = secret(DOCKERCFG, ".dockercfg", PLAIN)
    for _ in range(2):
        assert names(ring.lookup("test.registry.io/x", pull_secrets=[pull_secret])) == ["user", "default", "provider"]
        assert names(ring.lookup("test.registry.io/x")) == ["default", "provider"]


def test_several_pull_secrets_are_one_block_the_longest_key_first(tmp_path: Path) -> None:
    short = secret(DOCKERCFG, ".dockercfg", {"test.registry.io": {"username": "short"}}, "one")
    long = secret(DOCKERCFG, ".dockercfg", {"test.registry.io/x": {"username": "long"}}, "two")
    assert names(keyring(tmp_path=tmp_path).lookup("test.registry.io/x", pull_secrets=[short, long])) == [
        "long",
        "short",
    ]


def test_the_nodes_file_is_asked_at_every_lookup(tmp_path: Path) -> None:
    calls: list[int] = []

    def read() -> DockerConfig:
        calls.append(1)
        return node()

    ring = keyring(tmp_path=tmp_path, docker_config=NodeDockerConfig(read=read, lifetime=0))
    for count in (1, 2, 3):
        ring.lookup("test.registry.io/x")
        assert len(calls) == count


def test_the_nodes_file_is_read_again_when_its_time_is_over(clock: FakeClock) -> None:
    calls: list[int] = []

    def read() -> DockerConfig:
        calls.append(1)
        return node()

    config = NodeDockerConfig(read=read, lifetime=1, clock=clock)
    for count in (1, 2, 3):
        for _ in range(4):
            config.credentials()
        assert len(calls) == count
        clock.advance(1)


# --- service accounts ---


class Tokens:
    """A source of tokens. `tokens` are handed out one by one; the last one for ever."""

    def __init__(self, *tokens: str, annotations: Mapping[str, str] | None = None) -> None:
        self.tokens = list(tokens or ("token",))
        self.annotations = annotations or {}
        self.calls: list[tuple[KubernetesServiceAccount, PodCoordinates, str]] = []
        self.error: Exception | None = None
        self._lock = threading.Lock()

    def service_account(self, namespace: str, name: str) -> tuple[KubernetesServiceAccount, Mapping[str, str]]:
        return KubernetesServiceAccount(namespace, name, "sa-uid"), self.annotations

    def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
        if self.error is not None:
            raise self.error
        with self._lock:
            self.calls.append((account, pod, audience))
            return Secret(self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0])


def with_account(script: ProviderScript, **fields: Any) -> ProviderConfig:
    return script.config(token_attributes=token_attributes(**fields), default_cache_duration=timedelta(hours=1))


def test_the_pods_account_goes_to_the_provider_and_into_the_result(tmp_path: Path) -> None:
    """I33."""
    script, tokens = provider(tmp_path), Tokens("token-1")
    ring = keyring(with_account(script), tmp_path=tmp_path, tokens=tokens)
    (found,) = ring.lookup("test.registry.io/foo", pod=POD)
    assert (found.username, found.service_account) == ("provider", ACCOUNT)
    assert script.requests[0]["serviceAccountToken"] == "token-1"
    assert tokens.calls == [(ACCOUNT, POD, "audience.example.com")]


@pytest.mark.parametrize("pod", [None, PodCoordinates("ns", "pod-1", "pod-uid")])
def test_a_provider_that_requires_an_account_is_skipped_without_one(tmp_path: Path, pod: PodCoordinates | None) -> None:
    script = provider(tmp_path)
    lookup = keyring(with_account(script), tmp_path=tmp_path, tokens=Tokens()).lookup("test.registry.io/foo", pod=pod)
    assert (lookup.found, lookup.failures, script.runs) == ((), (), 0)
    assert "Service account name is empty" in lookup.skipped[0].reason


def test_a_provider_that_does_not_require_an_account_is_run_without_a_token(tmp_path: Path) -> None:
    script = provider(tmp_path)
    ring = keyring(with_account(script, require=False), tmp_path=tmp_path, tokens=Tokens())
    for _ in range(2):
        (found,) = ring.lookup("test.registry.io/foo")
        assert found.service_account is None
    assert "serviceAccountToken" not in script.requests[0]
    assert script.runs == 1


def test_a_missing_required_annotation_skips_the_provider_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, tokens = provider(tmp_path), Tokens()
    config = with_account(script, required_annotation_keys=("domain.io/identity-id",))
    with caplog.at_level(logging.INFO):
        lookup = keyring(config, tmp_path=tmp_path, tokens=tokens).lookup("test.registry.io/foo", pod=POD)
    assert lookup.skipped[0].reason == "required annotation domain.io/identity-id not found"
    assert (script.runs, tokens.calls, lookup.failures) == (0, [], ())
    assert caplog.text == ""


def test_only_the_annotations_that_were_asked_for_are_told(tmp_path: Path) -> None:
    script = provider(tmp_path)
    tokens = Tokens(annotations={"r/one": "1", "o/two": "2", "x/three": "3"})
    keys = {"required_annotation_keys": ("r/one",), "optional_annotation_keys": ("o/two", "o/absent")}
    keyring(with_account(script, **keys), tmp_path=tmp_path, tokens=tokens).lookup("test.registry.io/foo", pod=POD)
    assert script.requests[0]["serviceAccountAnnotations"] == {"r/one": "1", "o/two": "2"}


def test_without_a_token_the_provider_is_not_run_and_the_others_are(tmp_path: Path) -> None:
    script, other, tokens = provider(tmp_path), provider(tmp_path, "other"), Tokens()
    tokens.error = RuntimeError("failed to get token")
    ring = keyring(with_account(script), other.config(), tmp_path=tmp_path, tokens=tokens)
    lookup = ring.lookup("test.registry.io/foo", pod=POD)
    assert names(lookup) == ["other"]
    assert script.runs == 0
    (failure,) = lookup.failures
    assert "failed to get service account token: failed to get token" in str(failure)
    assert failure.error.code == "service-account-token-unavailable"


def test_without_a_source_of_tokens_it_is_said_what_is_missing(tmp_path: Path) -> None:
    ring = keyring(with_account(provider(tmp_path)), tmp_path=tmp_path)
    (failure,) = ring.lookup("test.registry.io/foo", pod=POD).failures
    assert "there is no source of service account tokens" in str(failure)


def test_the_token_as_the_password_is_a_failure(tmp_path: Path) -> None:
    script = provider(tmp_path).answer({"test.registry.io": ("u", "canary-token")})
    ring = keyring(with_account(script), tmp_path=tmp_path, tokens=Tokens("canary-token"))
    lookup = ring.lookup("test.registry.io/foo", pod=POD)
    assert lookup.found == ()
    assert "returned the service account token as the password" in str(lookup.failures[0])
    assert "canary" not in repr(lookup)


@pytest.mark.parametrize(("cache_type", "runs"), [("ServiceAccount", 1), ("Token", 2)])
def test_the_token_is_fetched_every_time_and_may_be_part_of_the_cache_key(
    tmp_path: Path, cache_type: str, runs: int
) -> None:
    script, tokens = provider(tmp_path), Tokens("token-1", "token-2")
    ring = keyring(with_account(script, cache_type=cache_type), tmp_path=tmp_path, tokens=tokens)
    for _ in range(2):
        assert names(ring.lookup("test.registry.io/foo", pod=POD)) == ["provider"]
    assert len(tokens.calls) == 2
    assert script.runs == runs


def test_accounts_do_not_share_a_cache_and_pods_of_one_account_do(tmp_path: Path) -> None:
    script = provider(tmp_path)
    ring = keyring(with_account(script), tmp_path=tmp_path, tokens=Tokens())
    ring.lookup("test.registry.io/foo", pod=POD)
    ring.lookup("test.registry.io/foo", pod=replace(POD, name="pod-2", uid="other"))
    assert script.runs == 1
    ring.lookup("test.registry.io/foo", pod=replace(POD, service_account="other"))
    assert script.runs == 2


def test_a_provider_without_token_attributes_is_told_nothing_of_the_pod(tmp_path: Path) -> None:
    script = provider(tmp_path)
    (found,) = keyring(script.config(), tmp_path=tmp_path, tokens=Tokens()).lookup("test.registry.io/foo", pod=POD)
    assert found.service_account is None
    assert "serviceAccountToken" not in script.requests[0]


async def test_fetching_a_token_does_not_block_an_event_loop(tmp_path: Path) -> None:
    main = threading.current_thread()
    where: list[threading.Thread] = []

    class Noting(Tokens):
        def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
            where.append(threading.current_thread())
            return super().token(account, pod=pod, audience=audience)

    ring = keyring(with_account(provider(tmp_path)), tmp_path=tmp_path, tokens=Noting())
    assert names(await ring.lookup_async("test.registry.io/foo", pod=POD)) == ["provider"]
    assert main not in where


# --- many patterns, another configuration ---


def test_among_thousands_of_patterns_only_the_matching_provider_runs(tmp_path: Path) -> None:
    script = provider(tmp_path)
    crowd = [ProviderConfig(f"absent-{number}", (f"r{number}.example.com",)) for number in range(5000)]
    lookup = keyring(*crowd, script.config(), tmp_path=tmp_path).lookup("test.registry.io/foo")
    assert (names(lookup), lookup.failures) == (["provider"], ())


def test_a_replaced_configuration_keeps_the_caches_of_what_stayed(tmp_path: Path) -> None:
    stays, goes = provider(tmp_path, "stays", duration="1h"), provider(tmp_path, "goes", duration="1h")
    changes = provider(tmp_path, "changes", duration="1h")
    ring = keyring(stays.config(), goes.config(), changes.config(), tmp_path=tmp_path)
    ring.lookup("test.registry.io/foo")
    ring.replace(providers_config(changes.config(args=("--new",)), stays.config(), config_hash="sha256:new"))
    found = ring.lookup("test.registry.io/foo").found
    assert [(one.username, one.cached) for one in found] == [("changes", False), ("stays", True)]
    assert (stays.runs, goes.runs, changes.runs) == (1, 1, 2)
    assert ring.config.hash == "sha256:new"


# --- beyond the kubelet: the logins of docker and podman ---


def store(tmp_path: Path, content: dict[str, Any]) -> DockerStore:
    file = tmp_path / "auth.json"
    file.write_text(json.dumps(content))
    return DockerStore(file)


LOGIN = {"auths": {"test.registry.io": {"auth": b64encode(b"me:mine").decode()}}}


IMAGE = "test.registry.io/app"


async def test_logins_of_docker_and_podman_come_last_if_they_are_asked_for(tmp_path: Path) -> None:
    config = provider(tmp_path).config("test.registry.io")
    ring = keyring(config, tmp_path=tmp_path, docker_store=store(tmp_path, LOGIN))
    for lookup in (ring.lookup(IMAGE), await ring.lookup_async(IMAGE)):
        assert names(lookup) == ["provider", "me"]
        assert lookup.found[-1].source.kind is SourceKind.FILE
    assert names(keyring(config, tmp_path=tmp_path).lookup(IMAGE)) == ["provider"]


def test_a_broken_auth_file_is_a_failure_beside_what_was_found(tmp_path: Path) -> None:
    config = provider(tmp_path).config("test.registry.io")
    lookup = keyring(config, tmp_path=tmp_path, docker_store=DockerStore(tmp_path / "none")).lookup(IMAGE)
    assert names(lookup) == ["provider"]
    assert [failure.error.code for failure in lookup.failures] == ["config-unreadable"]


# --- as a docker configuration ---


def credential(username: str = "robot", password: str = "open-sesame", **tokens: str) -> ImageCredential:
    given = {name: Secret(text) for name, text in tokens.items()}
    return ImageCredential(username, Secret(password), "*.example.com", Provenance(SourceKind.PROVIDER, "p"), **given)  # type: ignore[arg-type]


def test_a_lookup_is_written_as_a_docker_configuration_that_docker_reads_again() -> None:
    lookup = Lookup("a.example.com/team/app", (credential(), credential("second", "s")))
    config = lookup.docker_config()
    assert list(config["auths"]) == ["a.example.com"], "docker knows no patterns, and no paths"
    (login,) = parse_config_json(json.dumps(config).encode()).logins.values()
    assert (login.username, login.password.reveal()) == ("robot", "open-sesame"), "the first is tried first"
    assert "Secret" not in json.dumps(config)


def test_images_of_docker_hub_are_under_the_address_that_docker_writes() -> None:
    lookup = Lookup("docker.io/library/nginx", (credential(),))
    assert list(lookup.docker_config()["auths"]) == ["https://index.docker.io/v1/"]


def test_tokens_of_a_login_are_in_the_docker_configuration() -> None:
    lookup = Lookup("a.example.com/app", (credential("", "", identity_token="id", registry_token="reg"),))
    assert lookup.docker_config() == {"auths": {"a.example.com": {"identitytoken": "id", "registrytoken": "reg"}}}


def test_a_colon_in_a_username_has_no_place_in_a_docker_configuration() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Lookup("a.example.com/app", (credential("a:b"),)).docker_config()
    assert "colon" in str(refused.value.cause)


def test_without_a_credential_the_docker_configuration_is_empty() -> None:
    assert Lookup("a.example.com/app").docker_config() == {"auths": {}}
