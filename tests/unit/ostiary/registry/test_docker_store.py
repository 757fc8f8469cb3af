"""Logins as docker's and podman's own tools choose them, with real helper programs."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.process import RunLimits
from ostiary.errors import AnswerInvalid, ConfigurationError, CredentialError, PluginFailed, PluginNotFound
from ostiary.model import Secret
from ostiary.registry.credentials import RegistryLogin, SourceKind
from ostiary.registry.docker_store import DockerHelper, DockerStore, auth_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of helpers at the front of PATH, and no auth files of anybody else."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def helper(folder: Path, shell: str, suffix: str = "test") -> None:
    path = folder / f"docker-credential-{suffix}"
    path.write_text(f'#!/bin/sh\nserver=$(cat)\nprintf "%s %s\\n" "$1" "$server" >> {folder}/asked\n{shell}\n')
    path.chmod(0o755)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def answering(username: str, secret: str) -> str:
    return f"echo '{json.dumps({'ServerURL': 'x', 'Username': username, 'Secret': secret})}'"


NOTHING = "echo credentials not found in native keychain; exit 1"


def test_a_helper_is_asked_with_the_server_on_stdin(folder: Path) -> None:
    helper(folder, answering("foo", "bar"))
    assert DockerHelper("test").get("r.io") == RegistryLogin("foo", Secret("bar"))
    assert asked(folder) == ["get r.io"]


def test_the_username_token_means_an_identity_token(folder: Path) -> None:
    helper(folder, answering("<token>", "bar"))
    assert DockerHelper("test").get("r.io") == RegistryLogin(identity_token=Secret("bar"))


@pytest.mark.parametrize("shell", [NOTHING, answering("", "")])
def test_having_nothing_is_not_failing(folder: Path, shell: str) -> None:
    helper(folder, shell)
    assert DockerHelper("test").get("r.io") is None


def test_the_names_of_a_helpers_fields_are_read_without_regard_to_case(folder: Path) -> None:
    helper(folder, """echo '{"username": "u", "SECRET": "s"}'""")
    assert DockerHelper("test").get("r.io") == RegistryLogin("u", Secret("s"))


def test_a_failure_does_not_quote_stdout(folder: Path) -> None:
    helper(folder, "echo canary-secret; echo the vault is sealed canary-secret >&2; exit 1")
    with pytest.raises(PluginFailed) as caught:
        DockerHelper("test").get("r.io")
    assert caught.value.code == "docker-helper-failed"
    assert "the vault is sealed" in str(caught.value)
    assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("printed", ["canary", '"canary"', '{"Username": 1, "Secret": "canary"}', '{"Secret": "canary'])
def test_an_answer_that_is_no_login_is_not_quoted(folder: Path, printed: str) -> None:
    helper(folder, f"echo '{printed}'")
    with pytest.raises(AnswerInvalid) as caught:
        DockerHelper("test").get("r.io")
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_helper_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(PluginNotFound) as caught:
        DockerHelper("absent").get("r.io")
    assert "docker-credential-absent is not on PATH" in str(caught.value)


def test_a_helper_has_a_time_limit(folder: Path) -> None:
    helper(folder, "sleep 1000")
    with pytest.raises(PluginFailed) as caught:
        DockerHelper("test", limits=RunLimits(seconds=0.3, grace_seconds=0.1)).get("r.io")
    assert "did not end within" in str(caught.value)


@pytest.mark.parametrize("suffix", ["", "../x", "/bin/sh", "a/b"])
def test_the_suffix_of_a_helper_is_no_path(suffix: str) -> None:
    with pytest.raises(ConfigurationError):
        DockerHelper(suffix)


# --- files ---


def auth_file(path: Path, **fields: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields))
    return path


def logins(*keys: str) -> dict[str, dict[str, str]]:
    return {key: {"username": key, "password": "x"} for key in keys}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("r.io/a/b:1", "r.io/a/b"),
        ("r.io/a/bc", "r.io/a"),
        ("r.io/a/b/c", "r.io/a/b"),
        ("r.io/ab", "r.io"),
        ("q.io/x", "https://q.io/v2/"),
        ("nginx", "https://index.docker.io/v1/"),
        ("other.io/x", None),
    ],
)
def test_the_longest_part_of_the_name_that_has_a_login_counts(folder: Path, image: str, expected: str | None) -> None:
    keys = ("r.io", "r.io/a", "r.io/a/b", "https://q.io/v2/", "https://index.docker.io/v1/")
    found = DockerStore(auth_file(folder / "auth.json", auths=logins(*keys))).find(image)
    assert (found and found.username) == expected
    assert found is None or found.source.kind is SourceKind.FILE


def test_a_login_for_a_part_of_a_registry_is_not_one_for_all_of_it(folder: Path) -> None:
    assert DockerStore(auth_file(folder / "auth.json", auths=logins("r.io/a"))).find("r.io/b") is None


def test_an_empty_entry_is_passed_over(folder: Path) -> None:
    file = auth_file(folder / "auth.json", auths={"r.io/a": {}, **logins("r.io")})
    found = DockerStore(file).find("r.io/a")
    assert found is not None
    assert found.username == "r.io"


def test_the_helper_of_a_registry_decides_for_the_file(folder: Path) -> None:
    helper(folder, answering("from-helper", "x"))
    file = auth_file(folder / "auth.json", auths=logins("r.io"), credHelpers={"r.io": "test"}, credsStore="absent")
    found = DockerStore(file).find("r.io/a")
    assert found is not None
    assert (found.username, str(found.source)) == ("from-helper", "helper docker-credential-test")
    helper(folder, NOTHING)
    assert DockerStore(file).find("r.io/a") is None


def test_a_helper_that_fails_is_not_passed_over(folder: Path) -> None:
    helper(folder, "exit 1")
    file = auth_file(folder / "auth.json", auths=logins("r.io"), credHelpers={"r.io": "test"})
    with pytest.raises(CredentialError):
        DockerStore(file).find("r.io/a")


def test_a_store_that_has_nothing_leaves_the_entries_of_the_file(folder: Path) -> None:
    helper(folder, NOTHING)
    found = DockerStore(auth_file(folder / "auth.json", auths=logins("r.io"), credsStore="test")).find("r.io/a")
    assert found is not None
    assert found.username == "r.io"


def test_helpers_know_docker_hub_by_its_old_address(folder: Path) -> None:
    helper(folder, answering("hub", "x"))
    assert DockerStore(auth_file(folder / "auth.json", credsStore="test")).find("nginx") is not None
    assert asked(folder) == ["get https://index.docker.io/v1/"]


def test_the_files_are_searched_until_one_has_a_login(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [Path(path) for path in auth_files()]
    assert paths == [
        folder / "runtime/containers/auth.json",
        folder / "home/.config/containers/auth.json",
        folder / "home/.docker/config.json",
        folder / "home/.dockercfg",
    ]
    store = DockerStore()
    assert store.find("r.io/x") is None
    auth_file(paths[3], **{"r.io": {"username": "dockercfg"}})
    for path, name in zip(reversed(paths[:3]), ("docker", "config", "runtime"), strict=True):
        auth_file(path, auths={"other.io": {"username": "other"}})
        assert (found := store.find("r.io/x")) is not None
        auth_file(path, auths={"r.io": {"username": name}})
        assert (found := store.find("r.io/x")) is not None
        assert found.username == name
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(auth_file(folder / "mine.json", auths={})))
    assert store.find("r.io/x") is None, "a file that was chosen is the only one"


def test_a_chosen_file_must_be_there(folder: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DockerStore(folder / "absent.json").find("r.io/x")
    assert caught.value.code == "config-unreadable"
