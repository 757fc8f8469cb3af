"""``ostiary exec``: what it prints, what it never prints, and that explaining runs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.cli import main
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1, V1ALPHA1, V1BETA1, encode_answer
from ostiary.wire.client_authentication import ExecAnswer as WireAnswer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

CANARY = "c4n4ry-c4n4ry-c4n4ry"
PROGRAM = [sys.executable, "-m", "ostiary"]
Captured = pytest.CaptureFixture[str]
Write = Callable[..., list[str]]


@pytest.fixture
def write(tmp_path: Path, plugin: PluginScript) -> Write:
    """Write a kubeconfig for the test's plugin and return the option that names it."""

    def make(*, server: str = "https://c.example", cluster: Any = None, user: Any = None, **fields: Any) -> list[str]:
        user = {**exec_user(plugin.path, **fields), **(user or {})}
        path = write_kubeconfig(tmp_path / "config", server=server, user=user, cluster=cluster)
        return ["--kubeconfig", str(path)]

    return make


@pytest.fixture
def plugin(tmp_path: Path) -> PluginScript:
    return PluginScript(tmp_path / "plugin").answer(token=CANARY, expires_at="2030-01-01T00:00:00Z")


def kuberc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    path = tmp_path / "kuberc"
    path.write_text(yaml.safe_dump({"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference", **fields}))
    monkeypatch.setenv("KUBERC", str(path))


# --- run ---


