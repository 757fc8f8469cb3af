"""One kubeconfig document, read field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import AuthProvider, ExecConfig, Impersonation, Kubeconfig, loads
from ostiary.model import Place, Secret

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
V1ALPHA1 = "client.authentication.k8s.io/v1alpha1"

COMPLETE = """\
apiVersion: v1
kind: Config
current-context: staging
preferences: {colors: true, extensions: []}
extensions: [{name: acme, extension: {any: thing}}]
contexts:
- name: staging
  context: {cluster: staging, user: dev, namespace: web, extensions: []}
clusters:
- name: staging
  cluster:
    server: https://staging.example.com:6443/base
    tls-server-name: api.example.com
    insecure-skip-tls-verify: false
    certificate-authority: ca.crt
    certificate-authority-data: Q0E=
    proxy-url: http://user:proxy-password@proxy.example.com:3128
    disable-compression: true
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {zone: b, audience: [a], area: {z: 1, a: null}}
users:
- name: dev
  user:
    client-certificate: dev.crt
    client-certificate-data: Q0VSVA==
    client-key: dev.key
    client-key-data: S0VZ
    token: the-token
    tokenFile: token
    username: dev-name
    password: the-password
    as: someone
    as-uid: "42"
    as-groups: [a, b]
    as-user-extra:
      acme.io/scope: [read, write]
    auth-provider: {name: acme, config: {key: the-config}}
    extensions: []
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: acme-login
      args: [get-token, --password=the-argument]
      env:
      - {name: ACME_KEY, value: the-value}
      - {name: EMPTY, value: ""}
      installHint: brew install acme-login
      provideClusterInfo: true
      interactiveMode: Never
"""


def with_exec(**fields: Any) -> str:
    return json.dumps({"users": [{"name": "dev", "user": {"exec": fields}}]})


def exec_of(**fields: Any) -> ExecConfig:
    found = loads(with_exec(**fields)).users["dev"].exec
    assert found is not None
    return found


def error_of(text: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        loads(text)
    return caught.value


@pytest.fixture(scope="module")
def complete() -> Kubeconfig:
    return loads(COMPLETE, name="config")


def test_a_context_is_read(complete: Kubeconfig) -> None:
    context = complete.contexts["staging"]
    assert complete.current_context == "staging"
    assert (context.cluster, context.user, context.namespace) == ("staging", "dev", "web")


def test_a_cluster_is_read(complete: Kubeconfig) -> None:
    cluster = complete.clusters["staging"]
    assert cluster.server == "https://staging.example.com:6443/base"
    assert cluster.tls_server_name == "api.example.com"
    assert cluster.insecure_skip_tls_verify is False
    assert cluster.certificate_authority == "ca.crt"
    assert cluster.certificate_authority_data == b"CA"
    assert cluster.proxy_url == "http://user:proxy-password@proxy.example.com:3128"
    assert cluster.disable_compression is True


def test_a_user_is_read(complete: Kubeconfig) -> None:
    user = complete.users["dev"]
    assert (user.client_certificate, user.client_key, user.token_file) == ("dev.crt", "dev.key", "token")
    assert user.client_certificate_data == b"CERT"
    assert user.client_key_data == Secret("KEY")
    assert (user.token, user.username, user.password) == (Secret("the-token"), "dev-name", Secret("the-password"))
    extra = (("acme.io/scope", ("read", "write")),)
    assert user.impersonate == Impersonation("someone", "42", ("a", "b"), extra)
    assert user.auth_provider == AuthProvider("acme", (("key", "the-config"),))


def test_an_exec_plugin_survives_the_load(complete: Kubeconfig) -> None:
    """TestAuthConfigMerge: args, provideClusterInfo and the cluster's extension arrive. E30, F15."""
    assert complete.users["dev"].exec == ExecConfig(
        api_version=V1,
        command="acme-login",
        args=("get-token", "--password=the-argument"),
        env=(("ACME_KEY", "the-value"), ("EMPTY", "")),
        install_hint="brew install acme-login",
        provide_cluster_info=True,
        interactive_mode="Never",
    )
    extension = complete.clusters["staging"].exec_extension
    assert json.dumps(extension) == '{"zone": "b", "audience": ["a"], "area": {"z": 1, "a": null}}'


@pytest.mark.parametrize("extension", ["text", 5, True, [1], None])
def test_the_extension_for_exec_plugins_may_be_any_value(extension: object) -> None:
    """E34."""
    named = [{"name": "client.authentication.k8s.io/exec", "extension": extension}, {"name": "other", "extension": 1}]
    config = loads(json.dumps({"clusters": [{"name": "a", "cluster": {"extensions": named}}]}))
    assert config.clusters["a"].exec_extension == extension


