"""A marked secret goes through every path, good and bad, and is found nowhere but on the wire."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.apiserver import ApiServer
from tests.support.canary_program import ADAPTERS
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

ROOT = Path(__file__).parents[2]
CANARY = "c4n4ry0c4n4ry0c4n4ry0c4n4ry"
Issue = Callable[[str], tuple[str, str]]


def rejected_first(plugin: PluginScript) -> None:
    """The first token is refused; the second run brings another one."""
    plugin.answer(token=f"{CANARY}-old")
    plugin.before(f"[ $(wc -l < runs) -gt 1 ] && sed -i s/{CANARY}-old/{CANARY}/ answer")


def says_it_on_stderr_and_fails(plugin: PluginScript) -> None:
    plugin.before(f"echo 'the token {CANARY} was refused' >&2").exit(1)


PATHS: dict[str, Callable[[PluginScript], object]] = {
    "good": lambda plugin: None,
    "rejected, then good": rejected_first,
    "always rejected": lambda plugin: plugin.answer(token=f"{CANARY}-unknown"),
    "says it on stderr and fails": says_it_on_stderr_and_fails,
    "cut JSON": lambda plugin: plugin.print_exactly(b'{"token": "' + CANARY.encode()),
    "text around it": lambda plugin: plugin.print_exactly(f"token: {CANARY}\n{CANARY}".encode()),
    "token with a newline": lambda plugin: plugin.answer(token=f"{CANARY}\n"),
    "another version": lambda plugin: plugin.answer(token=CANARY, version="v1beta1"),
    "version that is the secret": lambda plugin: plugin.answer(token=CANARY, version=CANARY),
    "lonely key": lambda plugin: plugin.answer(token=CANARY, key=CANARY),
    "bad pair": lambda plugin: plugin.answer(certificate=CANARY, key=CANARY),
    "expired": lambda plugin: plugin.answer(token=CANARY, expires_at="2006-01-02T15:04:05Z"),
    "bad time": lambda plugin: plugin.answer(token=CANARY, expires_at=CANARY),
}


def run_program(folder: Path, *runs: str) -> str:
    """Everything the program said about *runs*; its own folder is its HOME, its TMPDIR and where it runs."""
    folder.mkdir()
    env = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "dev", "-m", "tests.support.canary_program", *runs]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("began ") == len(runs)
    # What a plugin says on its own stderr is passed on to ours, as kubectl does; that is its own doing.
    return done.stdout


def finished(said: str) -> set[str]:
    return {line.removeprefix("finished ") for line in said.splitlines() if line.startswith("finished ")}


def lines_with_canary(said: str) -> list[str]:
    """Each with the run in which it was said."""
    run, found = "", []
    for line in said.splitlines():
        run = line if line.startswith("began ") else run
        if CANARY in line:
            found.append(f"{run}: {line}")
    return found


def files_with_canary(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and CANARY.encode() in path.read_bytes():
            yield path


def kubeconfig_for(folder: Path, api: ApiServer, ca_data: str, user: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = {"certificate-authority-data": ca_data}
    return write_kubeconfig(folder / "config", server=api.url, user=user, cluster=cluster)


def plugin_on(path: str, folder: Path) -> PluginScript:
    """One that takes this of the `PATHS`."""
    folder.mkdir(parents=True)
    plugin = PluginScript(folder / "plugin").answer(token=CANARY)
    PATHS[path](plugin)
    return plugin


def test_through_the_credential_itself_and_httpx(api: ApiServer, ca_data: str, tmp_path: Path) -> None:
    """E2, E53."""
    api.rules.tokens = {CANARY}
    plugins, runs = [], []
    for number, path in enumerate(PATHS):
        for adapter in ("credential", "httpx"):
            folder = tmp_path / f"{number}-{adapter}"
            plugins.append(plugin_on(path, folder))
            secret = [{"name": "PASSWORD", "value": CANARY}]
            user = exec_user(plugins[-1].path, args=[f"--password={CANARY}"], env=secret)
            runs.append(f"{adapter}={kubeconfig_for(folder, api, ca_data, user)}")
    said = run_program(tmp_path / "program", *runs)
    assert lines_with_canary(said) == []
    assert list(files_with_canary(tmp_path / "program")) == []
    assert all(plugin.runs > 0 for plugin in plugins)
    good = list(PATHS).index("good")
    assert {each for each in runs if f"/{good}-" in each} <= finished(said)


def test_through_every_adapter(api: ApiServer, ca_data: str, tmp_path: Path) -> None:
    """E2, E53."""
    api.rules.tokens = {CANARY}
    runs: dict[str, bool] = {}
    for adapter in sorted(set(ADAPTERS) - {"credential", "httpx"}):
        for number, path in enumerate(("good", "rejected, then good", "says it on stderr and fails")):
            folder = tmp_path / f"{number}-{adapter}"
            plugin = plugin_on(path, folder)
            run = f"{adapter}={kubeconfig_for(folder, api, ca_data, exec_user(plugin.path))}"
            runs[run] = path != "says it on stderr and fails"
    said = run_program(tmp_path / "program", *runs)
    assert lines_with_canary(said) == []
    assert finished(said) == {run for run, succeeds in runs.items() if succeeds}
    assert list(files_with_canary(tmp_path / "program")) == []


def test_a_private_key_is_in_no_file(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, client_certificate: Issue
) -> None:
    api.rules.certificates = {"dev"}
    chain, key = client_certificate("dev")
    plugin.answer(certificate=chain, key=key)
    run = f"kubernetes={kubeconfig_for(tmp_path, api, ca_data, exec_user(plugin.path))}"
    said = run_program(tmp_path / "program", run)
    assert finished(said) == {run}
    assert "PRIVATE KEY" not in said
    files = [path.read_bytes() for path in (tmp_path / "program").rglob("*") if path.is_file()]
    assert not [content for content in files if b"PRIVATE KEY" in content]


def test_what_stands_in_a_kubeconfig(api: ApiServer, ca_data: str, tmp_path: Path) -> None:
    users: dict[str, dict[str, Any]] = {
        "token": {"token": CANARY},
        "basic": {"username": "u", "password": CANARY},
        "both": {"token": CANARY, "username": "u", "password": CANARY},
        "wrong-type": {"token": [CANARY]},
        "bad-base64": {"client-key-data": CANARY},
        "bad-exec": {"exec": {"command": "x", "env": [{"name": CANARY, "value": [CANARY]}], "args": CANARY}},
    }
    runs = [f"httpx={kubeconfig_for(tmp_path / name, api, ca_data, user)}" for name, user in users.items()]
    said = run_program(tmp_path / "program", *runs)
    assert lines_with_canary(said) == []
