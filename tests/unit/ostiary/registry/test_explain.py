"""An explanation tells what a lookup does, step by step, and holds no secret."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.errors import ImageNameError
from ostiary.model import Secret
from ostiary.registry.docker_config import DockerConfig, NodeDockerConfig, PullSecret, parse_config_json
from ostiary.registry.explain import ImageExplanation, ProviderTrace, explain
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.model import ProviderConfig
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, PodCoordinates
from ostiary_gateway.testing import FakeClock
from tests.support.providers import ProviderScript, providers_config, token_attributes

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "a.registry.io/team/app:1.0"
POD = PodCoordinates("team", "app-0", "pod-uid", "builder")


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    return ProviderScript(tmp_path).answer({"*.registry.io": ("robot", CANARY)}, duration="10m")


def keyring(script: ProviderScript, *configs: ProviderConfig, clock: FakeClock | None = None) -> Keyring:
    return Keyring(providers_config(*(configs or (script.config(),))), bin_dir=script.bin_dir, clock=clock)


def only(told: ImageExplanation) -> ProviderTrace:
    (trace,) = told.providers
    return trace


def secret(auths: Mapping[str, tuple[str, str]], **fields: str) -> PullSecret:
    entries = {key: {"auth": b64encode(":".join(pair).encode()).decode()} for key, pair in auths.items()}
    data = json.dumps({"auths": entries}).encode()
    return PullSecret("team", "pull", fields.get("type", "kubernetes.io/dockerconfigjson"), {".dockerconfigjson": data})


def test_a_lookup_is_told_from_the_name_to_the_order(script: ProviderScript, clock: FakeClock) -> None:
    told = explain(keyring(script, clock=clock), IMAGE, clock=clock)
    assert (told.image.given, told.image.repository, told.image.tag) == (IMAGE, "a.registry.io/team/app", "1.0")
    trace = only(told)
    assert (trace.outcome, trace.patterns[0].matches, trace.keys[0].matches) == ("ran", True, True)
    assert trace.seconds is not None
    (candidate,) = told.candidates
    assert (candidate.position, candidate.username, candidate.key) == (1, "robot", "*.registry.io")
    assert candidate.source == "provider provider"
    assert told.conclusion == "1 credential is tried, in this order"
    assert CANARY not in repr(told)


def test_the_second_time_the_cache_answers_and_says_how_long_it_still_will(
    script: ProviderScript, clock: FakeClock
) -> None:
    ring = keyring(script, clock=clock)
    explain(ring, IMAGE, clock=clock)
    clock.advance(minutes=4)
    trace = only(explain(ring, IMAGE, clock=clock, run=False))
    assert (trace.outcome, trace.seconds, script.runs) == ("cached", None, 1)
    assert [(one.scope, one.key, one.seconds_left) for one in trace.cache] == [
        ("Image", "a.registry.io/team/app", None),
        ("Registry", "a.registry.io", 360.0),
        ("Global", "<global>", None),
    ]
    clock.advance(minutes=7)
    assert only(explain(ring, IMAGE, clock=clock, run=False)).cache[1].seconds_left is None


def test_without_running_it_is_told_what_would_run(script: ProviderScript) -> None:
    told = explain(keyring(script), IMAGE, run=False)
    assert (only(told).outcome, told.complete, script.runs) == ("would-run", False, 0)
    assert "not run" in told.conclusion


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("*.registry.io:5000", "ports-differ"),
        ("registry.io", "label-count-differs"),
        ("*.registry.com", "label-differs"),
        ("*.registry.io/other", "path-not-prefix"),
        ("*.registry.io/*", "star-in-path"),
        ("a.registry.io:*", "pattern-unparsable"),
        ("https://a.registry.io", "label-count-differs"),
    ],
)
def test_each_pattern_is_told_with_the_first_reason_why_not(script: ProviderScript, pattern: str, reason: str) -> None:
    told = explain(keyring(script, script.config(pattern)), IMAGE)
    verdict = only(told).patterns[0]
    assert (verdict.matches, verdict.reason, only(told).outcome) == (False, reason, "no-match")
    assert verdict.message
    assert script.runs == 0
    assert "no provider matches" in told.conclusion


@pytest.mark.parametrize("pattern", ["https://u:c4n4ry@x.io", "u:c4n4ry@x.io", "u:c4n4ry c@x.io", "u:c4n4ry/b@x.io"])
def test_a_password_in_a_pattern_is_not_told(script: ProviderScript, pattern: str) -> None:
    verdict = only(explain(keyring(script, script.config(pattern)), IMAGE)).patterns[0]
    assert "c4n4ry" not in repr(verdict)
    assert "x.io" in verdict.pattern


def test_an_answer_whose_keys_do_not_match_is_told_key_by_key(script: ProviderScript) -> None:
    script.answer({"b.registry.io": ("robot", CANARY), "a.registry.io:443": ("robot", CANARY)})
    told = explain(keyring(script), IMAGE)
    assert [(one.pattern, one.reason) for one in only(told).keys] == [
        ("b.registry.io", "label-differs"),
        ("a.registry.io:443", "ports-differ"),
    ]
    assert told.candidates == ()
    assert "has a key for this image" in told.conclusion


def test_an_empty_answer_is_no_failure(script: ProviderScript) -> None:
    script.answer({})
    trace = only(explain(keyring(script), IMAGE))
    assert (trace.outcome, trace.detail) == ("ran", "it was run, and it has no credential")


def test_a_failure_is_told_with_cause_hint_and_code(script: ProviderScript) -> None:
    script.exit(7)
    told = explain(keyring(script), IMAGE)
    trace = only(told)
    assert (trace.outcome, trace.code) == ("failed", "credential-provider-failed")
    assert "exit code 7" in trace.detail
    assert trace.hint
    assert "provider failed" in told.conclusion


def test_what_is_told_is_the_order_in_which_the_keyring_has_them(tmp_path: Path, clock: FakeClock) -> None:
    first = ProviderScript(tmp_path, "first").answer({"*.registry.io": ("one", CANARY)}, duration="1h")
    second = ProviderScript(tmp_path, "second").answer({"a.registry.io/team": ("two", CANARY)}, duration="1h")
    node = NodeDockerConfig(read=lambda: parse_config_json(b'{"auths":{"a.registry.io":{"auth":"bjpw"}}}', file="f"))
    secrets = [secret({"a.registry.io": ("s", CANARY)})]
    ring = Keyring(
        providers_config(first.config(), second.config("a.registry.io")), bin_dir=tmp_path, docker_config=node
    )
    told = explain(ring, IMAGE, pull_secrets=secrets, docker_config=node)
    found = ring.lookup(IMAGE, pull_secrets=secrets)
    assert [one.username for one in told.candidates] == ["s", "n", "two", "one"] == [one.username for one in found]
    assert [source.source for source in told.sources] == ["secret team/pull", "file f"]
    assert (first.runs, second.runs) == (1, 1)


def test_docker_hubs_old_key_is_told_to_count_for_the_hub(script: ProviderScript) -> None:
    text = b'{"auths":{"https://index.docker.io/v1/":{"auth":"aHVi OnB3"}}}'.replace(b" ", b"")
    node = NodeDockerConfig(read=lambda: parse_config_json(text, file="f"))
    told = explain(keyring(script), "nginx", docker_config=node)
    (source,) = told.sources
    assert [(one.pattern, one.matches) for one in source.keys] == [("index.docker.io", True)]
    assert [one.username for one in told.candidates] == ["hub"]


def test_secrets_that_hold_nothing_usable_are_told(script: ProviderScript) -> None:
    broken = PullSecret("team", "pull", "kubernetes.io/dockerconfigjson", {".dockerconfigjson": b"{" + CANARY.encode()})
    told = explain(keyring(script), IMAGE, pull_secrets=[broken, secret({}, type="Opaque")])
    assert "gives up" in told.sources[0].error
    assert "skipped" in told.sources[1].error
    assert CANARY not in repr(told)


def test_a_node_without_a_docker_configuration_adds_no_source(script: ProviderScript) -> None:
    assert explain(keyring(script), IMAGE, docker_config=NodeDockerConfig(read=DockerConfig)).sources == ()


def test_what_is_no_image_name_is_refused(script: ProviderScript) -> None:
    with pytest.raises(ImageNameError):
        explain(keyring(script), "http://root")


# --- three cases from the field ---


class Tokens:
    """A source of tokens that says no, or gives one."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal

    def service_account(self, namespace: str, name: str) -> tuple[KubernetesServiceAccount, Mapping[str, str]]:
        return KubernetesServiceAccount(namespace, name, "uid"), {}

    def token(self, account: KubernetesServiceAccount, *, pod: PodCoordinates, audience: str) -> Secret:
        if self.refusal:
            raise PermissionError(self.refusal)
        return Secret(CANARY)


