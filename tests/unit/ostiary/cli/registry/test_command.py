"""``ostiary registry``: what it prints, what it never prints, and its exit codes."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.cli import main
from ostiary.registry.user_config import BIN_DIR_VARIABLE, CONFIG_VARIABLE
from tests.support.providers import GROUP, ProviderScript

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "a.registry.io/team/app"
Captured = pytest.CaptureFixture[str]
Write = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Not the configuration of whoever runs the tests.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in (CONFIG_VARIABLE, BIN_DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    folder = tmp_path / "bin"
    folder.mkdir(mode=0o755)
    return ProviderScript(folder).answer({"*.registry.io": ("robot", CANARY)})


@pytest.fixture
def write(tmp_path: Path, script: ProviderScript) -> Write:
    """Write a configuration for the test's provider and return the options that name it."""

    def make(*patterns: str, **fields: Any) -> list[str]:
        provider = {
            "name": script.name,
            "matchImages": list(patterns or ("*.registry.io",)),
            "defaultCacheDuration": "10m",
            "apiVersion": f"{GROUP}/v1",
            **fields,
        }
        kind = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**kind, "providers": [provider]}))
        return ["--config", str(path), "--bin-dir", str(script.bin_dir)]

    return make


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["registry", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# --- which configuration ---


@pytest.mark.parametrize("command", [["get", IMAGE], ["explain", IMAGE], ["lint"], ["migrate"]])
def test_without_a_config_the_one_of_docker_credential_ostiary_is_read(
    write: Write, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    written, bin_dir = Path(write()[1]), tmp_path / "home" / "ostiary" / "bin"
    bin_dir.parent.mkdir(parents=True)
    assert run(capsys, *command)[0] != 0, "there is none yet"
    # In its usual place, with the executables beside it.
    written.rename(bin_dir.parent / "registry.yaml")
    bin_dir.symlink_to(tmp_path / "bin")
    code, out, _ = run(capsys, *command)
    assert (code, "provider" in out or command == ["lint"]) == (0, True)
    # Wherever the variables say.
    (bin_dir.parent / "registry.yaml").rename(tmp_path / "elsewhere.yaml")
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "elsewhere.yaml"))
    monkeypatch.setenv(BIN_DIR_VARIABLE, str(tmp_path / "bin"))
    assert run(capsys, *command)[0] == 0


def test_a_configuration_that_a_variable_names_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "missing.yaml"))
    code, _, err = run(capsys, "get", IMAGE)
    assert code == 1
    assert "missing.yaml" in err


def test_lint_without_a_configuration_says_where_it_was_looked_for(capsys: Captured) -> None:
    code, _, err = run(capsys, "lint")
    assert code == 2
    assert "registry.yaml" in err
    assert "--config" in err


def test_lint_looks_at_the_executables_of_the_users_own_configuration(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, write()[1])
    assert run(capsys, "lint")[0] == 0
    (tmp_path / "bin" / "provider").unlink()
    code, out, _ = run(capsys, "lint")
    assert code == 1
    assert "binary-missing" in out


# --- get ---


def test_get_prints_the_credentials_in_order(write: Write, capsys: Captured) -> None:
    """I7, I24."""
    code, out, err = run(capsys, "get", *write(), IMAGE)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "1. *.registry.io, from provider provider"
    assert CANARY in out
    code, out, _ = run(capsys, "get", *write(), IMAGE, "-o", "json")
    assert json.loads(out) == {
        "image": IMAGE,
        "credentials": [
            {
                "key": "*.registry.io",
                "source": {"kind": "provider", "name": "provider"},
                "username": "robot",
                "password": CANARY,
            }
        ],
    }


def test_get_without_a_credential_fails_and_points_to_explain(write: Write, capsys: Captured) -> None:
    code, out, err = run(capsys, "get", *write(), "docker.io/x")
    assert (code, out) == (1, "")
    assert "registry explain" in err