def test_run_prints_the_credential_as_a_client_receives_it(write: Write) -> None:
    done = subprocess.run(
        [*PROGRAM, "exec", "run", *write(), "--output", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    expected = WireAnswer(Secret(CANARY), None, None, datetime(2030, 1, 1, tzinfo=UTC))
    assert (done.returncode, done.stdout, done.stderr) == (0, encode_answer(expected, api_version=V1), "")


def test_run_in_text_and_json_says_the_same(write: Write, capsys: Captured) -> None:
    options = write()
    assert main(["exec", "run", *options]) == 0
    text = capsys.readouterr().out
    assert main(["exec", "run", *options, "-o", "json"]) == 0
    assert json.loads(text) == json.loads(capsys.readouterr().out)
    assert text.startswith("{\n")


def test_run_prints_a_certificate_with_its_key_and_expiry(
    write: Write, plugin: PluginScript, capsys: Captured, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    chain, key = client_certificate("dev")
    plugin.answer(certificate=chain, key=key, expires_at="2030-01-01T00:00:00+01:00")
    assert main(["exec", "run", *write(), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == {
        "expirationTimestamp": "2029-12-31T23:00:00Z",
        "clientCertificateData": chain,
        "clientKeyData": key,
    }


def test_run_prints_the_header_for_other_programs(write: Write, capsys: Captured) -> None:
    assert main(["exec", "run", *write(), "--output", "header"]) == 0
    assert capsys.readouterr().out == f"Authorization: Bearer {CANARY}\n"


def test_a_certificate_alone_has_no_header(
    write: Write, plugin: PluginScript, capsys: Captured, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    chain, key = client_certificate("dev")
    plugin.answer(certificate=chain, key=key)
    assert main(["exec", "run", *write(), "--output", "header"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a client certificate and no token" in shown.err


def test_runs_help_warns_that_the_credential_is_printed(capsys: Captured) -> None:
    assert main(["exec", "run", "--help"]) == 0
    assert "THE CREDENTIAL IS A SECRET" in capsys.readouterr().out


def test_a_failure_is_told_with_cause_place_hint_and_code(write: Write, plugin: PluginScript, capsys: Captured) -> None:
    plugin.exit(7)
    assert main(["exec", "run", *write()]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("ostiary: no credential for user 'dev'\n  cause  exec plugin ")
    assert "failed with exit code 7" in shown.err
    assert "users[0].user.exec" in shown.err
    assert shown.err.endswith("  code   exec-plugin-failed\n")
    assert CANARY not in shown.err


def test_a_failure_is_told_as_json_where_json_was_asked_for(
    write: Write, plugin: PluginScript, capsys: Captured
) -> None:
    plugin.print_exactly(CANARY.encode())
    assert main(["exec", "run", *write(), "--output", "json"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert CANARY not in shown.err
    error = json.loads(shown.err)["error"]
    assert error["code"] == "exec-plugin-answer-undecodable"
    assert error.keys() == {"summary", "cause", "where", "hint", "code"}


def test_the_home_directory_is_not_spelled_out_in_an_error(
    capsys: Captured, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ["HOME"], ".kube")
    folder.mkdir()
    write_kubeconfig(folder / "config", server="https://c", user=exec_user(plugin.path))
    plugin.exit(1)
    assert main(["exec", "run"]) == 1
    assert "  where  ~/.kube/config:" in capsys.readouterr().err


def test_a_user_without_a_plugin_is_told_so(tmp_path: Path, capsys: Captured) -> None:
    path = write_kubeconfig(tmp_path / "config", server="https://c", user={"token": CANARY})
    for verb in ("run", "explain"):
        assert main(["exec", verb, "--kubeconfig", str(path)]) == 1
        shown = capsys.readouterr()
        assert "user 'dev' has no exec plugin" in shown.err
        assert CANARY not in shown.err + shown.out


def test_run_says_when_no_client_would_run_this_plugin(write: Write, capsys: Captured) -> None:
    assert main(["exec", "run", *write(user={"token": "static"}), "-o", "header"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"Authorization: Bearer {CANARY}\n"
    assert shown.err == "ostiary: a client would not run this plugin: the static token takes precedence\n"


def test_run_keeps_to_the_users_plugin_policy(
    write: Write, plugin: PluginScript, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    kuberc(tmp_path, monkeypatch, credentialPluginPolicy="DenyAll")
    assert main(["exec", "run", *write()]) == 1
    assert "exec-plugin-denied" in capsys.readouterr().err
    assert plugin.runs == 0


def test_run_ends_a_plugin_at_the_time_limit(
    write: Write, plugin: PluginScript, tmp_path: Path, capsys: Captured
) -> None:
    os.mkfifo(plugin.folder / "fifo")
    plugin.before("read line < fifo")
    assert main(["exec", "run", *write(), "--timeout", "0.3"]) == 1
    assert "did not end within 0.3 s" in capsys.readouterr().err


def test_another_context_user_and_cluster_can_be_chosen(plugin: PluginScript, tmp_path: Path, capsys: Captured) -> None:
    config = {
        "current-context": "one",
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in ("one", "two")],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}} for name in ("one", "two")],
        "users": [{"name": "one", "user": {}}, {"name": "two", "user": exec_user(plugin.path)}],
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    line = ["exec", "explain", "--kubeconfig", str(path), "-o", "json"]
    assert main([*line, "--context", "two"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "two"
    assert main([*line, "--user", "two"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "one"
    assert main([*line, "--context", "two", "--cluster", "one"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == "one"


# --- explain ---


def explained(capsys: Captured, *options: str) -> dict[str, Any]:
    assert main(["exec", "explain", *options, "--output", "json"]) == 0
    shown = capsys.readouterr()
    assert CANARY not in shown.out + shown.err
    found: dict[str, Any] = json.loads(shown.out)
    return found


def test_explain_tells_everything_and_runs_nothing(write: Write, plugin: PluginScript, capsys: Captured) -> None:
    """E62."""
    options = write(
        args=["get-token", "--region", "north pole"],
        env=[{"name": "API_SECRET", "value": CANARY}, {"name": "REGION", "value": "north"}],
        provideClusterInfo=True,
        cluster={
            "proxy-url": f"http://me:{CANARY}@proxy.example:3128",
            "certificate-authority-data": "Y2E=",
            "extensions": [
                {
                    "name": "client.authentication.k8s.io/exec",
                    "extension": {"audience": "me", "password": CANARY, "list": [{"token": CANARY}]},
                }
            ],
        },
    )
    found = explained(capsys, *options)
    assert plugin.runs == 0
    assert found["command"] == found["executable"] == str(plugin.path)
    assert found["arguments"] == ["get-token", "--region", "north pole"]
    assert found["environment"] == ["API_SECRET", "REGION", "KUBERNETES_EXEC_INFO"]
    assert found["info"] == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {
            "cluster": {
                "server": "https://c.example",
                "certificate-authority-data": "(4 characters of base64)",
                "proxy-url": "http://***@proxy.example:3128",
                "config": {"audience": "me", "password": "***", "list": [{"token": "***"}]},
            },
            "interactive": False,
        },
    }
    assert (found["interactive"], found["interactiveReason"]) == (False, "interactiveMode is Never")
    assert found["policy"] == {"name": "AllowAll", "allowed": True, "reason": ""}
    assert (found["context"], found["user"], found["cluster"]) == ("test", "dev", "test")
    assert found["notes"] == found["unknownFields"] == []
    assert "users[0].user.exec" in found["where"]


def test_explain_as_text_is_for_people(write: Write, plugin: PluginScript) -> None:
    options = write(args=["get token"], env=[{"name": "API_SECRET", "value": CANARY}], comand="x")
    done = subprocess.run(
        [*PROGRAM, "exec", "explain", *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert plugin.runs == 0
    assert CANARY not in done.stdout
    rows = done.stdout.splitlines()
    assert rows[0] == "the exec plugin of user 'dev', in context 'test' with cluster 'test'"
    assert f"  command     {plugin.path}" in rows
    assert "  arguments   'get token'" in rows
    assert "  environment yours, and: API_SECRET, KUBERNETES_EXEC_INFO" in rows
    assert "  interactive no: interactiveMode is Never" in rows
    assert "  policy      AllowAll allows it" in rows
    assert any(row.startswith("  unknown ") and "users[0].user.exec.comand" in row for row in rows)


def test_explain_says_what_beats_the_plugin(write: Write, capsys: Captured) -> None:
    (note,) = explained(capsys, *write(user={"token": CANARY}))["notes"]
    assert note.startswith("the static token in the kubeconfig takes precedence")


@pytest.mark.parametrize(
    ("user", "what"),
    [
        ({"username": "me", "password": CANARY}, "the username and password"),
        ({"tokenFile": "/dev/null"}, "the token file"),
    ],
)
def test_explain_names_each_static_credential(write: Write, capsys: Captured, user: Any, what: str) -> None:
    notes = explained(capsys, *write(user=user))["notes"]
    assert notes[0].startswith(what)


def test_a_static_certificate_beats_the_plugin_too(
    write: Write, capsys: Captured, tmp_path: Path, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    for name, pem in zip(("cert", "key"), client_certificate("dev"), strict=True):
        (tmp_path / name).write_text(pem)
    notes = explained(capsys, *write(user={"client-certificate": "cert", "client-key": "key"}))["notes"]
    assert notes[0].startswith("the client certificate")


def test_explain_says_that_nothing_is_sent_to_a_server_without_tls(write: Write, capsys: Captured) -> None:
    (note,) = explained(capsys, *write(server="http://c.example"))["notes"]
    assert "not https" in note


def test_explain_says_what_is_missing_and_how_to_get_it(tmp_path: Path, capsys: Captured) -> None:
    user = exec_user("no-such-plugin", installHint="brew install it")
    path = write_kubeconfig(tmp_path / "config", server="https://c", user=user)
    found = explained(capsys, "--kubeconfig", str(path))
    assert found["executable"] is None
    assert found["notes"] == ["installHint of the kubeconfig: brew install it"]


def test_explain_says_that_a_path_cannot_be_executed(write: Write, plugin: PluginScript, capsys: Captured) -> None:
    plugin.path.chmod(0o644)
    assert explained(capsys, *write())["notes"] == ["the command does not exist, or cannot be executed"]


def test_explain_warns_of_variables_that_do_not_do_what_they_seem_to(tmp_path: Path, capsys: Captured) -> None:
    env = [{"name": name, "value": "x"} for name in ("PATH", "KUBERNETES_EXEC_INFO")]
    path = write_kubeconfig(tmp_path / "config", server="https://c", user=exec_user("sh", env=env))
    found = explained(capsys, "--kubeconfig", str(path))
    assert found["environment"] == ["PATH", "KUBERNETES_EXEC_INFO"]
    assert [note.split(",")[0] for note in found["notes"]] == [
        "exec.env sets PATH for the plugin",
        "exec.env sets KUBERNETES_EXEC_INFO",
    ]


def test_explain_tells_the_policys_verdict(
    write: Write, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    kuberc(tmp_path, monkeypatch, credentialPluginPolicy="Allowlist", credentialPluginAllowlist=[{"command": "other"}])
    policy = explained(capsys, *write())["policy"]
    assert (policy["name"], policy["allowed"]) == ("Allowlist", False)
    assert "not on the plugin allowlist" in policy["reason"]


@pytest.mark.parametrize(
    ("mode", "interactive", "why"),
    [
        ("Never", False, "interactiveMode is Never"),
        ("IfAvailable", True, "interactiveMode is IfAvailable, and stdin is a terminal"),
        ("Always", True, "interactiveMode is Always, and stdin is a terminal"),
    ],
)
def test_explain_tells_at_a_terminal_whether_a_person_may_be_asked(
    write: Write, mode: str, interactive: bool, why: str
) -> None:
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "exec", "explain", *write(mode=mode), "-o", "json"],
            stdin=theirs,
            capture_output=True,
            timeout=100,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    found = json.loads(done.stdout)
    assert (found["interactive"], found["interactiveReason"]) == (interactive, why)
    assert found["info"]["spec"]["interactive"] is interactive


@pytest.mark.parametrize(
    ("mode", "interactive", "why"),
    [
        ("IfAvailable", False, "interactiveMode is IfAvailable, and stdin is not a terminal"),
        ("Always", None, "cannot ask a person: standard input is not a terminal"),
    ],
)
def test_explain_tells_without_a_terminal_whether_it_can_run_at_all(
    write: Write, mode: str, interactive: bool | None, why: str
) -> None:
    done = subprocess.run(
        [*PROGRAM, "exec", "explain", *write(mode=mode), "-o", "json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=100,
    )
    found = json.loads(done.stdout)
    assert found["interactive"] is interactive
    assert why in found["interactiveReason"]
    assert found["info"]["spec"]["interactive"] is False


# --- check ---


def test_check_prints_every_rule_and_fails_where_a_rule_fails(plugin: PluginScript) -> None:
    plugin.print_exactly(b"hello " + CANARY.encode())
    done = subprocess.run(
        [*PROGRAM, "exec", "check", plugin.path], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert CANARY not in done.stdout
    assert "FAIL    one-object-on-stdout" in done.stdout
    assert "fix: print only the ExecCredential on stdout" in done.stdout
    assert "PASS    starts" in done.stdout
    assert "SKIPPED status" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("plugin: ")


def test_check_passes_a_good_plugin_with_its_options_and_arguments(plugin: PluginScript, capsys: Captured) -> None:
    plugin.before('[ "$REGION" = north ] && [ "$1$2" = -ojson ] || exit 1')
    line = ["exec", "check", "--api-version", "v1", "--env", "REGION=north", "-o", "json"]
    # What follows the command is the plugin's, even where it looks like ours.
    assert main([*line, str(plugin.path), "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert CANARY not in shown.out + shown.err
    report = json.loads(shown.out)
    assert (report["command"], report["ok"], report["runs"]) == (str(plugin.path), True, 2)
    assert report["findings"][0] == {
        "rule": "starts",
        "asks": "the command can be started",
        "result": "pass",
        "seen": "",
        "fix": "",
    }


def test_check_asks_for_v1_and_v1beta1_unless_told_otherwise(plugin: PluginScript, capsys: Captured) -> None:
    """E68."""
    assert main(["exec", "check", str(plugin.path)]) == 1
    assert f"it was asked for {V1BETA1} and answered with {V1}" in capsys.readouterr().out


def test_a_plugin_that_does_not_exist_is_a_failed_check(capsys: Captured) -> None:
    assert main(["exec", "check", "no-such-plugin"]) == 1
    assert "FAIL    starts" in capsys.readouterr().out


# --- what the plugin says, and the dialect of 2018 ---


def test_check_shows_what_a_failing_plugin_says_and_masks_it(plugin: PluginScript, capsys: Captured) -> None:
    plugin.before(f"echo 'please sign in first; password={CANARY}' >&2").exit(1).print_exactly(b"")
    assert main(["exec", "check", str(plugin.path)]) == 1
    shown = capsys.readouterr().out
    assert "it said on stderr:\n  please sign in first; password=***\n" in shown
    assert CANARY not in shown
    assert main(["exec", "check", "-o", "json", str(plugin.path)]) == 1
    assert json.loads(capsys.readouterr().out)["stderr"] == "please sign in first; password=***"


def test_check_and_a_plugin_of_ours_do_not_send_a_person_back_and_forth(tmp_path: Path, capsys: Captured) -> None:
    """Run by hand, the plugin points to ``exec check``; that shows why it fails, or what is missing in the file."""
    script = tmp_path / "plugin"
    head = f"#!{sys.executable}\nfrom ostiary.sdk import Token, exec_plugin\n"
    body = "@exec_plugin\ndef main(info):\n    return Token('the token from somewhere')\n"
    script.write_text(head + body)
    script.chmod(0o755)
    assert main(["exec", "check", "--api-version", "v1", str(script)]) == 1
    assert "must also call main()" in capsys.readouterr().out
    script.write_text(head + body + "main()\n")
    assert main(["exec", "check", "--api-version", "v1", str(script)]) == 1
    shown = capsys.readouterr().out
    assert "its token holds a line break, a space" in shown
    assert "run it by hand" not in shown
    script.write_text((head + body + "main()\n").replace("the token from somewhere", "one-word"))
    assert main(["exec", "check", "--api-version", "v1", str(script)]) == 0


@pytest.fixture
def plugin_of_2018(plugin: PluginScript) -> PluginScript:
    flat = {"kind": "ExecCredentials", "apiVersion": V1ALPHA1, "token": CANARY, "expiry": 4102444800}
    return plugin.print_exactly(json.dumps(flat).encode())


def test_run_explain_and_check_speak_the_dialect_of_2018(
    plugin_of_2018: PluginScript, write: Write, capsys: Captured
) -> None:
    """F28."""
    choice = [*write(version="v1alpha1"), "--dialect", "proposal", "-o", "json"]
    assert main(["exec", "run", *choice]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["token"], answer["expiry"]) == ("ExecCredentials", CANARY, 4102444800)
    assert json.loads(plugin_of_2018.infos[-1])["kind"] == "ExecInfo"
    assert main(["exec", "explain", *choice]) == 0
    assert json.loads(capsys.readouterr().out)["info"]["kind"] == "ExecInfo"
    assert main(["exec", "check", "--dialect", "proposal", str(plugin_of_2018.path)]) == 0
    assert "PASS    dialect" in capsys.readouterr().out


def test_the_dialect_of_2018_is_refused_for_versions_that_never_had_it(write: Write, capsys: Captured) -> None:
    assert main(["exec", "run", *write(), "--dialect", "proposal"]) == 1
    assert "v1alpha1 alone" in capsys.readouterr().err
    assert main(["exec", "check", "--dialect", "proposal", "--api-version", "v1", "true"]) == 1
    assert "v1alpha1 alone" in capsys.readouterr().err
