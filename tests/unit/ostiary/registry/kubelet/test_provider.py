"""One run of one provider: what it is given, and what becomes of everything that can go wrong."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.process import RunLimits
from ostiary.errors import AnswerInvalid, CredentialError, PluginFailed, PluginNotFound
from ostiary.model import Secret
from ostiary.registry.kubelet.provider import CredentialProvider
from ostiary.registry.kubelet.service_account import KubernetesServiceAccount, Presented
from ostiary.wire.credential_provider import BasicAuth, CacheKeyType, ProviderDialect
from ostiary_gateway.testing import FakeClock
from tests.support.providers import ProviderScript, token_attributes

IMAGE = "test.registry.io/foobar"
ACCOUNT = KubernetesServiceAccount("ns", "builder", "uid-1")
Make = Callable[..., CredentialProvider]


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    return ProviderScript(tmp_path / "bin").answer({"*.registry.io": ("user", "canary-password")}, duration="1m")


@pytest.fixture
def make(script: ProviderScript, clock: FakeClock) -> Make:
    def made(*, limits: RunLimits | None = None, **fields: Any) -> CredentialProvider:
        return CredentialProvider(script.config(**fields), str(script.path), limits=limits or RunLimits(), clock=clock)

    return made


def test_it_is_asked_on_stdin_and_answers_on_stdout(make: Make, script: ProviderScript) -> None:
    """I20, I21."""
    answer = make().run(IMAGE)
    assert answer.cache_key_type is CacheKeyType.REGISTRY
    assert answer.cache_duration == timedelta(minutes=1)
    assert answer.auth == {"*.registry.io": BasicAuth("user", Secret("canary-password"))}
    assert script.requests == [
        {
            "kind": "CredentialProviderRequest",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": IMAGE,
        }
    ]


def test_it_is_told_of_the_service_account(make: Make, script: ProviderScript) -> None:
    """I33."""
    presented = Presented(ACCOUNT, Secret("token-1"), {"domain.io/identity": "me"})
    make(token_attributes=token_attributes()).run(IMAGE, presented)
    (request,) = script.requests
    assert request["serviceAccountToken"] == "token-1"
    assert request["serviceAccountAnnotations"] == {"domain.io/identity": "me"}


def test_it_gets_exactly_the_configured_arguments(make: Make, script: ProviderScript) -> None:
    script.before('printf "%s\\n" "$0" "$@" > arguments\n')
    make(args=("--v=5", "two words", "")).run(IMAGE)
    assert (script.folder / "arguments").read_text().split("\n") == [str(script.path), "--v=5", "two words", "", ""]


@pytest.mark.parametrize(
    ("ours", "configured", "expected"),
    [
        ({"A": "1"}, (("B", "2"),), {"A": "1", "B": "2"}),
        ({}, (("B", "2"),), {"B": "2"}),
        ({"A": "1"}, (), {"A": "1"}),
        ({"A": "1"}, (("A", "2"),), {"A": "2"}),
        ({}, (("A", "1"), ("A", "2")), {"A": "2"}),
    ],
)
def test_it_sees_our_environment_and_the_configured_variables_over_it(
    make: Make,
    script: ProviderScript,
    monkeypatch: pytest.MonkeyPatch,
    ours: dict[str, str],
    configured: tuple[tuple[str, str], ...],
    expected: dict[str, str],
) -> None:
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    script.before('printf "%s %s\\n" "${A-unset}" "${B-unset}" > variables\n')
    make(env=configured).run(IMAGE)
    wanted = f"{expected.get('A', 'unset')} {expected.get('B', 'unset')}\n"
    assert (script.folder / "variables").read_text() == wanted


def test_a_provider_of_the_proposal_gets_its_argument_and_answers_with_one_login(
    make: Make, script: ProviderScript, clock: FakeClock
) -> None:
    """I19, I20, I21, I22."""
    script.before('echo "$1" > arguments\n')
    script.print_exactly(b'{"username": "u", "password": "p", "expirationTimestamp": "2026-01-01T01:00:00Z"}')
    answer = make(dialect=ProviderDialect.PROPOSAL, args=("get-credentials",)).run(IMAGE)
    assert (script.folder / "arguments").read_text() == "get-credentials\n"
    assert script.requests == [{"image": IMAGE}]
    assert answer.auth == {IMAGE: BasicAuth("u", Secret("p"))}
    assert answer.cache_duration == timedelta(hours=1)


# --- what can go wrong ---


def test_a_failure_tells_the_exit_code_and_what_it_said(make: Make, script: ProviderScript) -> None:
    script.exit(3).before("echo the metadata server is away >&2\n")
    with pytest.raises(PluginFailed) as caught:
        make().run(IMAGE)
    assert caught.value.code == "credential-provider-failed"
    assert caught.value.exit_code == 3
    assert "the metadata server is away" in str(caught.value)
    assert IMAGE in caught.value.summary


def test_nothing_secret_of_a_failed_run_is_told(make: Make, script: ProviderScript) -> None:
    script.exit(1).before('echo "said: canary-password $SETTING $request" >&2\n')
    presented = Presented(ACCOUNT, Secret("canary-token"))
    provider = make(env=(("SETTING", "canary-setting"),), token_attributes=token_attributes())
    with pytest.raises(PluginFailed) as caught:
        provider.run(IMAGE, presented)
    assert "said:" in str(caught.value)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("stdout", [b"canary", b'{"canary": 1', b"", b"[]", b"kind: canary"])
def test_an_answer_that_cannot_be_read_is_not_quoted(make: Make, script: ProviderScript, stdout: bytes) -> None:
    script.print_exactly(stdout)
    with pytest.raises(AnswerInvalid) as caught:
        make().run(IMAGE)
    assert caught.value.code == "credential-provider-answer-undecodable"
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_an_answer_in_another_version_is_refused(make: Make, script: ProviderScript) -> None:
    """I38."""
    script.answer({"r.io": ("u", "p")}, version="v1beta1")
    with pytest.raises(AnswerInvalid) as caught:
        make().run(IMAGE)
    assert caught.value.code == "credential-provider-answer-version"


def test_the_time_limit_ends_everything_it_started(make: Make, script: ProviderScript) -> None:
    # The grandchild holds stdout open, and the pipe of "alive": when it is gone, reading that pipe ends.
    os.mkfifo(script.folder / "alive")
    reader = os.open(script.folder / "alive", os.O_RDONLY | os.O_NONBLOCK)
    script.before("(exec 3> alive; sleep 1000) & sleep 1000\n")
    with pytest.raises(PluginFailed) as caught:
        make(limits=RunLimits(seconds=0.5, grace_seconds=0.1)).run(IMAGE)
    assert caught.value.code == "credential-provider-timeout"
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_too_much_output_ends_it(make: Make, script: ProviderScript) -> None:
    script.before("yes canary\n")
    with pytest.raises(PluginFailed) as caught:
        make(limits=RunLimits(stdout_bytes=1000, grace_seconds=0.1)).run(IMAGE)
    assert caught.value.code == "credential-provider-output-too-large"
    assert "canary" not in str(caught.value)


def test_a_signal_is_told(make: Make, script: ProviderScript) -> None:
    script.before("kill -9 $$\n")
    with pytest.raises(PluginFailed) as caught:
        make().run(IMAGE)
    assert (caught.value.code, caught.value.exit_code) == ("credential-provider-killed", -1)
    assert "signal 9" in str(caught.value)


def test_a_missing_executable_is_named(make: Make, script: ProviderScript) -> None:
    script.path.unlink()
    with pytest.raises(PluginNotFound) as caught:
        make().run(IMAGE)
    assert caught.value.code == "credential-provider-not-found"
    assert str(script.path) in str(caught.value)


def test_a_file_that_is_not_executable_is_told_apart_from_a_missing_one(make: Make, script: ProviderScript) -> None:
    script.path.chmod(0o644)
    with pytest.raises(PluginNotFound) as caught:
        make().run(IMAGE)
    assert caught.value.code == "credential-provider-not-executable"


def test_a_nul_in_an_argument_is_an_error_of_ours(make: Make) -> None:
    with pytest.raises(CredentialError):
        make(args=("a\0b",)).run(IMAGE)


# --- the service account's token as a password ---


@pytest.mark.parametrize(("cache_type", "refused"), [("ServiceAccount", True), ("Token", False)])
def test_the_token_as_password_needs_a_cache_by_token(
    make: Make, script: ProviderScript, cache_type: str, refused: bool
) -> None:
    script.answer({"r.io": ("u", "canary-token")})
    provider = make(token_attributes=token_attributes(cache_type=cache_type))
    presented = Presented(ACCOUNT, Secret("canary-token"))
    if not refused:
        assert provider.run(IMAGE, presented).auth["r.io"].password == Secret("canary-token")
        return
    with pytest.raises(AnswerInvalid) as caught:
        provider.run(IMAGE, presented)
    assert "returned the service account token as the password" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_an_empty_password_is_not_an_empty_token(make: Make, script: ProviderScript) -> None:
    script.answer({"r.io": ("", "")})
    assert make(token_attributes=token_attributes()).run(IMAGE, Presented(ACCOUNT, Secret(""))).auth
