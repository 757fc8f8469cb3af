"""From a provider's answer to a pulled image: real registries, skopeo and podman, nothing of ours faked in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostiary.registry.credentials import ImageCredential
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import load
from tests.support.providers import ProviderScript
from tests.support.registry import Passwords, Registry, TokenIssuer, write_image

pytestmark = pytest.mark.needs("docker-registry", "skopeo", "podman", "htpasswd")

SCRIPTS = Path(sys.executable).parent
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def passwords(tmp_path: Path) -> Passwords:
    made = Passwords(tmp_path / "htpasswd")
    made.set("alice", "s3cret-1")
    return made


@pytest.fixture
def by_password(tmp_path: Path, passwords: Passwords) -> Iterator[Registry]:
    with Registry(tmp_path / "by-password", passwords.auth).running() as registry:
        push(registry, "alice:s3cret-1", tmp_path)
        yield registry


@pytest.fixture
def by_token(tmp_path: Path) -> Iterator[Registry]:
    issuer = TokenIssuer(tmp_path / "issuer", username="robot", password="t0ken-pw")
    with issuer.running(), Registry(tmp_path / "by-token", issuer.auth).running() as registry:
        push(registry, "robot:t0ken-pw", tmp_path)
        yield registry


def push(registry: Registry, login: str, folder: Path) -> None:
    layout = folder / "oci"
    if not layout.exists():
        write_image(layout)
    target = f"docker://{registry.address}/team/app:v1"
    skopeo("copy", "--dest-tls-verify=false", "--dest-creds", login, f"oci:{layout}:v1", target).check_returncode()


def skopeo(*arguments: str, **env: str) -> Done:
    return run("skopeo", "--insecure-policy", *arguments, **env)


def run(*command: str, **env: str) -> Done:
    whole = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", **env}
    return subprocess.run(command, env=whole, capture_output=True, text=True, timeout=100)


def pull(image: str, authfile: Path, folder: Path, **env: str) -> Done:
    return skopeo(
        "copy", "--src-tls-verify=false", "--src-authfile", str(authfile), f"docker://{image}", f"dir:{folder}", **env
    )


def podman_pull(image: str, authfile: Path, folder: Path, **env: str) -> Done:
    # podman refuses a runroot of more than 50 characters.
    with tempfile.TemporaryDirectory(prefix="run") as runroot:
        storage = ("--storage-driver", "vfs", "--root", str(folder / "root"), "--runroot", runroot)
        return run("podman", *storage, "pull", "--tls-verify=false", "--authfile", str(authfile), image, **env)


def authfile_for(found: ImageCredential, registry: Registry, path: Path) -> Path:
    from base64 import b64encode

    login = b64encode(f"{found.username}:{found.password.reveal()}".encode()).decode()
    path.write_text(json.dumps({"auths": {registry.address: {"auth": login}}}))
    return path


def provider_config(folder: Path, provider: ProviderScript, *patterns: str) -> Path:
    stanza: dict[str, Any] = {
        "name": provider.name,
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "matchImages": list(patterns),
        "defaultCacheDuration": "1h",
    }
    path = folder / "providers.json"
    path.write_text(
        json.dumps(
            {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [stanza]}
        )
    )
    return path


@pytest.fixture
def provider(tmp_path: Path) -> ProviderScript:
    return ProviderScript(tmp_path / "bin")


def test_a_providers_answer_pulls_from_both_kinds_of_registry(
    by_password: Registry, by_token: Registry, provider: ProviderScript, tmp_path: Path
) -> None:
    """I28."""
    port, token_port = (registry.address.rpartition(":")[2] for registry in (by_password, by_token))
    provider.answer(
        {f"127.*.*.*:{port}/team": ("alice", "s3cret-1"), f"127.*.*.*:{token_port}": ("robot", "t0ken-pw")},
        key_type="Image",
    )
    config = provider_config(tmp_path, provider, f"127.*.*.*:{port}", f"127.*.*.*:{token_port}")
    keyring = Keyring(load(config), bin_dir=provider.bin_dir)
    for number, registry in enumerate((by_password, by_token)):
        image = f"{registry.address}/team/app:v1"
        (found,) = keyring.lookup(image)
        authfile = authfile_for(found, registry, tmp_path / f"auth-{number}.json")
        assert pull(image, authfile, tmp_path / f"out-{number}").returncode == 0
        assert podman_pull(image, authfile, tmp_path / f"podman-{number}").returncode == 0
    (tmp_path / "empty.json").write_text("{}")
    assert "unauthorized" in pull(f"{by_password.address}/team/app:v1", tmp_path / "empty.json", tmp_path / "no").stderr


def test_the_same_pull_with_our_docker_helper(
    by_password: Registry, by_token: Registry, provider: ProviderScript, tmp_path: Path
) -> None:
    """I28."""
    port, token_port = (registry.address.rpartition(":")[2] for registry in (by_password, by_token))
    provider.answer(
        {f"127.*.*.*:{port}": ("alice", "s3cret-1"), f"127.*.*.*:{token_port}": ("robot", "t0ken-pw")},
        key_type="Registry",
    )
    config = provider_config(tmp_path, provider, f"127.*.*.*:{port}", f"127.*.*.*:{token_port}")
    env = {"OSTIARY_REGISTRY_CONFIG": str(config), "OSTIARY_REGISTRY_BIN_DIR": str(provider.bin_dir)}
    authfile = tmp_path / "helpers.json"
    authfile.write_text(json.dumps({"credHelpers": {by_password.address: "ostiary", by_token.address: "ostiary"}}))
    for number, registry in enumerate((by_password, by_token)):
        image = f"{registry.address}/team/app:v1"
        done = pull(image, authfile, tmp_path / f"out-{number}", **env)
        assert done.returncode == 0, done.stderr
        done = podman_pull(image, authfile, tmp_path / f"podman-{number}", **env)
        assert done.returncode == 0, done.stderr


def test_a_helper_serves_patterns_that_are_for_a_part_of_a_registry(
    by_password: Registry, provider: ProviderScript, tmp_path: Path
) -> None:
    provider.answer({f"{by_password.address}/team": ("alice", "s3cret-1")}, key_type="Image")
    config = provider_config(tmp_path, provider, f"{by_password.address}/team")
    env = {"OSTIARY_REGISTRY_CONFIG": str(config), "OSTIARY_REGISTRY_BIN_DIR": str(provider.bin_dir)}
    authfile = tmp_path / "helpers.json"
    authfile.write_text(json.dumps({"credHelpers": {by_password.address: "ostiary"}}))
    done = pull(f"{by_password.address}/team/app:v1", authfile, tmp_path / "out", **env)
    assert done.returncode == 0, done.stderr


def test_a_password_that_changed_at_the_registry_is_noticed(
    by_password: Registry, passwords: Passwords, provider: ProviderScript, tmp_path: Path
) -> None:
    image = f"{by_password.address}/team/app:v1"
    provider.answer({by_password.address: ("alice", "s3cret-1")}, key_type="Registry", duration="1h")
    keyring = Keyring(load(provider_config(tmp_path, provider, by_password.address)), bin_dir=provider.bin_dir)
    (found,) = keyring.lookup(image)
    assert pull(image, authfile_for(found, by_password, tmp_path / "auth.json"), tmp_path / "one").returncode == 0

    passwords.set("alice", "s3cret-2")
    provider.answer({by_password.address: ("alice", "s3cret-2")}, key_type="Registry", duration="1h")
    (cached,) = keyring.lookup(image)
    assert cached.cached
    assert pull(image, authfile_for(cached, by_password, tmp_path / "auth.json"), tmp_path / "two").returncode != 0
    assert keyring.report_rejected(cached)
    (fresh,) = keyring.lookup(image)
    assert not fresh.cached
    assert pull(image, authfile_for(fresh, by_password, tmp_path / "auth.json"), tmp_path / "three").returncode == 0


@pytest.mark.parametrize("kind", ["password", "token"])
def test_probe_tells_which_credential_the_registry_takes(
    kind: str, request: pytest.FixtureRequest, provider: ProviderScript, tmp_path: Path
) -> None:
    registry: Registry = request.getfixturevalue(f"by_{kind}")
    login = ("alice", "s3cret-1") if kind == "password" else ("robot", "t0ken-pw")
    provider.answer({f"{registry.address}/team": login, registry.address: ("mallory", "wrong-pw")}, key_type="Image")
    config = provider_config(tmp_path, provider, registry.address)
    options = ("--config", str(config), "--bin-dir", str(provider.bin_dir), "--output", "json")
    done = run("ostiary", "registry", "probe", f"{registry.address}/team/app:v1", *options)
    assert done.returncode == 0, done.stderr
    assert login[1] not in done.stdout + done.stderr
    assert "wrong-pw" not in done.stdout + done.stderr
    taken = [attempt["answered"] == "accepted" for attempt in json.loads(done.stdout)["attempts"]]
    assert taken[0] is True
    assert True not in taken[1:]