def test_get_tells_a_failure_beside_what_others_found(
    write: Write, script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    script.exit(7)
    secret = tmp_path / "secret.yaml"
    auths = {"auths": {"a.registry.io": {"auth": b64encode(f"user:{CANARY}".encode()).decode()}}}
    data = {".dockerconfigjson": b64encode(json.dumps(auths).encode()).decode()}
    fields = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pull"}, "data": data}
    secret.write_text(yaml.safe_dump({**fields, "type": "kubernetes.io/dockerconfigjson"}))
    code, out, err = run(capsys, "get", *write(), "--pull-secret", str(secret), IMAGE)
    assert code == 0
    assert "from secret default/pull" in out
    assert "exit code 7" in err


def test_what_is_no_secret_is_refused(write: Write, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "x.yaml").write_text(f"kind: ConfigMap\ndata: {CANARY}\n")
    code, _, err = run(capsys, "get", *write(), "--pull-secret", str(tmp_path / "x.yaml"), IMAGE)
    assert code == 1
    assert "it is not a Secret" in err
    assert CANARY not in err


def test_the_docker_configuration_of_the_node_counts_unless_it_shall_not(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "config.json").write_text('{"auths":{"a.registry.io":{"username":"n","password":"p"}}}')
    options = ["--docker-config", str(tmp_path / "node")]
    assert run(capsys, "get", *options, IMAGE)[0] == 0
    assert run(capsys, "get", *options, "--no-docker-config", IMAGE)[0] == 1


def test_logins_of_docker_count_only_if_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    (tmp_path / "config.json").write_text('{"auths":{"a.registry.io":{"username":"mine","password":"p"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    # Without it, podman's file is below /run/containers, which only root may read once root has used podman.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run(capsys, "get", "--no-docker-config", IMAGE)[0] == 1
    code, out, _ = run(capsys, "get", "--no-docker-config", "--docker-logins", IMAGE)
    assert (code, "mine" in out) == (0, True)


def test_a_password_that_is_not_text_is_printed_in_base64(tmp_path: Path, capsys: Captured) -> None:
    auth, password = b64encode(b"n:\xff").decode(), b64encode(b"\xff").decode()
    (tmp_path / "config.json").write_text(f'{{"auths":{{"a.registry.io":{{"auth":"{auth}"}}}}}}')
    code, out, _ = run(capsys, "get", "--docker-config", str(tmp_path), IMAGE)
    assert code == 0
    assert "password (base64)" in out
    assert password in out
    _, out, _ = run(capsys, "get", "--docker-config", str(tmp_path), IMAGE, "-o", "json")
    (credential,) = json.loads(out)["credentials"]
    assert (credential["username"], credential["passwordBase64"]) == ("n", password)


def test_gets_help_warns_that_secrets_are_printed(capsys: Captured) -> None:
    code, out, _ = run(capsys, "get", "--help")
    assert code == 0
    assert "THE CREDENTIALS ARE SECRETS" in out


def test_a_config_without_its_bin_dir_is_a_usage_error(write: Write, capsys: Captured) -> None:
    code, _, err = run(capsys, "get", *write()[:2], IMAGE)
    assert code == 2
    assert "--bin-dir" in err


def test_an_image_that_is_none_is_told(write: Write, capsys: Captured) -> None:
    code, _, err = run(capsys, "explain", *write(), "ROOT")
    assert code == 1
    assert "image-name-invalid" in err


# --- explain ---


def test_explain_says_the_same_as_text_and_as_json_and_never_the_password(write: Write, capsys: Captured) -> None:
    options = write("*.registry.io", "other.registry.io:5000")
    code, text, _ = run(capsys, "explain", *options, IMAGE)
    assert code == 0
    for part in (IMAGE, "*.registry.io  matches", "the ports differ", "provider provider: ran", "1 credential is"):
        assert part in text
    code, out, _ = run(capsys, "explain", *options, IMAGE, "-o", "json")
    told = json.loads(out)
    assert told["image"]["repository"] == IMAGE
    assert [one["reason"] for one in told["providers"][0]["patterns"]] == ["", "ports-differ"]
    assert told["providers"][0]["cache"][1]["secondsLeft"] > 0
    assert told["candidates"][0]["username"] == "robot"
    assert CANARY not in text + out


def test_explain_can_leave_the_providers_alone(write: Write, script: ProviderScript, capsys: Captured) -> None:
    code, out, _ = run(capsys, "explain", *write(), "--no-run", IMAGE)
    assert (code, script.runs) == (0, 0)
    assert "would-run" in out


def test_explain_fails_when_there_is_nothing(write: Write, capsys: Captured) -> None:
    code, out, _ = run(capsys, "explain", *write("*.registry.io/*"), IMAGE)
    assert code == 1
    assert "a * in a path stands for itself" in out
    assert "no provider matches this image" in out


# --- lint, migrate ---


def test_lint_fails_for_errors_and_not_for_warnings(write: Write, capsys: Captured) -> None:
    code, out, _ = run(capsys, "lint", *write("harbor.example.com/*"))
    assert code == 1
    assert "ERROR star-in-path" in out
    assert "providers[0].matchImages[0]" in out
    code, out, _ = run(capsys, "lint", *write("gcr.io/foo"))
    assert code == 0
    assert "WARNING open-path-prefix" in out
    code, out, _ = run(capsys, "lint", *write())
    assert (code, out) == (0, "1 file: no problems\n")


def test_lint_as_json_has_the_place_in_parts(write: Write, capsys: Captured) -> None:
    code, out, _ = run(capsys, "lint", *write("index.docker.io"), "-o", "json")
    found = json.loads(out)
    assert (code, found["ok"], found["loads"]) == (1, False, True)
    (finding,) = found["findings"]
    assert (finding["rule"], finding["severity"]) == ("docker-hub-name", "error")
    assert finding["place"].keys() == {"file", "path", "line"}


def test_a_config_that_does_not_load_is_linted_all_the_same(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "c.yaml").write_text("kind: CredentialProviderConfig\nproviders:\n- name: x\n")
    code, out, _ = run(capsys, "lint", "--config", str(tmp_path / "c.yaml"))
    assert code == 1
    assert "there is no apiVersion" in out
    assert "would not start" in out


PROPOSED = 'kind: RegistryCredentialConfig\napiVersion: v1alpha1\nproviders:\n- name: x\n  imageMatchers: ["*.io"]\n'


def test_migrate_prints_a_config_that_has_nothing_of_the_old_dialect(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "old.yaml").write_text(PROPOSED)
    code, out, _ = run(capsys, "migrate", "--config", str(tmp_path / "old.yaml"))
    assert code == 0
    assert yaml.safe_load(out)["kind"] == "CredentialProviderConfig"
    code, as_json, _ = run(capsys, "migrate", "--config", str(tmp_path / "old.yaml"), "-o", "json")
    assert json.loads(as_json) == yaml.safe_load(out)
    (tmp_path / "new.yaml").write_text(out)
    assert run(capsys, "lint", "--config", str(tmp_path / "new.yaml"))[0] == 0


# --- check ---


def test_check_judges_a_program_or_a_configured_provider(
    write: Write, script: ProviderScript, capsys: Captured
) -> None:
    image = ["--image", IMAGE]
    code, out, _ = run(capsys, "check", "--api-version", "v1", *image, str(script.path))
    assert code == 0
    assert "PASS" in out
    assert run(capsys, "check", *image, str(script.path))[0] == 1, "it answers in v1 whatever it is asked for"
    code, out, _ = run(capsys, "check", *write(), *image, "-o", "json", "provider")
    assert code == 0
    assert json.loads(out)["ok"]
    assert CANARY not in out


def test_check_of_a_provider_that_is_not_configured_is_a_usage_error(write: Write, capsys: Captured) -> None:
    code, _, err = run(capsys, "check", *write(), "other")
    assert code == 2
    assert "it has provider" in err


# --- probe ---


def test_probe_says_that_nobody_is_there_and_shows_no_password(write: Write, capsys: Captured) -> None:
    options = write("127.*.*.*:1")
    code, out, _ = run(capsys, "probe", *options, "127.0.0.1:1/team/app")
    assert code == 1
    assert "the registry is unavailable" in out
    code, out, _ = run(capsys, "probe", *options, "-o", "json", "127.0.0.1:1/team/app")
    told = json.loads(out)
    assert (code, told["ok"], told["reached"]) == (1, False, False)
    assert CANARY not in out


def test_authorities_that_cannot_be_read_are_told(write: Write, tmp_path: Path, capsys: Captured) -> None:
    code, _, err = run(capsys, "probe", *write(), "--ca-file", str(tmp_path / "none.pem"), IMAGE)
    assert code == 1
    assert "config-unreadable" in err