def test_every_entry_knows_where_it_stood(complete: Kubeconfig) -> None:
    user = complete.users["dev"]
    assert user.exec is not None
    assert complete.contexts["staging"].place == Place("config", "contexts[0].context", 8)
    assert complete.clusters["staging"].place == Place("config", "clusters[0].cluster", 12)
    assert user.place == Place("config", "users[0].user", 25)
    assert user.exec.place == Place("config", "users[0].user.exec", 41)
    assert user.exec.command_place == Place("config", "users[0].user.exec.command", 42)


def test_a_repr_shows_no_secret(complete: Kubeconfig) -> None:
    secrets = [
        "the-token",
        "the-password",
        "the-argument",
        "the-value",
        "the-config",
        "proxy-password",
        "KEY",
        "audience",
    ]
    for shown in (repr(complete), str(complete), f"{complete.users} {complete.clusters}"):
        assert [secret for secret in secrets if secret in shown] == []


def test_the_place_of_a_plugin_does_not_make_it_another_one() -> None:
    text = with_exec(apiVersion=V1, command="p", interactiveMode="Never")
    one, other = (loads(text, name=name).users["dev"].exec for name in ("one", "other"))
    assert one == other
    assert hash(one) == hash(other)
    assert one != exec_of(apiVersion=V1, command="p", interactiveMode="Never", args=["x"])


# --- what may be left out, and what not ---


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "clusters: ~\ncontexts: []\n"])
def test_an_empty_kubeconfig_is_no_mistake(text: str) -> None:
    config = loads(text)
    assert (config.current_context, config.contexts, config.clusters, config.users) == ("", {}, {}, {})


def test_json_is_read_as_well() -> None:
    assert loads('{"current-context": "a"}').current_context == "a"


@pytest.mark.parametrize(
    ("text", "path"), [("apiVersion: v2", "apiVersion"), ("kind: Pod", "kind"), ("apiVersion: 1", "apiVersion")]
)
def test_another_version_or_kind_is_refused(text: str, path: str) -> None:
    (problem,) = error_of(text).problems
    assert problem.place.path == path


def test_unknown_fields_are_dropped_and_listed() -> None:
    text = "colour: red\nclusters:\n- name: a\n  cluster: {Server: https://x, server: https://y}\n  note: hi\n"
    config = loads(text, name="f")
    assert config.clusters["a"].server == "https://y"
    assert [str(place) for place in config.unknown_fields] == [
        "f:1, colour",
        "f:5, clusters[0].note",
        "f:4, clusters[0].cluster.Server",
    ]


def test_known_fields_are_not_listed_as_unknown(complete: Kubeconfig) -> None:
    assert complete.unknown_fields == ()


def test_of_a_field_that_stands_twice_the_last_counts() -> None:
    assert loads("current-context: a\ncurrent-context: b\n").current_context == "b"


def test_a_name_that_stands_twice_in_one_list_is_refused(subtests: pytest.Subtests) -> None:
    """TestDuplicateClusterName, TestDuplicateContextName, TestDuplicateUserName, TestDuplicateExtensionName."""
    cases = [
        ("clusters: [{name: a}, {name: b}, {name: a}]", "clusters[2].name"),
        ("contexts: [{name: a}, {name: a}]", "contexts[1].name"),
        ("users: [{name: a}, {name: a}]", "users[1].name"),
        ("extensions: [{name: a, extension: 1}, {name: a}]", "extensions[1].name"),
        (
            "preferences: {extensions: [{name: a, extension: {}}, {name: a, extension: {}}]}",
            "preferences.extensions[1].name",
        ),
        (
            "clusters: [{cluster: {extensions: TWO}}]",
            "clusters[0].cluster.extensions[1].name",
        ),
        (
            "contexts: [{context: {extensions: TWO}}]",
            "contexts[0].context.extensions[1].name",
        ),
        ("users: [{user: {extensions: TWO}}]", "users[0].user.extensions[1].name"),
    ]
    for text, path in cases:
        with subtests.test(text=text, path=path):
            (problem,) = error_of(text.replace("TWO", "[{name: a, extension: x}, {name: a}]")).problems
            assert problem.place.path == path
            assert problem.message == "duplicate entry 'a'"


