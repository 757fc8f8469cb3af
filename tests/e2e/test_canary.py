"""A marked secret goes through every path, good and bad, and is found nowhere but on the wire."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.apiserver import ApiServer
from tests.support.canary_program import ADAPTERS
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

ROOT = Path(__file__).parents[2]
CANARY = "c4n4ry0c4n4ry0c4n4ry0c4n4ry"
Issue = Callable[[str], tuple[str, str]]


def rejected_first(plugin: PluginScript, api: ApiServer) -> None:
    """The first token is refused; the second run brings another one."""
    api.rules.tokens = {CANARY}
    plugin.answer(token=f"{CANARY}-old")
    plugin.before(f"[ $(wc -l < runs) -gt 1 ] && sed -i s/{CANARY}-old/{CANARY}/ answer")


def always_rejected(plugin: PluginScript, api: ApiServer) -> None:
    api.rules.tokens = {"another"}


def says_it_on_stderr_and_fails(plugin: PluginScript, api: ApiServer) -> None:
    plugin.before(f"echo 'the token {CANARY} was refused' >&2").exit(1)


PATHS: dict[str, Callable[[PluginScript, ApiServer], object]] = {
    "good": lambda plugin, api: None,
    "rejected, then good": rejected_first,
    "always rejected": always_rejected,
    "says it on stderr and fails": says_it_on_stderr_and_fails,
    "cut JSON": lambda plugin, api: plugin.print_exactly(b'{"token": "' + CANARY.encode()),
    "text around it": lambda plugin, api: plugin.print_exactly(f"token: {CANARY}\n{CANARY}".encode()),
    "token with a newline": lambda plugin, api: plugin.answer(token=f"{CANARY}\n"),
    "another version": lambda plugin, api: plugin.answer(token=CANARY, version="v1beta1"),
    "version that is the secret": lambda plugin, api: plugin.answer(token=CANARY, version=CANARY),
    "lonely key": lambda plugin, api: plugin.answer(token=CANARY, key=CANARY),
    "bad pair": lambda plugin, api: plugin.answer(certificate=CANARY, key=CANARY),
    "expired": lambda plugin, api: plugin.answer(token=CANARY, expires_at="2006-01-02T15:04:05Z"),
    "bad time": lambda plugin, api: plugin.answer(token=CANARY, expires_at=CANARY),
}


def run_program(adapter: str, folder: Path, kubeconfig: Path) -> str:
    """Everything the program said; its own folder is its HOME, its TMPDIR and where it runs."""
    folder.mkdir()
    env = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-X", "dev", "-m", "tests.support.canary_program", adapter]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    # What a plugin says on its own stderr is passed on to ours, as kubectl does; that is its own doing.
    return done.stdout


def files_with_canary(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and CANARY.encode() in path.read_bytes():
            yield path


def kubeconfig_for(folder: Path, api: ApiServer, ca_data: str, user: dict[str, Any]) -> Path:
    cluster = {"certificate-authority-data": ca_data}
    return write_kubeconfig(folder / "config", server=api.url, user=user, cluster=cluster)


@pytest.mark.parametrize("path", PATHS)
def test_through_the_credential_itself_and_httpx(
    path: str, api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path
) -> None:
    """E2, E53."""
    api.rules.tokens = {CANARY}
    plugin.answer(token=CANARY)
    PATHS[path](plugin, api)
    user = exec_user(plugin.path, args=[f"--password={CANARY}"], env=[{"name": "PASSWORD", "value": CANARY}])
    kubeconfig = kubeconfig_for(tmp_path, api, ca_data, user)
    for adapter in ("credential", "httpx"):
        said = run_program(adapter, tmp_path / adapter, kubeconfig)
        assert CANARY not in said
        assert list(files_with_canary(tmp_path / adapter)) == []
    assert plugin.runs > 0


@pytest.mark.parametrize("adapter", sorted(set(ADAPTERS) - {"credential", "httpx"}))
@pytest.mark.parametrize("path", ["good", "rejected, then good", "says it on stderr and fails"])
def test_through_every_adapter(
    adapter: str, path: str, api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path
) -> None:
    """E2, E53."""
    api.rules.tokens = {CANARY}
    plugin.answer(token=CANARY)
    PATHS[path](plugin, api)
    said = run_program(adapter, tmp_path / "program", kubeconfig_for(tmp_path, api, ca_data, exec_user(plugin.path)))
    assert CANARY not in said
    assert ("finished" in said) is (path != "says it on stderr and fails")
    assert list(files_with_canary(tmp_path / "program")) == []


def test_a_private_key_is_in_no_file(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, client_certificate: Issue
) -> None:
    """E2."""
    api.rules.certificates = {"dev"}
    chain, key = client_certificate("dev")
    plugin.answer(certificate=chain, key=key)
    said = run_program(
        "kubernetes", tmp_path / "program", kubeconfig_for(tmp_path, api, ca_data, exec_user(plugin.path))
    )
    assert "finished" in said
    assert "PRIVATE KEY" not in said
    files = [path.read_bytes() for path in (tmp_path / "program").rglob("*") if path.is_file()]
    assert not [content for content in files if b"PRIVATE KEY" in content]


@pytest.mark.parametrize(
    "user",
    [
        {"token": CANARY},
        {"username": "u", "password": CANARY},
        {"token": CANARY, "username": "u", "password": CANARY},
        {"token": [CANARY]},
        {"client-key-data": CANARY},
        {"exec": {"command": "x", "env": [{"name": CANARY, "value": [CANARY]}], "args": CANARY}},
    ],
    ids=["token", "basic", "both", "wrong type", "bad base64", "bad exec"],
)
def test_what_stands_in_a_kubeconfig(user: dict[str, Any], api: ApiServer, ca_data: str, tmp_path: Path) -> None:
    said = run_program("httpx", tmp_path / "program", kubeconfig_for(tmp_path, api, ca_data, user))
    assert CANARY not in said
