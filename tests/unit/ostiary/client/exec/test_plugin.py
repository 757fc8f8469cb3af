"""One run of an exec plugin, against real scripts. The cases of client-go's TestRefreshCreds are named so."""

from __future__ import annotations

import errno
import json
import os
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.client.exec.plugin import ExecPlugin, ExecSettings, HintThrottle, Terminal
from ostiary.client.exec.policy import Allowlist, DenyAll
from ostiary.client.retry_on_401 import Rejection
from ostiary.errors import (
    AnswerInvalid,
    ConfigurationError,
    CredentialError,
    PluginFailed,
    PluginNotFound,
    PluginNotInteractive,
    PluginRefused,
)
from ostiary.kubeconfig import ExecConfig
from ostiary.model import Credential, Place
from ostiary.wire.client_authentication import V1, V1ALPHA1, V1BETA1, ClusterInfo
from ostiary_gateway.testing import FakeClock
from tests.support.plugins import PluginScript

CANARY = "c4n4ry0c4n4ry0c4n4ry"
PLACE = Place("config", "users[0].user.exec")
Issue = Callable[[str], tuple[str, str]]


class Counting:
    """Metrics, written down in the order they came."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def record_call(self, *, code: int, call_status: str) -> None:
        self.events.append(("call", code, call_status))

    def policy(self, *, allowed: bool) -> None:
        self.events.append(("policy", allowed))

    def record_rotation(self, *, age_seconds: float) -> None:
        self.events.append(("rotated", age_seconds))

    def expires(self, holder: object, not_after: object) -> None:
        pass


def config(command: Path | str, **fields: Any) -> ExecConfig:
    defaults: dict[str, Any] = {"api_version": V1, "interactive_mode": "Never", "place": PLACE}
    return ExecConfig(command=str(command), **{**defaults, **fields})


def exec_plugin(script: PluginScript | Path | str, *, cluster: ClusterInfo | None = None, **fields: Any) -> ExecPlugin:
    settings = fields.pop("settings", None)
    metrics = fields.pop("metrics", None)
    command = script.path if isinstance(script, PluginScript) else script
    return ExecPlugin(config(command, **fields), user="dev", cluster=cluster, settings=settings, metrics=metrics)


def run_beta(script: PluginScript, **fields: Any) -> Credential:
    return exec_plugin(script, api_version=V1BETA1, **fields).run()


@pytest.fixture
def beta(plugin: PluginScript) -> PluginScript:
    return plugin.answer(token="foo-bar", version="v1beta1")


def token_of(credential: Credential) -> str | None:
    return credential.token.reveal() if credential.token else None


# --- TestRefreshCreds ---


def test_beta_basic_request(beta: PluginScript) -> None:
    """E28, F3."""
    assert token_of(run_beta(beta)) == "foo-bar"
    assert beta.infos == [
        '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":false}}\n'
    ]


def test_v1_basic_request(plugin: PluginScript) -> None:
    """E28, E67."""
    assert token_of(exec_plugin(plugin).run()) == "token-1"
    assert json.loads(plugin.infos[0])["apiVersion"] == V1


def test_beta_with_tls_credentials(beta: PluginScript, client_certificate: Issue) -> None:
    """E11, E48."""
    certificate, key = client_certificate("dev")
    beta.answer(certificate=certificate, key=key, version="v1beta1")
    credential = run_beta(beta)
    assert credential.token is None
    assert credential.certificate is not None
    assert credential.certificate.not_after is not None


def test_beta_with_bad_tls_credentials(beta: PluginScript) -> None:
    """E48."""
    beta.answer(certificate="foo", key=CANARY, version="v1beta1")
    with pytest.raises(AnswerInvalid, match="not a PEM certificate") as caught:
        run_beta(beta)
    assert CANARY not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(plugin: PluginScript, client_certificate: Issue) -> None:
    """E48."""
    plugin.answer(certificate=client_certificate("one")[0], key=client_certificate("two")[1])
    with pytest.raises(AnswerInvalid, match="does not belong"):
        exec_plugin(plugin).run()


def test_beta_cert_but_no_key(beta: PluginScript, client_certificate: Issue) -> None:
    """E48."""
    beta.answer(certificate=client_certificate("dev")[0], version="v1beta1")
    with pytest.raises(AnswerInvalid, match="certificate alone"):
        run_beta(beta)


@pytest.mark.parametrize("unavailable", [False, True])
def test_beta_never_interactive_mode(beta: PluginScript, terminal: int, unavailable: bool) -> None:
    run_beta(beta, settings=ExecSettings(terminal=Terminal(unavailable)))
    assert '"interactive":false' in beta.infos[0]


@pytest.mark.parametrize("unavailable", [False, True])
def test_beta_if_available_without_a_terminal(beta: PluginScript, no_terminal: None, unavailable: bool) -> None:
    run_beta(beta, interactive_mode="IfAvailable", settings=ExecSettings(terminal=Terminal(unavailable)))
    assert '"interactive":false' in beta.infos[0]


@pytest.mark.parametrize(("unavailable", "said"), [(False, "true"), (True, "false")])
def test_beta_if_available_with_a_terminal(beta: PluginScript, terminal: int, unavailable: bool, said: str) -> None:
    """F8."""
    run_beta(beta, interactive_mode="IfAvailable", settings=ExecSettings(terminal=Terminal(unavailable)))
    assert f'"interactive":{said}' in beta.infos[0]


def test_beta_always_interactive_mode_without_a_terminal(beta: PluginScript, no_terminal: None) -> None:
    """E26."""
    metrics = Counting()
    with pytest.raises(PluginNotInteractive, match="standard input is not a terminal"):
        run_beta(beta, interactive_mode="Always", metrics=metrics)
    assert beta.runs == 0
    assert metrics.events == []


@pytest.mark.parametrize(
    ("message", "said"),
    [("", "standard input is unavailable"), ("some message", "unavailable: some message")],
)
def test_beta_always_with_a_terminal_that_the_program_reads(
    beta: PluginScript, terminal: int, message: str, said: str
) -> None:
    """E26."""
    with pytest.raises(PluginNotInteractive, match=said):
        run_beta(beta, interactive_mode="Always", settings=ExecSettings(terminal=Terminal(True, message)))
    assert beta.runs == 0


def test_without_a_terminal_that_is_told_even_if_stdin_is_unavailable_too(
    beta: PluginScript, no_terminal: None
) -> None:
    with pytest.raises(PluginNotInteractive, match="not a terminal"):
        run_beta(beta, interactive_mode="Always", settings=ExecSettings(terminal=Terminal(True, "some message")))


def test_beta_always_with_a_terminal_reads_what_is_typed(beta: PluginScript, terminal: int) -> None:
    """E25, E28, F26."""
    beta.before("read -r typed; printf '%s' \"$typed\" > typed")
    os.write(terminal, b"my password\n")
    assert token_of(run_beta(beta, interactive_mode="Always")) == "foo-bar"
    assert '"interactive":true' in beta.infos[0]
    assert (beta.folder / "typed").read_text() == "my password"


def test_without_a_person_stdin_is_empty(beta: PluginScript, terminal: int) -> None:
    os.write(terminal, b"not for the plugin\n")
    beta.before("cat > typed")
    run_beta(beta)
    assert (beta.folder / "typed").read_text() == ""


def test_v1_with_missing_interactive_mode(plugin: PluginScript) -> None:
    with pytest.raises(PluginNotInteractive, match="unknown interactiveMode: ''"):
        exec_plugin(plugin, interactive_mode="").run()
    assert plugin.runs == 0


def test_beta_expiry_in_the_past_is_accepted_here(beta: PluginScript) -> None:
    beta.answer(token="foo-bar", expires_at="2006-01-02T15:04:05Z", version="v1beta1")
    credential = run_beta(beta)
    assert credential.expires_at is not None
    assert credential.expires_at.year == 2006


def test_beta_no_group_version(beta: PluginScript) -> None:
    """E42."""
    beta.print_exactly(b'{"kind":"ExecCredential","status":{"token":"foo-bar"}}')
    with pytest.raises(AnswerInvalid, match="no apiVersion"):
        run_beta(beta)


def test_beta_no_status_and_no_token(beta: PluginScript) -> None:
    beta.print_exactly(b'{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1"}')
    with pytest.raises(AnswerInvalid, match="no status"):
        run_beta(beta)
    beta.answer(version="v1beta1")
    with pytest.raises(AnswerInvalid, match="neither a token nor a client certificate"):
        run_beta(beta)


def test_unknown_binary() -> None:
    """E16, E19."""
    with pytest.raises(PluginNotFound) as caught:
        exec_plugin("does not exist", install_hint="some install hint").run()
    assert "is not on PATH" in str(caught.value)
    assert "some install hint" in str(caught.value)
    assert "users[0].user.exec" in str(caught.value)
    assert caught.value.code == "exec-plugin-not-found"


def test_binary_fails(plugin: PluginScript) -> None:
    """F4."""
    plugin.exit(73)
    with pytest.raises(PluginFailed, match="73") as caught:
        exec_plugin(plugin).run()
    assert caught.value.exit_code == 73


CLUSTER = ClusterInfo(
    server="https://cluster.test",
    tls_server_name="some-name",
    certificate_authority_data=b"some-ca",
    config={"apiVersion": "group/v1", "kind": "PluginConfig", "spec": {"audience": "snorlax"}},
)


def test_beta_with_cluster_and_provide_cluster_info_is_serialized(beta: PluginScript) -> None:
    """E30."""
    run_beta(beta, cluster=CLUSTER, provide_cluster_info=True)
    spec = json.loads(beta.infos[0])["spec"]
    assert spec == {
        "cluster": {
            "server": "https://cluster.test",
            "tls-server-name": "some-name",
            "certificate-authority-data": b64encode(b"some-ca").decode(),
            "config": CLUSTER.config,
        },
        "interactive": False,
    }


def test_beta_with_cluster_and_without_provide_cluster_info_is_not_serialized(beta: PluginScript) -> None:
    """E29."""
    run_beta(beta, cluster=CLUSTER)
    assert "cluster" not in json.loads(beta.infos[0])["spec"]


# --- how it is started ---


def test_an_unknown_version_is_refused_when_the_plugin_is_made_and_not_when_it_runs() -> None:
    """E14."""
    with pytest.raises(ConfigurationError, match="invalid apiVersion"):
        exec_plugin("x", api_version="client.authentication.k8s.io/v2")


def test_making_a_plugin_and_planning_a_run_runs_nothing(plugin: PluginScript) -> None:
    """E64."""
    plan = exec_plugin(plugin, args=("a", "b"), env=(("X", CANARY),)).plan()
    assert plugin.runs == 0
    assert (plan.executable, plan.args, plan.env_names) == (str(plugin.path), ("a", "b"), ("X",))
    assert CANARY not in repr(plan)


def test_arguments_are_passed_as_they_are_and_no_shell_sees_them(plugin: PluginScript) -> None:
    """E17, E64."""
    plugin.before("printf '[%s]' \"$@\" > args")
    exec_plugin(plugin, args=("$HOME", "a b", "", "*")).run()
    assert (plugin.folder / "args").read_text() == "[$HOME][a b][][*]"


def test_the_kubeconfigs_variables_win_over_ours_and_the_info_wins_over_both(
    plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E18, E64, F16."""
    monkeypatch.setenv("OURS", "ours")
    monkeypatch.setenv("BOTH", "ours")
    monkeypatch.setenv("KUBERNETES_EXEC_INFO", "stale")
    plugin.before('printf \'%s|\' "$OURS" "$BOTH" "${EMPTY-unset}" > env')
    exec_plugin(plugin, env=(("BOTH", "first"), ("BOTH", "last"), ("EMPTY", ""), ("KUBERNETES_EXEC_INFO", "x"))).run()
    assert (plugin.folder / "env").read_text() == "ours|last||"
    assert json.loads(plugin.infos[0])["kind"] == "ExecCredential"


