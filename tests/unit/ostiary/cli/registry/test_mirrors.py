"""``ostiary registry`` with mirrors: get prints secrets, explain and lint never do, and exit codes tell the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ostiary.cli import main
from ostiary.registry.user_config import BIN_DIR_VARIABLE, CONFIG_VARIABLE, SEARCH_PATH_VARIABLE
from tests.support.providers import GROUP, ProviderScript

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "registry.example.com/team/app"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in (CONFIG_VARIABLE, BIN_DIR_VARIABLE, SEARCH_PATH_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "certs.d" / "registry.example.com"
    folder.mkdir(parents=True)
    (folder / "hosts.toml").write_text('[host."https://mirror.example.net"]\ncolour = "red"\n[host."http://cache"]\n')
    (tmp_path / "registries.conf").write_text(
        '[[registry]]\nlocation = "registry.example.com"\n[[registry.mirror]]\nlocation = "mirror.example.net"\n'
    )


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    script = ProviderScript(tmp_path / "bin").answer({"mirror.example.net": ("robot", CANARY)})
    provider = {
        "name": script.name,
        "matchImages": ["mirror.example.net"],
        "defaultCacheDuration": "10m",
        "apiVersion": f"{GROUP}/v1",
    }
    kind = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**kind, "providers": [provider]}))
    return ["--config", str(path), "--bin-dir", str(script.bin_dir)]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["registry", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("mirrors", [("--hosts-dir", "certs.d"), ("--registries-conf", "registries.conf")])
def test_get_prints_the_credentials_of_each_host(
    capsys: Captured, options: list[str], mirrors: tuple[str, str]
) -> None:
    code, out, _ = run(capsys, "get", *options, *mirrors, IMAGE)
    assert code == 0
    assert out.startswith("1. mirror ")
    assert out.index("mirror.example.net") < out.index(CANARY) < out.index("no credential")
    code, out, _ = run(capsys, "get", *options, *mirrors, "-o", "json", IMAGE)
    first = json.loads(out)["endpoints"][0]
    assert (first["mirror"], first["image"], first["credentials"][0]["password"]) == (
        True,
        "mirror.example.net/team/app",
        CANARY,
    )


def test_get_tells_what_is_passed_over_and_which_host_has_no_name(capsys: Captured, options: list[str]) -> None:
    _, _, err = run(capsys, "get", *options, "--hosts-dir", "certs.d", IMAGE)
    assert "unknown key colour" in err
    assert "cache: no image name can have this host" in err


def test_get_without_any_credential_is_1(capsys: Captured, options: list[str]) -> None:
    assert run(capsys, "get", *options, "--hosts-dir", "certs.d", "other.example.com/app")[0] == 1


@pytest.mark.parametrize("mirrors", [("--hosts-dir", "certs.d"), ("--registries-conf", "registries.conf")])
@pytest.mark.parametrize("output", ["text", "json"])
def test_explain_never_shows_a_password(
    capsys: Captured, options: list[str], mirrors: tuple[str, str], output: str
) -> None:
    code, out, err = run(capsys, "explain", *options, *mirrors, "-o", output, IMAGE)
    assert code == 0
    assert CANARY not in out + err
    if output == "json":
        assert json.loads(out)["endpoints"][0]["position"] == 1
    else:
        assert "with the kubelet: " in out
    assert run(capsys, "explain", *options, *mirrors, "other.example.com/app")[0] == 1


def test_explain_without_a_run_says_that_a_provider_would_run(capsys: Captured, options: list[str]) -> None:
    code, out, _ = run(capsys, "explain", "--no-run", *options, "--hosts-dir", "certs.d", IMAGE)
    assert code == 0
    assert "providers that match were not run" in out


def test_both_kinds_of_mirrors_are_one_too_many(capsys: Captured, options: list[str]) -> None:
    both = ("--hosts-dir", "certs.d", "--registries-conf", "registries.conf")
    code, _, err = run(capsys, "get", *options, *both, IMAGE)
    assert code == 2
    assert "cannot be combined" in err


def test_lint_looks_at_mirrors_with_and_without_providers(capsys: Captured, options: list[str]) -> None:
    both = ("--hosts-dir", "certs.d", "--registries-conf", "registries.conf")
    code, out, _ = run(capsys, "lint", *both, "-o", "json")
    assert code == 0
    assert {finding["rule"] for finding in json.loads(out)["findings"]} == {"mirror-unknown-key", "mirror-plain-http"}
    code, out, _ = run(capsys, "lint", *options[:2], *both)
    assert code == 0
    assert "mirror-without-credential" in out
    assert "3 files" in out


def test_a_file_that_containerd_would_pass_over_is_an_error(
    capsys: Captured, options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "certs.d" / "registry.example.com" / "hosts.toml").write_text("x = ")
    code, out, err = run(capsys, "get", *options, "--hosts-dir", "certs.d", IMAGE)
    assert (code, out) == (1, "")
    assert "mirrors-invalid" in err
    assert run(capsys, "lint", "--hosts-dir", "certs.d")[0] == 1


def test_a_provider_on_path_is_found_only_if_asked_for(
    capsys: Captured, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = options[:2]
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    image = "mirror.example.net/app"
    code, _, err = run(capsys, "get", *config, image)
    assert code == 2
    assert "--search-path" in err
    assert run(capsys, "get", *config, "--search-path", image)[0] == 0
    monkeypatch.setenv(SEARCH_PATH_VARIABLE, "1")
    assert run(capsys, "get", *config, image)[0] == 0
    monkeypatch.setenv(SEARCH_PATH_VARIABLE, "maybe")
    assert run(capsys, "get", *config, image)[0] == 1
