"""Providers that are switched off: the keyring, explain and lint obey at once, and say so."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.cli import main
from ostiary.cli.registry.switch import disable_in_file, enable_in_file
from ostiary.conformance.lint import lint
from ostiary.core.provider_switches import ALL, Switches
from ostiary.errors import ConfigurationError
from ostiary.registry.explain import explain
from ostiary.registry.keyring import Keyring
from ostiary.testing import FakeClock
from tests.support.providers import ProviderScript, providers_config

IMAGE = "a.registry.io/app"
HOUR = timedelta(hours=1)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "off")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    return ProviderScript(tmp_path / "bin").answer({"*.registry.io": ("robot", "word")})


@pytest.fixture
def keyring(script: ProviderScript, file: str, clock: FakeClock) -> Keyring:
    other = ProviderScript(script.bin_dir, "other").answer({"*.registry.io": ("other", "word")})
    config = providers_config(*(each.config(default_cache_duration=HOUR) for each in (script, other)))
    switches = Switches([file], variable="", clock=clock)
    return Keyring(config, bin_dir=script.bin_dir, switches=switches)


def users(keyring: Keyring) -> list[str]:
    return [each.username for each in keyring.lookup(IMAGE)]


def test_what_is_cached_of_a_disabled_provider_is_not_used_and_the_others_are(
    keyring: Keyring, file: str, clock: FakeClock, script: ProviderScript
) -> None:
    assert users(keyring) == users(keyring) == ["robot", "other"]
    disable_in_file(file, "provider", reason="why not")
    clock.advance(seconds=1)
    lookup = keyring.lookup(IMAGE)
    assert [each.username for each in lookup] == ["other"]
    (skipped,) = lookup.skipped
    assert (skipped.provider, "why not" in skipped.reason) == ("provider", True)
    assert [each.username for each in asyncio.run(keyring.lookup_async(IMAGE))] == ["other"]
    enable_in_file(file, "provider")
    clock.advance(seconds=1)
    assert users(keyring) == ["robot", "other"]
    assert script.runs == 1


def test_switches_that_cannot_be_read_are_an_error_and_no_lookup(keyring: Keyring, file: str) -> None:
    Path(file).mkdir()
    with pytest.raises(ConfigurationError, match="it cannot be known which"):
        keyring.lookup(IMAGE)


def test_explain_says_who_is_off_and_how_to_undo_it(keyring: Keyring, file: str) -> None:
    disable_in_file(file, ALL)
    explanation = explain(keyring, IMAGE)
    assert [(each.outcome, each.hint) for each in explanation.providers] == [
        ("disabled", "ostiary registry enable --all")
    ] * 2
    assert explanation.conclusion.startswith("no credential: provider, other is switched off")


def test_lint_finds_forgotten_switches(tmp_path: Path, file: str) -> None:
    config = tmp_path / "config.json"
    stanza = {
        "name": "acme",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": ["*.registry.io"],
        "defaultCacheDuration": "1h",
    }
    kind = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
    config.write_text(json.dumps({**kind, "providers": [stanza]}))

    def rules() -> list[str]:
        return [each.rule for each in lint(config, switches=Switches([file], variable="")).findings]

    assert rules() == []
    disable_in_file(file, "acme")
    disable_in_file(file, "acne")
    assert rules() == ["provider-disabled", "unknown-provider-disabled"]
    Path(file).chmod(0o666)
    assert rules() == ["switches-unreadable"]


# --- the commands ---


def test_disable_and_enable(capsys: Captured, monkeypatch: pytest.MonkeyPatch, file: str, tmp_path: Path) -> None:
    monkeypatch.setenv("OSTIARY_REGISTRY_SWITCHES", file)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["registry", "disable", "acme"]) == 0
    assert f"acme is disabled in {file} since" in capsys.readouterr().out
    assert main(["registry", "disable", "--all"]) == 0
    assert main(["registry", "enable", "acme"]) == 0
    assert "still disabled: all providers are disabled" in capsys.readouterr().err
    assert main(["registry", "enable", "--all"]) == 0
    assert main(["registry", "enable", "--all"]) == 0
    assert "all providers: not disabled" in capsys.readouterr().out
    for words in (
        ["disable"],
        ["disable", "acme", "--all"],
        ["disable", "*"],
        ["enable", "two words"],
        ["enable", "#"],
    ):
        assert main(["registry", *words]) == 2, words
    capsys.readouterr()


def test_a_name_that_the_configuration_does_not_have_is_told(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, file: str, tmp_path: Path
) -> None:
    config = tmp_path / "registry.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: acme\n"
        "  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: [a.io]\n  defaultCacheDuration: 1h\n"
    )
    monkeypatch.setenv("OSTIARY_REGISTRY_CONFIG", str(config))
    monkeypatch.setenv("OSTIARY_REGISTRY_SWITCHES", file)
    assert main(["registry", "disable", "acne"]) == 0
    assert "has no provider acne; it has acme" in capsys.readouterr().err


def test_status_without_a_daemon(capsys: Captured, tmp_path: Path) -> None:
    assert main(["registry", "status", "--socket", str(tmp_path / "s")]) == 1
    assert "registry-daemon-unreachable" in capsys.readouterr().err