def test_the_environment_is_read_anew_at_every_run(plugin: PluginScript, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.before("printf '%s ' \"$CHANGING\" >> env")
    subject = exec_plugin(plugin)
    for value in ("one", "two"):
        monkeypatch.setenv("CHANGING", value)
        subject.run()
    assert (plugin.folder / "env").read_text() == "one two "


def test_a_bare_name_is_looked_up_in_our_own_path_and_not_in_the_plugins(
    plugin: PluginScript, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{plugin.folder}:{os.environ['PATH']}")
    assert token_of(exec_plugin("plugin", env=(("PATH", "/usr/bin:/bin"),)).run()) == "token-1"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(PluginNotFound):
        exec_plugin("plugin", env=(("PATH", str(plugin.folder)),)).run()


def test_a_bare_name_is_never_taken_from_the_current_directory(
    plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(plugin.folder)
    with pytest.raises(PluginNotFound):
        exec_plugin("plugin").run()
    assert plugin.runs == 0


def test_it_runs_where_the_client_runs(plugin: PluginScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "where"
    script.write_text('#!/bin/sh\nprintf \'{"apiVersion":"%s","status":{"token":"%s"}}\' ' + V1 + ' "$PWD"\n')
    script.chmod(0o755)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert token_of(exec_plugin(script).run()) == str(tmp_path / "here")


def test_v1alpha1_is_told_of_the_rejection_and_others_are_not(plugin: PluginScript) -> None:
    """F7."""
    rejection = Rejection(401, {"Www-Authenticate": ["Bearer"]})
    plugin.answer(token="t", version="v1alpha1")
    exec_plugin(plugin, api_version=V1ALPHA1).run(rejection)
    plugin.answer(token="t")
    exec_plugin(plugin).run(rejection)
    alpha, v1 = (json.loads(info)["spec"] for info in plugin.infos)
    assert alpha == {"response": {"header": {"Www-Authenticate": ["Bearer"]}, "code": 401}}
    assert v1 == {"interactive": False}


def test_a_plugin_of_the_2018_proposal_is_spoken_to_in_its_words(plugin: PluginScript) -> None:
    """F5, F7, F9."""
    plugin.print_exactly(json.dumps({"kind": "ExecCredentials", "apiVersion": V1ALPHA1, "token": "old"}).encode())
    subject = exec_plugin(plugin, api_version=V1ALPHA1, settings=ExecSettings(as_proposed=True))
    assert token_of(subject.run(Rejection(401, {}))) == "old"
    assert json.loads(plugin.infos[0]) == {
        "kind": "ExecInfo", "apiVersion": V1ALPHA1, "response": {"header": {}, "code": 401}
    }  # fmt: skip


# --- what goes wrong ---


@pytest.mark.parametrize(
    ("prepare", "code", "errno_"),
    [
        (lambda path: None, "exec-plugin-not-found", errno.ENOENT),
        (lambda path: path.write_text("#!/bin/sh\n"), "exec-plugin-not-executable", errno.EACCES),
        (
            lambda path: (path.write_text("garbage"), path.chmod(0o755)),
            "exec-plugin-not-executable",
            errno.ENOEXEC,
        ),
        (lambda path: path.mkdir(), "exec-plugin-not-executable", errno.EACCES),
    ],
    ids=["missing", "not executable", "no program", "a directory"],
)
def test_every_form_of_not_found_has_the_hint(
    tmp_path: Path, prepare: Callable[[Path], object], code: str, errno_: int
) -> None:
    """E16, E19."""
    prepare(tmp_path / "login")
    metrics = Counting()
    with pytest.raises(PluginNotFound) as caught:
        exec_plugin(tmp_path / "login", install_hint="brew install login", metrics=metrics).run()
    assert caught.value.code == code
    assert caught.value.hint is not None
    assert "brew install login" in caught.value.hint
    assert metrics.events == [("policy", True), ("call", 1, "plugin_not_found_error")]


def test_without_an_install_hint_there_is_still_something_to_do(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("#!/bin/sh\n")
    with pytest.raises(PluginNotFound) as caught:
        exec_plugin(tmp_path / "login").run()
    assert "chmod +x" in (caught.value.hint or "")


def test_a_killed_plugin_tells_the_signal(plugin: PluginScript) -> None:
    plugin.before("kill -9 $$")
    with pytest.raises(PluginFailed, match="signal 9") as caught:
        exec_plugin(plugin).run()
    assert (caught.value.exit_code, caught.value.code) == (-1, "exec-plugin-killed")


def test_a_plugin_that_never_ends_is_ended(plugin: PluginScript) -> None:
    """E21."""
    plugin.before("cat /dev/zero > /dev/null")
    with pytest.raises(PluginFailed, match=r"did not end within 0\.05 s") as caught:
        exec_plugin(plugin, settings=ExecSettings(seconds=0.05)).run()
    assert caught.value.code == "exec-plugin-timeout"


def test_ten_megabytes_are_refused(plugin: PluginScript) -> None:
    plugin.print_exactly(b"x" * 10_000_000)
    with pytest.raises(PluginFailed, match="more than 1 MiB") as caught:
        exec_plugin(plugin).run()
    assert caught.value.code == "exec-plugin-output-too-large"


def test_much_on_stderr_first_does_not_block(plugin: PluginScript, capfd: pytest.CaptureFixture[str]) -> None:
    plugin.before("head -c 400000 /dev/zero | tr '\\0' 'x' >&2")
    assert token_of(exec_plugin(plugin).run()) == "token-1"
    assert len(capfd.readouterr().err) == 400_000


def test_a_daemon_that_keeps_stdout_open_does_not_hang_us(plugin: PluginScript, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "release")
    plugin.before(f"(read line < {tmp_path / 'release'}) & ")
    assert token_of(exec_plugin(plugin).run()) == "token-1"
    with open(tmp_path / "release", "w") as release:
        release.write("now\n")


def test_an_authority_too_large_for_the_environment_says_so(plugin: PluginScript) -> None:
    """E36."""
    cluster = replace(CLUSTER, certificate_authority_data=b"x" * 100_000)
    with pytest.raises(CredentialError, match="environment is larger") as caught:
        exec_plugin(plugin, cluster=cluster, provide_cluster_info=True).run()
    assert caught.value.code == "exec-plugin-environment-too-large"
    assert "provideClusterInfo" in (caught.value.hint or "")


def test_the_last_words_on_stderr_are_in_the_error_without_secrets(
    plugin: PluginScript, capfd: pytest.CaptureFixture[str]
) -> None:
    """E53, F4."""
    plugin.print_exactly(CANARY.encode()).exit(1)
    plugin.before(f'echo "token {CANARY} and $PASSWORD were refused: ask the help desk" >&2')
    with pytest.raises(PluginFailed) as caught:
        exec_plugin(plugin, env=(("PASSWORD", "hunter2!"),)).run()
    said = str(caught.value)
    assert "were refused: ask the help desk" in said
    assert CANARY not in said
    assert "hunter2!" not in said
    assert "ask the help desk" in capfd.readouterr().err


def test_stdout_is_never_in_an_error_nor_chained_to_one(plugin: PluginScript) -> None:
    """E53."""
    plugin.print_exactly(b'{"token": "' + CANARY.encode())
    with pytest.raises(AnswerInvalid) as caught:
        exec_plugin(plugin).run()
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- policy and metrics (TestCallsMetric, TestPolicyCallsMetric) ---


def test_the_policy_is_asked_and_counted_before_anything_runs(plugin: PluginScript) -> None:
    """E61."""
    metrics = Counting()
    with pytest.raises(PluginRefused, match="DenyAll"):
        exec_plugin(plugin, settings=ExecSettings(policy=DenyAll()), metrics=metrics).run()
    assert plugin.runs == 0
    assert metrics.events == [("policy", False)]


def test_an_allowlist_lets_its_commands_run(plugin: PluginScript) -> None:
    metrics = Counting()
    allowlist = Allowlist((str(plugin.path),))
    exec_plugin(plugin, settings=ExecSettings(policy=allowlist), metrics=metrics).run()
    assert metrics.events == [("policy", True), ("call", 0, "no_error")]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_calls_are_counted_by_exit_code(plugin: PluginScript, code: int) -> None:
    """E57."""
    metrics = Counting()
    plugin.exit(code)
    for _ in range(2):
        try:
            exec_plugin(plugin, metrics=metrics).run()
        except PluginFailed:
            assert code != 0
    status = "no_error" if code == 0 else "plugin_execution_error"
    assert metrics.events == [("policy", True), ("call", code, status)] * 2


@pytest.mark.parametrize("command", ["missing-entirely", "./missing", "/missing"])
def test_missing_commands_are_counted_as_not_found(command: str) -> None:
    """E57."""
    metrics = Counting()
    with pytest.raises(PluginNotFound):
        exec_plugin(command, metrics=metrics).run()
    assert metrics.events == [("policy", True), ("call", 1, "plugin_not_found_error")]


def test_garbage_with_exit_code_zero_counts_as_no_error(plugin: PluginScript) -> None:
    metrics = Counting()
    plugin.print_exactly(b"garbage")
    with pytest.raises(AnswerInvalid):
        exec_plugin(plugin, metrics=metrics).run()
    assert metrics.events[-1] == ("call", 0, "no_error")


# --- TestInstallHintRateLimit ---


def test_print_up_to_threshold(clock: FakeClock) -> None:
    """E19."""
    throttle = HintThrottle(clock, times=2, seconds=3600)
    assert [throttle.allows() for _ in range(10)].count(True) == 2
    usual = HintThrottle(clock)
    assert [usual.allows() for _ in range(20)].count(True) == 10


def test_after_interval_threshold_resets(clock: FakeClock) -> None:
    throttle = HintThrottle(clock, times=2, seconds=5)
    allowed = 0
    for _ in range(10):
        allowed += throttle.allows()
        clock.advance(1)
    assert allowed == 4