def test_three_masked_causes_are_named_one_after_the_other(script: ProviderScript) -> None:
    """A path glob; then the role that the node lacks; then the wrong cacheKeyType in the answer."""
    image = "harbor.example.com/team/app"
    script.answer({"harbor.example.com": ("robot", "pw")}, key_type="ServiceAccount")

    def tell(pattern: str, tokens: Tokens) -> ProviderTrace:
        config = script.config(pattern, token_attributes=token_attributes())
        return only(explain(keyring(script, config), image, pod=POD, tokens=tokens))

    first = tell("harbor.example.com/*", Tokens())
    assert (first.outcome, first.patterns[0].reason) == ("no-match", "star-in-path")
    assert "end the pattern before it" in first.patterns[0].hint
    second = tell("harbor.example.com", Tokens("audience not found in pod spec"))
    assert (second.outcome, second.code, script.runs) == ("failed", "service-account-token-unavailable", 0)
    assert "may request tokens for the audience" in second.hint
    third = tell("harbor.example.com", Tokens())
    assert (third.outcome, third.code, script.runs) == ("failed", "credential-provider-answer-invalid", 1)
    assert "cacheKeyType" in third.detail
    script.answer({"harbor.example.com": ("robot", "pw")})
    assert tell("harbor.example.com", Tokens()).outcome == "ran"


def test_the_shipped_example_that_never_matched_is_told_why(script: ProviderScript) -> None:
    config = script.config("harbor.example.com/*", "harbor.example.com/*/*")
    trace = only(explain(keyring(script, config), "harbor.example.com/library/nginx"))
    assert [one.reason for one in trace.patterns] == ["star-in-path"] * 2


def test_a_pod_without_an_account_is_told_that_it_is_left_out(script: ProviderScript) -> None:
    config = script.config(token_attributes=token_attributes(), default_cache_duration=timedelta(0))
    trace = only(explain(keyring(script, config), IMAGE))
    assert (trace.outcome, script.runs) == ("skipped", 0)
