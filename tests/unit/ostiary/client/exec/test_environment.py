"""What an exec plugin finds in its environment and on stdin, and variables whose value stands elsewhere."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keyring
import keyring.backend
import pytest
from keyring.errors import KeyringLocked

from ostiary import AllowAll, Allowlist, ConfigurationError, CredentialError, PluginFailed, PluginRefused
from ostiary.client.connection import Connection
from tests.conftest import Connect
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

DUMP = "env -0 > environment; cat > stdin"
SECRET = "open-sesame-7f3a"
EXTENSION = "ostiary.dev/exec"


def user(plugin: PluginScript, *, env_from: Any = None, **fields: Any) -> dict[str, Any]:
    stanza = exec_user(plugin.path, **fields)
    if env_from is not None:
        stanza["extensions"] = [{"name": EXTENSION, "extension": {"env": env_from}}]
    return stanza


def variable(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "ACME_PASSWORD", "valueFrom": source}]


def run(connection: Connection) -> None:
    with connection.httpx() as client:
        assert client.get("/version").status_code == 200


def environment(plugin: PluginScript) -> dict[str, str]:
    lines = (plugin.folder / "environment").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


# --- the switches for older texts ---


def test_by_default_the_environment_is_ours_and_stdin_is_empty(connect_to: Connect, plugin: PluginScript) -> None:
    plugin.before(DUMP)
    run(connect_to(user=user(plugin)))
    assert environment(plugin)["HOME"] == os.environ["HOME"]
    assert json.loads(environment(plugin)["KUBERNETES_EXEC_INFO"])["kind"] == "ExecCredential"
    assert (plugin.folder / "stdin").read_text() == ""


def test_a_clean_environment_has_only_what_the_kubeconfig_says(
    connect_to: Connect, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2. Draft of 2019: "The environment variables set in the client process are not passed."."""
    monkeypatch.setenv("ACME_OF_THE_PROGRAM", "1")
    plugin.before(DUMP)
    run(connect_to(user=user(plugin, env=[{"name": "FOO", "value": "bar"}]), clean_environment=True))
    shell_sets = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert set(environment(plugin)) - shell_sets == {"FOO", "KUBERNETES_EXEC_INFO"}


