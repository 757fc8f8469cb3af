"""``docker-credential-ostiary`` as docker runs it: a process, with a real provider behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostiary.errors import ImageNameError
from ostiary.registry.docker_helper_protocol import image_of
from tests.support.providers import ProviderScript

CANARY = "c4n4ry-c4n4ry-c4n4ry"
NOT_FOUND = "credentials not found in native keychain\n"

CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  defaultCacheDuration: 10m
  matchImages: {patterns}
"""
PATTERNS = ["*.registry.io", "docker.io", "localhost:5000", "registry.io", "registry.io/team"]


@pytest.fixture
def provider(tmp_path: Path) -> ProviderScript:
    (tmp_path / "registry.yaml").write_text(CONFIG.format(patterns=json.dumps(PATTERNS)))
    (tmp_path / "bin").mkdir()
    return ProviderScript(tmp_path / "bin")


def run(folder: Path, command: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ostiary.registry.docker_helper", command],
        input=stdin,
        env={**os.environ, "OSTIARY_REGISTRY_CONFIG": str(folder / "registry.yaml"), **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


# --- get ---


@pytest.mark.parametrize(
    "server", ["a.registry.io", "https://a.registry.io", "https://a.registry.io/v2/\n", "a.registry.io/"]
)
def test_a_login_is_found_by_host_and_by_url(tmp_path: Path, provider: ProviderScript, server: str) -> None:
    provider.answer({"*.registry.io": ("robot", CANARY)})
    done = run(tmp_path, "get", server)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"ServerURL": server.strip(), "Username": "robot", "Secret": CANARY}
    assert provider.requests[0]["image"] == "a.registry.io/any/image"


@pytest.mark.parametrize("server", ["https://index.docker.io/v1/", "docker.io", "registry-1.docker.io"])
def test_docker_hub_is_asked_for_under_its_name_in_images(
    tmp_path: Path, provider: ProviderScript, server: str
) -> None:
    provider.answer({"docker.io": ("robot", CANARY)})
    done = run(tmp_path, "get", server)
    assert json.loads(done.stdout)["ServerURL"] == server
    assert provider.requests[0]["image"] == "docker.io/any/image"


@pytest.mark.parametrize("auth", [{}, {"*.registry.io": ("", "")}, {"other.io": ("robot", CANARY)}])
def test_nothing_is_told_in_the_words_that_docker_knows(
    tmp_path: Path, provider: ProviderScript, auth: dict[str, tuple[str, str]]
) -> None:
    provider.answer(auth)
    done = run(tmp_path, "get", "a.registry.io")
    assert (done.returncode, done.stdout, done.stderr) == (1, NOT_FOUND, "")


def test_a_registry_that_no_provider_matches_runs_none(tmp_path: Path, provider: ProviderScript) -> None:
    assert run(tmp_path, "get", "quay.io").stdout == NOT_FOUND
    assert provider.runs == 0


def test_a_host_that_looks_like_a_name_on_docker_hub_does_not_get_its_login(
    tmp_path: Path, provider: ProviderScript
) -> None:
    provider.answer({"docker.io": ("robot", CANARY)})
    assert run(tmp_path, "get", "build-server").stdout == NOT_FOUND
    assert provider.runs == 0


def test_a_failure_is_not_told_as_nothing(tmp_path: Path, provider: ProviderScript) -> None:
    provider.print_exactly(CANARY.encode()).before(f"echo no network, token {CANARY} >&2\n").exit(7)
    done = run(tmp_path, "get", "a.registry.io")
    assert done.returncode == 1
    assert NOT_FOUND.strip() not in done.stdout
    assert done.stdout.startswith("a credential provider failed")
    assert "exit code 7" in done.stderr
    assert "no network" in done.stderr
    assert CANARY not in done.stdout + done.stderr


def test_no_server_is_said_as_the_protocol_says_it(tmp_path: Path) -> None:
    for command in ("get", "erase"):
        done = run(tmp_path, command, " \n")
        assert (done.returncode, done.stdout) == (1, "no credentials server URL\n")


def test_a_missing_configuration_is_a_failure_that_names_the_file(tmp_path: Path) -> None:
    done = run(tmp_path, "get", "a.registry.io")
    assert done.returncode == 1
    assert "registry.yaml" in done.stderr
    assert NOT_FOUND.strip() not in done.stdout


def test_without_variables_the_configuration_is_in_the_home_directory(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "ostiary"
    (folder / "bin").mkdir(parents=True)
    (folder / "registry.yaml").write_text(CONFIG.format(patterns='["a.registry.io"]'))
    ProviderScript(folder / "bin").answer({"a.registry.io": ("robot", CANARY)})
    done = run(tmp_path, "get", "a.registry.io", OSTIARY_REGISTRY_CONFIG="", XDG_CONFIG_HOME="", HOME=str(tmp_path))
    assert json.loads(done.stdout)["Username"] == "robot"


def test_the_directory_of_the_executables_can_be_given(tmp_path: Path, provider: ProviderScript) -> None:
    elsewhere = ProviderScript(tmp_path / "elsewhere").answer({"a.registry.io": ("other", CANARY)})
    done = run(tmp_path, "get", "a.registry.io", OSTIARY_REGISTRY_BIN_DIR=str(elsewhere.bin_dir))
    assert json.loads(done.stdout)["Username"] == "other"
    assert provider.runs == 0


# --- the other commands ---


def test_store_is_refused_politely_and_says_nothing_of_what_it_was_given(tmp_path: Path) -> None:
    done = run(tmp_path, "store", json.dumps({"ServerURL": "x", "Username": "u", "Secret": CANARY}))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "not implemented: ostiary reads credentials from providers\n"


def test_erase_is_done_already(tmp_path: Path) -> None:
    done = run(tmp_path, "erase", "https://a.registry.io")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_list_names_the_registries_without_globs_and_runs_nothing(tmp_path: Path, provider: ProviderScript) -> None:
    done = run(tmp_path, "list")
    assert json.loads(done.stdout) == {"docker.io": "", "localhost:5000": "", "registry.io": ""}
    assert provider.runs == 0


def test_version_and_usage(tmp_path: Path) -> None:
    assert run(tmp_path, "version").stdout.startswith("docker-credential-ostiary (ostiary) ")
    wrong = run(tmp_path, "login")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "usage" in wrong.stderr


def test_a_server_stands_for_an_image_of_its_registry(subtests: pytest.Subtests) -> None:
    cases = [
        ("localhost:5000", "localhost:5000/any/image"),
        ("http://localhost:5000/v1/", "localhost:5000/any/image"),
        ("https://user@registry.io/v2", "registry.io/any/image"),
        ("registry.io/team/app", "registry.io/team/app"),
        ("registry", None),
        ("https://evil.example?@registry.io", None),
        ("https://evil.example#@registry.io/app", None),
        ("https://evil.example\\@registry.io", None),
    ]
    for server, image in cases:
        with subtests.test(server=server, image=image):
            assert image_of(server) == image


@pytest.mark.parametrize("server", ["https://evil.example/x@registry.io", "evil.example/v2/@registry.io"])
def test_an_at_sign_in_the_path_does_not_change_the_host(server: str) -> None:
    try:
        image = image_of(server)
    except ImageNameError:
        return
    assert image is None or image.startswith("evil.example/")
