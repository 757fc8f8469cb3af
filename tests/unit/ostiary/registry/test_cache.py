"""What is kept, under which key and for how long; and how often a provider is really run."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import CredentialError, PluginFailed
from ostiary.model import Secret
from ostiary.registry.cache import AnswerCache, CachedProvider, ProviderAnswer, Target, cache_key, service_account_key
from ostiary.registry.credentials import Credentials, Provenance, RegistryLogin, SourceKind
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.provider import CredentialProvider
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, Presented
from ostiary.registry.metrics import NoRegistryMetrics
from ostiary_gateway.testing import FakeClock
from tests.support.providers import ProviderScript, providers_config, token_attributes

ACCOUNT = KubernetesServiceAccount("namespace", "service-account", "service-account-uid")
PLAIN = b"\x00\tnamespace\x00\x0fservice-account\x00\x13service-account-uid"
ONE = b"\x00\x16domain.io/annotation-1\x00\x06value1"
TWO = b"\x00\x16domain.io/annotation-2\x00\x06value2"
HASH = "sha256:f7a41acb9633520e657fe58dedcd9e6a784e2d97e4c646492b45c61e28595c70"


# --- the exact keys ---


@pytest.mark.parametrize(
    ("annotations", "token_hash", "expected"),
    [
        ({}, "", PLAIN + b"\x00\x00\x00\x00"),
        ({"domain.io/annotation-1": "value1"}, "", PLAIN + b"\x00\x00\x00\x01" + ONE),
        (
            {"domain.io/annotation-1": "value1", "domain.io/annotation-2": "value2"},
            "",
            PLAIN + b"\x00\x00\x00\x02" + ONE + TWO,
        ),
        (
            {"domain.io/annotation-2": "value2", "domain.io/annotation-1": "value1"},
            "",
            PLAIN + b"\x00\x00\x00\x02" + ONE + TWO,
        ),
        (
            {"domain.io/annotation-1": "value1", "domain.io/annotation-2": "value2"},
            HASH,
            PLAIN + b"\x00\x00\x00\x02" + ONE + TWO + b"\x00\x05token\x00G" + HASH.encode(),
        ),
    ],
)
def test_the_key_of_a_service_account_is_the_kubelets(
    annotations: dict[str, str], token_hash: str, expected: bytes
) -> None:
    assert service_account_key(ACCOUNT, annotations, token_hash=token_hash) == expected


def test_keys_of_service_accounts_are_equal_only_if_all_their_parts_are() -> None:
    texts = ("a", "aa")
    everything = list(itertools.product(texts, texts, texts, texts))

    def key(parts: tuple[str, ...]) -> bytes:
        return service_account_key(KubernetesServiceAccount(*parts[:3]), {"k": parts[3]})

    for one, other in itertools.product(everything, everything):
        assert (key(one) == key(other)) is (one == other)


def test_the_whole_key_is_the_kubelets() -> None:
    account_key = PLAIN + b"\x00\x00\x00\x02" + ONE + TWO
    assert cache_key("registry.io/image") == b"\x00\x11registry.io/image\x00\x00"
    assert cache_key("registry.io/image", account_key) == b"\x00\x11registry.io/image\x00u" + account_key


def test_an_annotation_that_no_key_can_hold_is_an_error() -> None:
    with pytest.raises(CredentialError):
        service_account_key(ACCOUNT, {"k": "x" * 70_000})


def test_a_target_is_looked_for_by_image_then_registry_then_for_all() -> None:
    target = Target("registry.io:5000/team/image")
    assert target.keys == (
        cache_key("registry.io:5000/team/image"),
        cache_key("registry.io:5000"),
        cache_key("<global>"),
    )


# --- what is kept ---


def some_credentials(name: str = "u") -> Credentials:
    return Credentials([("r.io", RegistryLogin(name))], Provenance(SourceKind.PROVIDER, "p"))


@pytest.fixture(params=[b"", service_account_key(ACCOUNT, {})], ids=["plain", "service account"])
def account_key(request: pytest.FixtureRequest) -> bytes:
    key: bytes = request.param
    return key


@pytest.fixture
def cache(clock: FakeClock) -> AnswerCache:
    return AnswerCache(clock=clock)


def test_what_has_not_expired_is_served(cache: AnswerCache, clock: FakeClock, account_key: bytes) -> None:
    kept, key = some_credentials(), cache_key("image1", account_key)
    cache.put(key, kept, seconds=60)
    clock.advance(1)
    assert cache.get([key]) is kept
    assert cache.keys() == [key]


def test_what_has_expired_is_dropped_when_it_is_asked_for(
    cache: AnswerCache, clock: FakeClock, account_key: bytes
) -> None:
    first, second = cache_key("image1", account_key), cache_key("image2", account_key)
    cache.put(first, some_credentials(), seconds=600)
    cache.put(second, some_credentials(), seconds=60)
    clock.advance(minutes=2)
    assert cache.get([second]) is None
    assert cache.keys() == [first]


def test_a_purge_drops_what_nobody_asks_for_again(cache: AnswerCache, clock: FakeClock, account_key: bytes) -> None:
    assert cache.get([cache_key("before")]) is None
    cache.put(cache_key("image3", account_key), some_credentials(), seconds=120)
    clock.advance(minutes=15)
    assert cache.get([cache_key("other", account_key)]) is None
    assert len(cache.keys()) == 1, "fifteen minutes have not passed yet"
    clock.advance(minutes=3)
    assert cache.get([cache_key("other", account_key)]) is None
    assert cache.keys() == []


def test_an_answer_holds_to_the_very_end_of_its_time(cache: AnswerCache, clock: FakeClock) -> None:
    cache.put(b"k", some_credentials(), seconds=60)
    clock.advance(60)
    assert cache.get([b"k"]) is not None
    clock.advance(0.001)
    assert cache.get([b"k"]) is None


def test_the_narrowest_key_wins(cache: AnswerCache) -> None:
    narrow, wide = some_credentials("narrow"), some_credentials("wide")
    cache.put(b"wide", wide, seconds=1)
    cache.put(b"narrow", narrow, seconds=1)
    assert cache.get([b"narrow", b"wide"]) is narrow


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_no_time_is_no_caching(cache: AnswerCache, seconds: float) -> None:
    cache.put(b"k", some_credentials(), seconds=seconds)
    assert cache.keys() == []


def test_the_oldest_make_room(clock: FakeClock) -> None:
    cache = AnswerCache(clock=clock, limit=2)
    for key in (b"1", b"2", b"1", b"3"):
        cache.put(key, some_credentials(), seconds=60)
    assert cache.keys() == [b"1", b"3"]


def test_forgetting_an_answer_leaves_a_newer_one_alone(cache: AnswerCache) -> None:
    old, new = some_credentials(), some_credentials()
    cache.put(b"k", old, seconds=60)
    cache.put(b"k", new, seconds=60)
    assert not cache.forget(old)
    assert cache.get([b"k"]) is new
    assert cache.forget(new)
    assert cache.keys() == []


# --- a provider behind it ---


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    return ProviderScript(tmp_path / "bin").answer({"*.registry.io": ("user", "password")}, duration="1m")


def cached_provider(script: ProviderScript, clock: FakeClock, **fields: Any) -> CachedProvider:
    provider = CredentialProvider(script.config(**fields), str(script.path), clock=clock)
    return CachedProvider(provider, clock=clock)


Flow = Generator[Future[None], None, ProviderAnswer]


def finish(flow: Flow) -> ProviderAnswer:
    """Drive a flow to its end, as a thread would."""
    while True:
        try:
            next(flow).result(timeout=60)
        except StopIteration as end:
            answer: ProviderAnswer = end.value
            return answer


def ask(
    provider: CachedProvider, image: str = "test.registry.io/foo", presented: Presented | None = None
) -> ProviderAnswer:
    return finish(provider.ask(Target(image), presented))


@pytest.mark.parametrize("cache_type", ["", "ServiceAccount", "Token"])
@pytest.mark.parametrize(
    ("key_type", "base"),
    [("Image", "test.registry.io/foo"), ("Registry", "test.registry.io"), ("Global", "<global>")],
)
def test_an_answer_is_kept_under_the_one_key_it_asks_for(
    script: ProviderScript, clock: FakeClock, key_type: str, base: str, cache_type: str
) -> None:
    script.answer({"*.registry.io": ("user", "password")}, key_type=key_type, duration="1m")
    attributes = token_attributes(cache_type=cache_type) if cache_type else None
    presented = Presented(ACCOUNT, Secret("token"), {"domain.io/annotation-1": "value1"}) if cache_type else None
    provider = cached_provider(script, clock, token_attributes=attributes)
    assert not ask(provider, presented=presented).cached

    account_key = b""
    if presented:
        token_hash = presented.token_hash if cache_type == "Token" else ""
        account_key = service_account_key(ACCOUNT, presented.annotations, token_hash=token_hash)
    assert provider.cache.keys() == [cache_key(base, account_key)]
    script.path.unlink()
    assert ask(provider, presented=presented).cached


def test_a_duration_of_zero_keeps_nothing(script: ProviderScript, clock: FakeClock) -> None:
    script.answer({"*.registry.io": ("user", "password")}, key_type="Global", duration="0")
    provider = cached_provider(script, clock, default_cache_duration=timedelta(hours=1))
    assert ask(provider).credentials.keys == (b"*.registry.io",)
    assert provider.cache.keys() == []


@pytest.mark.parametrize(("default", "kept"), [(timedelta(0), 0), (timedelta(hours=1), 1)])
def test_without_a_duration_the_default_counts(
    script: ProviderScript, clock: FakeClock, default: timedelta, kept: int
) -> None:
    script.answer({"*.registry.io": ("user", "password")})
    provider = cached_provider(script, clock, default_cache_duration=default)
    ask(provider)
    assert len(provider.cache.keys()) == kept


def test_having_nothing_is_remembered_too(script: ProviderScript, clock: FakeClock) -> None:
    script.answer({}, duration="1m")
    provider = cached_provider(script, clock)
    assert [ask(provider).cached, ask(provider).cached] == [False, True]
    assert script.runs == 1


def test_a_failure_is_not_remembered(script: ProviderScript, clock: FakeClock) -> None:
    script.exit(1)
    provider = cached_provider(script, clock)
    with pytest.raises(PluginFailed):
        ask(provider)
    script.exit(0)
    assert not ask(provider).cached
    assert script.runs == 2


# --- one run for many ---


@pytest.mark.parametrize("with_account", [False, True])
def test_five_questions_about_one_image_are_one_run(
    script: ProviderScript, clock: FakeClock, with_account: bool
) -> None:
    """I23."""
    script.answer({"*.registry.io": ("user", "password")}, key_type="Image", duration="0s")
    attributes = token_attributes() if with_account else None
    presented = Presented(ACCOUNT, Secret("")) if with_account else None
    provider = cached_provider(script, clock, token_attributes=attributes)
    with script.held() as hold:
        flows = [provider.ask(Target("test.registry.io/foo"), presented) for _ in range(5)]
        assert len({id(next(flow)) for flow in flows}) == 1
        hold.wait_for_runs(1)
        hold.let_go(1)
        answers = [finish(flow) for flow in flows]
    assert script.runs == 1
    assert len({id(answer.credentials) for answer in answers}) == 1
    assert not answers[0].cached


def test_five_tokens_are_five_runs(script: ProviderScript, clock: FakeClock) -> None:
    provider = cached_provider(script, clock, token_attributes=token_attributes())
    with script.held() as hold:
        flows = [
            provider.ask(Target("test.registry.io/foo"), Presented(ACCOUNT, Secret(f"token-{number}")))
            for number in range(5)
        ]
        landings = {id(next(flow)) for flow in flows}
        hold.wait_for_runs(5)
        hold.let_go(5)
        for flow in flows:
            finish(flow)
    assert len(landings) == 5
    assert {request["serviceAccountToken"] for request in script.requests} == {f"token-{n}" for n in range(5)}


def test_the_first_run_of_a_registry_serves_all_of_its_images_if_its_answer_does(
    script: ProviderScript, clock: FakeClock
) -> None:
    script.answer({"*.registry.io": ("user", "password")}, duration="0s")
    provider = cached_provider(script, clock)
    with script.held() as hold:
        flows = [provider.ask(Target(f"test.registry.io/app{number}")) for number in range(200)]
        assert len({id(next(flow)) for flow in flows}) == 1
        hold.let_go(1)
        for flow in flows:
            finish(flow)
    assert script.runs == 1


def test_two_registries_do_not_wait_for_each_other(script: ProviderScript, clock: FakeClock) -> None:
    provider = cached_provider(script, clock)
    with script.held() as hold:
        flows = [provider.ask(Target(f"{name}.registry.io/app")) for name in "ab"]
        assert len({id(next(flow)) for flow in flows}) == 2
        hold.wait_for_runs(2)
        hold.let_go(2)
        for flow in flows:
            finish(flow)
    assert script.runs == 2


def test_an_answer_for_one_image_alone_sends_the_others_on_their_own(script: ProviderScript, clock: FakeClock) -> None:
    script.answer({"*.registry.io": ("user", "password")}, key_type="Image", duration="1m")
    provider = cached_provider(script, clock)
    with script.held() as hold:
        flows = [provider.ask(Target(f"test.registry.io/app{number}")) for number in range(3)]
        assert len({id(next(flow)) for flow in flows}) == 1
        hold.let_go(3)
        for flow in flows:
            finish(flow)
    assert sorted(request["image"] for request in script.requests) == [f"test.registry.io/app{n}" for n in range(3)]


def test_once_an_answer_holds_for_everything_all_registries_share_a_run(
    script: ProviderScript, clock: FakeClock
) -> None:
    script.answer({"*.registry.io": ("user", "password")}, key_type="Global", duration="1s")
    provider = cached_provider(script, clock)
    ask(provider)
    clock.advance(2)
    with script.held() as hold:
        flows = [provider.ask(Target(f"{name}.registry.io/app")) for name in "abcd"]
        assert len({id(next(flow)) for flow in flows}) == 1
        hold.let_go(1)
        for flow in flows:
            finish(flow)
    assert script.runs == 2


def test_a_first_run_that_fails_for_one_image_does_not_fail_another(script: ProviderScript, clock: FakeClock) -> None:
    provider = cached_provider(script, clock)
    with script.held() as hold:
        script.before('read _ < release\ncase "$image" in */bad) exit 7;; esac\n')
        bad, good = (provider.ask(Target(f"test.registry.io/{name}")) for name in ("bad", "good"))
        assert next(bad) is next(good)
        hold.let_go(2)
        with pytest.raises(PluginFailed):
            finish(bad)
        assert finish(good).credentials.keys == (b"*.registry.io",)
    assert script.runs == 2


def test_everybody_who_waited_gets_an_error_of_its_own(script: ProviderScript, clock: FakeClock) -> None:
    script.exit(1)
    provider = cached_provider(script, clock)
    with script.held() as hold:
        flows = [provider.ask(Target("test.registry.io/foo")) for _ in range(2)]
        for flow in flows:
            next(flow)
        hold.let_go(1)
        errors = []
        for flow in flows:
            with pytest.raises(PluginFailed) as caught:
                finish(flow)
            errors.append(caught.value)
    assert script.runs == 1
    assert errors[0] is not errors[1]


class Meddling(NoRegistryMetrics):
    """Does something at the very moment between a miss and what follows from it."""

    def __init__(self) -> None:
        self.meddle: Callable[[], object] | None = None

    def cache(self, provider: str, *, hit: bool) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()


def test_a_run_that_ends_while_another_lookup_decides_is_not_repeated(script: ProviderScript, clock: FakeClock) -> None:
    metrics = Meddling()
    config = script.config(token_attributes=token_attributes())
    provider = CachedProvider(CredentialProvider(config, str(script.path)), clock=clock, metrics=metrics)
    presented = Presented(ACCOUNT, Secret("token"))
    metrics.meddle = lambda: ask(provider, presented=presented)
    assert ask(provider, presented=presented).cached
    assert script.runs == 1


def test_two_hundred_threads_run_the_provider_once(script: ProviderScript) -> None:
    """I23."""
    keyring = Keyring(providers_config(script.config()), bin_dir=script.bin_dir)
    together = threading.Barrier(200)

    def look_up(number: int) -> int:
        together.wait()
        return len(keyring.lookup(f"test.registry.io/app{number}"))

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(look_up, range(200))) == [1] * 200
    assert script.runs == 1


async def test_two_hundred_tasks_run_the_provider_once(script: ProviderScript) -> None:
    keyring = Keyring(providers_config(script.config()), bin_dir=script.bin_dir)
    found = await asyncio.gather(*(keyring.lookup_async(f"test.registry.io/app{n}") for n in range(200)))
    assert {len(lookup) for lookup in found} == {1}
    assert script.runs == 1


def test_registries_and_images_in_parallel_get_each_their_own(script: ProviderScript) -> None:
    registries = [f"{name}.registry.io" for name in ("one", "two", "three", "four")]
    for registry in registries:
        script.answer({registry: (registry, "password")}, registry=registry, duration="1m")
    keyring = Keyring(providers_config(script.config()), bin_dir=script.bin_dir)
    images = [f"{registry}/image{number}" for registry in registries for number in range(5)]
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(keyring.lookup, images))
    assert [[one.username for one in lookup] for lookup in found] == [[image.split("/")[0]] for image in images]
    assert script.runs == 4


def test_a_fork_does_not_wait_for_a_run_of_its_parent(script: ProviderScript, clock: FakeClock) -> None:
    provider = cached_provider(script, clock)
    with script.held() as hold:
        flow = provider.ask(Target("test.registry.io/foo"))
        landing = next(flow)
        hold.wait_for_runs(1)
        child = os.fork()
        if child == 0:
            again = next(provider.ask(Target("test.registry.io/foo")))
            os._exit(0 if again is not landing else 1)
        assert os.waitpid(child, 0)[1] == 0
        hold.let_go(2)
        finish(flow)