@pytest.mark.parametrize(("where", "has_variable"), [("stdin", False), ("both", True)])
def test_the_input_on_stdin_instead_of_or_beside_the_variable(
    where: Any, has_variable: bool, connect_to: Connect, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3. Draft of 2019: "passing request/response over `stdin`/`stdout`"."""
    monkeypatch.setenv("KUBERNETES_EXEC_INFO", "that of somebody else")
    plugin.before(DUMP)
    run(connect_to(user=user(plugin, mode="IfAvailable"), plugin_input=where))
    told = (plugin.folder / "stdin").read_text()
    assert json.loads(told)["spec"] == {"interactive": False}
    assert environment(plugin).get("KUBERNETES_EXEC_INFO", "") == (told if has_variable else "")


def test_a_plugin_that_must_ask_a_person_cannot_have_its_input_on_stdin(
    connect_to: Connect, plugin: PluginScript, terminal: int
) -> None:
    connection = connect_to(user=user(plugin, mode="Always"), plugin_input="stdin")
    with connection.httpx() as client, pytest.raises(CredentialError) as caught:
        client.get("/version")
    assert "it carries the plugin's input" in str(caught.value.cause)
    assert plugin.runs == 0


def test_an_unknown_input_is_refused(connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError, match="plugin_input"):
        connect_to(plugin_input="pipe")


# --- values from elsewhere ---


class Ring(keyring.backend.KeyringBackend):
    priority = 1

    def get_password(self, service: str, username: str) -> str | None:
        if service == "locked":
            raise KeyringLocked(SECRET)
        return SECRET if (service, username) == ("acme", "me") else None

    def set_password(self, service: str, username: str, password: str) -> None:
        raise NotImplementedError


@pytest.fixture
def ring() -> Any:
    before = keyring.get_keyring()
    keyring.set_keyring(Ring())  # type: ignore[no-untyped-call]
    yield
    keyring.set_keyring(before)


def test_a_variable_is_read_from_a_file_beside_the_kubeconfig_anew_for_each_run(
    connect_to: Connect, plugin: PluginScript, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.before(DUMP)
    (tmp_path / "password").write_text(SECRET + "\n")
    with caplog.at_level(logging.WARNING):
        run(connect_to(user=user(plugin, env_from=variable(file="password")), value_from=True))
    assert caplog.text == ""
    assert environment(plugin)["ACME_PASSWORD"] == SECRET
    (tmp_path / "password").write_text("another")
    run(connect_to(user=user(plugin, env_from=variable(file="password"), args=["again"]), value_from=True))
    assert environment(plugin)["ACME_PASSWORD"] == "another"


@pytest.mark.parametrize(
    "source",
    [
        {"command": ["printf", f"{SECRET}\\n"]},
        {"keyring": {"service": "acme", "username": "me"}},
        {"env": "ACME_HERE"},
    ],
)
def test_a_variable_is_read_from_a_command_a_keyring_or_another_variable(
    source: dict[str, Any], connect_to: Connect, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch, ring: None
) -> None:
    """F19."""
    monkeypatch.setenv("ACME_HERE", SECRET)
    plugin.before(DUMP)
    run(connect_to(user=user(plugin, env_from=variable(**source)), value_from=True, clean_environment="env" in source))
    assert environment(plugin)["ACME_PASSWORD"] == SECRET
    assert ("ACME_HERE" in environment(plugin)) is ("env" not in source)


def test_without_leave_of_the_program_nothing_is_read(connect_to: Connect, plugin: PluginScript) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect_to(user=user(plugin, env_from=variable(file="/etc/passwd")))
    assert "value_from=True" in str(caught.value.hint)
    assert "ACME_PASSWORD" in str(caught.value.cause)


def test_the_policy_judges_the_command_that_gives_the_value_too(connect_to: Connect, plugin: PluginScript) -> None:
    connection = connect_to(
        user=user(plugin, env_from=variable(command=["touch", str(plugin.folder / "ran")])),
        value_from=True,
        policy=Allowlist([str(plugin.path)]),
    )
    with connection.httpx() as client, pytest.raises(PluginRefused):
        client.get("/version")
    assert not (plugin.folder / "ran").exists()
    assert plugin.runs == 0


def test_the_policy_is_told_where_values_come_from(connect_to: Connect, plugin: PluginScript) -> None:
    plans = []

    class Looking:
        def check(self, plan: Any) -> str:
            plans.append(plan)
            return AllowAll().check(plan)

    run(connect_to(user=user(plugin, env_from=variable(command=["echo", SECRET])), value_from=True, policy=Looking()))
    assert plans[0].values_from == ("ACME_PASSWORD: command 'echo'",)
    assert plans[0].env_names == ("ACME_PASSWORD",)
    assert SECRET not in repr(plans)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"file": "missing"}, "No such file"),
        ({"file": "."}, "not a regular file"),
        ({"file": "pipe"}, "not a regular file"),
        ({"file": "empty"}, "it is empty"),
        ({"file": "binary"}, "not UTF-8"),
        ({"file": "nul"}, "NUL"),
        ({"file": "large"}, "more than"),
        ({"command": ["acme-is-not-installed"]}, "no such command"),
        ({"command": ["sh", "-c", f"echo {SECRET}; echo {SECRET} >&2; exit 3"]}, "exit code 3"),
        ({"command": ["sleep", "60"]}, "within 0.2 s"),
        ({"command": ["true"]}, "it is empty"),
        ({"keyring": {"service": "acme", "username": "you"}}, "no such entry"),
        ({"keyring": {"service": "locked", "username": "me"}}, "KeyringLocked"),
        ({"env": "ACME_IS_NOT_SET"}, "not set"),
    ],
)
def test_a_value_that_cannot_be_read_is_one_error_that_names_the_variable_and_no_value(
    source: dict[str, Any],
    why: str,
    connect_to: Connect,
    plugin: PluginScript,
    tmp_path: Path,
    ring: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff" + SECRET.encode())
    (tmp_path / "nul").write_text(SECRET + "\0")
    (tmp_path / "large").write_text(SECRET * 10000)
    limit = 0.2 if why == "within 0.2 s" else 60.0
    connection = connect_to(user=user(plugin, env_from=variable(**source)), value_from=True, plugin_seconds=limit)
    with connection.httpx() as client, pytest.raises(CredentialError) as caught:
        client.get("/version")
    assert caught.value.code == "exec-env-unavailable"
    assert "ACME_PASSWORD" in str(caught.value.cause)
    assert why in str(caught.value.cause)
    assert SECRET not in str(caught.value) + capfd.readouterr().err
    assert plugin.runs == 0


def test_the_value_is_taken_out_of_what_the_plugin_says_when_it_fails(
    connect_to: Connect, plugin: PluginScript, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text(SECRET)
    plugin.before('echo "refused: $ACME_PASSWORD" >&2; exit 3')
    connection = connect_to(user=user(plugin, env_from=variable(file="password")), value_from=True)
    with connection.httpx() as client, pytest.raises(PluginFailed) as caught:
        client.get("/version")
    assert "refused: " in str(caught.value.cause)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "env",
    [
        [{"name": "X", "valueFrom": {}}],
        [{"name": "X"}],
        [{"name": "X", "valueFrom": {"file": "a", "env": "B"}}],
        [{"name": "X", "valueFrom": {"keyring": {"service": "acme"}}}],
        [{"name": "", "valueFrom": {"file": "a"}}],
        [{"name": "A=B", "valueFrom": {"file": "a"}}],
        [{"name": "X", "valueFrom": {"command": "echo"}}],
        "none",
    ],
)
def test_a_mistake_in_the_extension_is_told_with_its_place(env: Any, connect_to: Connect, plugin: PluginScript) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect_to(user=user(plugin, env_from=env), value_from=True)
    assert "users[0].user.extensions[0].extension.env" in str(caught.value)


def test_value_from_where_kubectl_would_lose_it_is_refused_with_the_right_place(
    connect_to: Connect, plugin: PluginScript
) -> None:
    stanza = exec_user(plugin.path, env=[{"name": "X", "valueFrom": {"file": "a"}}])
    with pytest.raises(ConfigurationError) as caught:
        connect_to(user=stanza, value_from=True)
    assert EXTENSION in str(caught.value)


def test_variables_without_a_plugin_are_a_mistake(connect_to: Connect) -> None:
    stanza = {"token": "t", "extensions": [{"name": EXTENSION, "extension": {"env": variable(file="a")}}]}
    with pytest.raises(ConfigurationError, match="no exec plugin"):
        connect_to(user=stanza)


# --- from the command line ---

Ostiary = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ostiary(plugin: PluginScript, tmp_path: Path) -> Ostiary:
    (tmp_path / "password").write_text(SECRET)
    stanza = user(plugin, env_from=variable(file="password"))
    stanza["extensions"] += [{"name": "ostiary.dev/request-signing", "extension": {"command": "acme-sign"}}]
    path = write_kubeconfig(tmp_path / "config", server="https://k.test", user=stanza)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ostiary", "exec", *words, "--kubeconfig", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return call


def test_the_command_line_has_the_same_switches(ostiary: Ostiary, plugin: PluginScript) -> None:
    plugin.before(DUMP)
    done = ostiary("run", "--clean-environment", "--input", "stdin", "--value-from")
    assert done.returncode == 0, done.stderr
    assert environment(plugin)["ACME_PASSWORD"] == SECRET
    assert "HOME" not in environment(plugin)
    assert json.loads((plugin.folder / "stdin").read_text())["kind"] == "ExecCredential"
    refused = ostiary("run")
    assert refused.returncode == 1
    assert "--value-from" in refused.stderr


def test_explain_tells_the_switches_and_reads_no_value(ostiary: Ostiary, plugin: PluginScript) -> None:
    done = ostiary("explain", "--clean-environment", "--input", "stdin", "--value-from")
    assert done.returncode == 0, done.stderr
    assert "only these: ACME_PASSWORD" in done.stdout
    assert "ACME_PASSWORD: file" in done.stdout
    assert "also signed by the command 'acme-sign'" in done.stdout
    assert SECRET not in done.stdout
    assert plugin.runs == 0