def test_an_extension_that_holds_nothing_does_not_take_its_name() -> None:
    text = "clusters: [{name: c, cluster: {extensions: [{name: NAME}, {name: NAME, extension: {a: 1}}]}}]"
    config = loads(text.replace("NAME", "client.authentication.k8s.io/exec"))
    assert config.clusters["c"].exec_extension == {"a": 1}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("A", "1", ("A", "1")), ("A=B", "1", ("A", "B=1")), ("A=B=C", "", ("A", "B=C=")), ("A=", "x", ("A", "=x"))],
)
def test_the_name_of_a_variable_ends_at_its_first_equals_sign(name: str, value: str, expected: tuple[str, str]) -> None:
    """As for every process; so a policy judges the name that takes effect."""
    exec_config = (
        loads(json.dumps({"users": [{"name": "u", "user": {"exec": {"env": [{"name": name, "value": value}]}}}]}))
        .users["u"]
        .exec
    )
    assert exec_config is not None
    assert exec_config.env == (expected,)


def test_arguments_and_variables_must_be_strings(subtests: pytest.Subtests) -> None:
    for value in ["5", "1.5", "true", "y", "[a]", "{a: b}"]:
        with subtests.test(value=value):
            text = f"users: [{{user: {{exec: {{args: [{value}], env: [{{name: A, value: {value}}}]}}}}}}]"
            paths = [problem.place.path for problem in error_of(text).problems]
            assert paths == ["users[0].user.exec.args[0]", "users[0].user.exec.env[0].value"]


def test_a_password_of_the_wrong_type_is_not_quoted() -> None:
    error = error_of("users:\n- name: dev\n  user: {password: 31337, token: 31337, client-key-data: '3133 7'}\n")
    assert len(error.problems) == 3
    assert "31337" not in str(error)


def test_key_data_that_is_no_text_is_refused() -> None:
    (problem,) = error_of("users: [{name: dev, user: {client-key-data: '////'}}]").problems
    assert problem.place.path == "users[0].user.client-key-data"


def test_all_mistakes_of_a_file_are_told_at_once() -> None:
    error = error_of("current-context: 5\nclusters: {}\nusers: [{name: 1}]\n")
    assert [problem.place.path for problem in error.problems] == ["current-context", "clusters", "users[0].name"]
    assert error.code == "config-invalid"


# --- exec plugins ---


@pytest.mark.parametrize(
    ("version", "mode"),
    [(V1BETA1, "IfAvailable"), (V1ALPHA1, "IfAvailable"), (V1, ""), ("acme.io/v1", ""), ("", "")],
)
def test_only_versions_before_v1_have_a_default_interactive_mode(version: str, mode: str) -> None:
    assert exec_of(apiVersion=version, command="p").interactive_mode == mode
    assert exec_of(apiVersion=version, command="p", interactiveMode="Never").interactive_mode == "Never"


def test_a_plugin_of_v1alpha1_still_loads() -> None:
    """E67."""
    assert exec_of(apiVersion=V1ALPHA1, command="p").api_version == V1ALPHA1


def test_the_example_of_the_2018_proposal_loads() -> None:
    """F15, F20."""
    text = """
    users:
    - name: mmosley
      user:
        exec:
          apiVersion: "client.authentication.k8s.io/v1alpha1"
          command: /bin/kubectl-login
          args: ["hello", "world"]
    """
    stanza = loads(text).users["mmosley"].exec
    assert stanza is not None
    assert (stanza.api_version, stanza.command, stanza.args) == (V1ALPHA1, "/bin/kubectl-login", ("hello", "world"))
    assert stanza.interactive_mode == "IfAvailable"


def test_an_install_hint_loses_what_steers_the_terminal() -> None:
    """TestCreateAuthConfigExecInstallHintCleanup. E19."""
    assert exec_of(installHint="run\n\x1b[2Jthis").install_hint == "run\nU+001B[2Jthis"


@pytest.mark.parametrize("command", ["./p", "../bin/p", "bin/p", "p", "/opt/p"])
def test_from_memory_no_path_is_resolved(command: str) -> None:
    text = json.dumps({"users": [{"name": "dev", "user": {"tokenFile": "t", "exec": {"command": command}}}]})
    user = loads(text).users["dev"]
    assert user.token_file == "t"
    assert user.exec is not None
    assert user.exec.command == command


def test_any_static_credential_beats_the_exec_plugin(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], bool]] = [
        ({}, True),
        ({"token": "t"}, False),
        ({"tokenFile": "t"}, False),
        ({"username": "u"}, False),
        ({"password": "p"}, True),
        ({"client-certificate": "c"}, True),
        ({"client-key-data": "S0VZ"}, True),
        ({"client-certificate": "c", "client-key-data": "S0VZ"}, False),
    ]
    for fields, uses in cases:
        with subtests.test(fields=fields, uses=uses):
            text = json.dumps({"users": [{"name": "dev", "user": {**fields, "exec": {"command": "p"}}}]})
            assert loads(text).users["dev"].uses_exec is uses
            assert not loads(json.dumps({"users": [{"name": "dev", "user": fields}]})).users["dev"].uses_exec
