"""One context is chosen, exchanged in part, and checked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import Impersonation, Kubeconfig, Overrides, Selection, User, loads, select
from ostiary.model import Problem, Secret

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def kubeconfig(
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    current: str = "here",
    **others: Any,
) -> Kubeconfig:
    document = {
        "current-context": current,
        "contexts": [
            {"name": "here", "context": {"cluster": "main", "user": "dev"}},
            {"name": "there", "context": {"cluster": "second", "user": "ops", "namespace": "web"}},
        ],
        "clusters": [
            {"name": "main", "cluster": {"server": "https://main", **(cluster or {})}},
            {"name": "second", "cluster": {"server": "https://second"}},
            {"name": "broken", "cluster": {"proxy-url": "ftp://x"}},
        ],
        "users": [{"name": "dev", "user": user or {}}, {"name": "ops", "user": {"token": "t"}}],
        **others,
    }
    return loads(json.dumps(document, indent=1), name="config")


def exec_user(**fields: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": V1, "command": "p", "interactiveMode": "Never", **fields}}


def error_of(config: Kubeconfig, **asked: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        select(config, **asked)
    return caught.value


def problems_of(config: Kubeconfig, **asked: Any) -> list[tuple[str, str]]:
    return [(problem.place.path, problem.message) for problem in error_of(config, **asked).problems]


def chosen(selection: Selection) -> tuple[str, str, str, str]:
    return selection.context_name, selection.cluster.name, selection.user.name, selection.namespace


# --- which one ---


def test_the_current_context_is_chosen() -> None:
    assert chosen(select(kubeconfig())) == ("here", "main", "dev", "default")


def test_a_named_context_comes_before_the_current_one() -> None:
    assert chosen(select(kubeconfig(), context="there")) == ("there", "second", "ops", "web")


def test_cluster_and_user_can_be_exchanged() -> None:
    assert chosen(select(kubeconfig(), cluster="second", user="ops")) == ("here", "second", "ops", "default")


def test_a_cluster_can_be_chosen_without_a_context() -> None:
    config = kubeconfig(current="")
    assert chosen(select(config, cluster="second", user="ops")) == ("", "second", "ops", "default")


def test_a_server_alone_is_a_choice_too() -> None:
    selection = select(Kubeconfig(), overrides=Overrides(server="https://x", token=Secret("t")))
    assert (selection.cluster.server, selection.user.token) == ("https://x", Secret("t"))


def test_a_missing_context_is_told_with_those_that_exist() -> None:
    error = error_of(kubeconfig(), context="three")
    assert error.code == "config-not-found"
    assert "unknown context 'three'; known: here, there" in str(error)


def test_a_current_context_that_is_missing_is_told_with_its_place() -> None:
    error = error_of(kubeconfig(current="gone"))
    assert "unknown context 'gone'; known: here, there" in str(error)
    assert "config:2, current-context" in str(error)


def test_everything_that_is_missing_is_told_at_once() -> None:
    error = error_of(kubeconfig(), context="x", user="y", cluster="z")
    assert [problem.message for problem in error.problems] == [
        "unknown context 'x'; known: here, there",
        "unknown user 'y'; known: dev, ops",
        "unknown cluster 'z'; known: broken, main, second",
    ]


def test_without_a_current_context_one_must_be_named() -> None:
    error = error_of(kubeconfig(current=""))
    assert "current-context is not set; known contexts: here, there" in str(error)


def test_an_empty_kubeconfig_chooses_nothing() -> None:
    error = error_of(Kubeconfig(missing_files=("/home/dev/.kube/config",)))
    assert error.code == "config-not-found"
    assert "there is no configuration" in str(error)
    assert "/home/dev/.kube/config" in str(error)


def test_a_context_whose_cluster_is_missing_is_refused() -> None:
    contexts = [{"name": "here", "context": {"cluster": "gone", "user": "dev"}}, {"name": "bare"}]
    config = kubeconfig(contexts=contexts)
    (problem,) = error_of(config).problems
    assert problem.message == "unknown cluster 'gone'; known: broken, main, second"
    assert problem.place.path == "contexts[0].context.cluster"
    assert problems_of(config, context="bare") == [("contexts[1].context.cluster", "context 'bare' names no cluster")]
    assert select(config, overrides=Overrides(server="https://x")).cluster.server == "https://x"


def test_a_context_whose_user_is_missing_goes_without_credentials() -> None:
    config = kubeconfig(contexts=[{"name": "here", "context": {"cluster": "main", "user": "gone"}}])
    assert select(config).user == User("gone")


def test_names_from_outside_do_not_steer_the_terminal() -> None:
    error = error_of(kubeconfig(contexts=[{"name": "a\u202eb"}]), context="\x1b[2J")
    assert "\x1b" not in str(error)
    assert "\u202e" not in str(error)


def test_only_what_is_chosen_is_checked() -> None:
    select(kubeconfig())
    assert len(problems_of(kubeconfig(), cluster="broken")) == 2


# --- the cluster ---


def test_a_cluster_needs_a_server() -> None:
    assert problems_of(kubeconfig(cluster={"server": ""})) == [
        ("clusters[0].cluster.server", "cluster 'main' has no server")
    ]


@pytest.mark.parametrize("url", ["http://proxy", "https://user:pw@proxy:8443", "socks5://[::1]:1080"])
def test_a_proxy_is_taken_from_the_kubeconfig(url: str) -> None:
    """TestProxyURL, the valid ones."""
    assert select(kubeconfig(cluster={"proxy-url": url})).cluster.proxy_url == url


def test_a_proxy_that_cannot_be_used_is_told_without_its_password(subtests: pytest.Subtests) -> None:
    """TestProxyURL, the invalid ones."""
    cases = [
        "ftp://proxy",
        "socks6://proxy",
        "localhost:8080",
        "http://",
        "http://[::1",
        "http://u:hunter2@p:99999",
        "http://p:x",
    ]
    for url in cases:
        with subtests.test(url=url):
            error = error_of(kubeconfig(cluster={"proxy-url": url}))
            assert [problem.place.path for problem in error.problems] == ["clusters[0].cluster.proxy-url"]
            assert "hunter2" not in str(error)


def test_an_authority_stands_in_one_form_only(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch()
    cluster = {"certificate-authority": str(tmp_path / "ca.crt"), "certificate-authority-data": "Q0E="}
    assert problems_of(kubeconfig(cluster=cluster)) == [
        ("clusters[0].cluster", "certificate-authority and certificate-authority-data are both set")
    ]


def test_an_insecure_cluster_with_an_authority_is_left_to_the_connection() -> None:
    cluster = {"insecure-skip-tls-verify": True, "certificate-authority-data": "Q0E="}
    assert select(kubeconfig(cluster=cluster)).cluster.insecure_skip_tls_verify


def test_an_authority_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    ((path, message),) = problems_of(kubeconfig(cluster={"certificate-authority": str(tmp_path / "none")}))
    assert path == "clusters[0].cluster.certificate-authority"
    assert "No such file" in message
    ((_, message),) = problems_of(kubeconfig(cluster={"certificate-authority": str(tmp_path)}))
    assert "directory" in message
    ((_, message),) = problems_of(kubeconfig(cluster={"certificate-authority": "a\0b"}))
    assert "file name" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_is_not_ours_to_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch(mode=0)
    ((_, message),) = problems_of(kubeconfig(cluster={"certificate-authority": str(tmp_path / "ca.crt")}))
    assert "permission denied" in message


def test_a_pipe_is_not_opened_by_the_check(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ca.crt")
    select(kubeconfig(cluster={"certificate-authority": str(tmp_path / "ca.crt")}))


# --- the user ---


def test_a_certificate_needs_its_key() -> None:
    assert problems_of(kubeconfig(user={"client-certificate-data": "Q0VSVA=="})) == [
        ("users[0].user", "the client certificate has no key")
    ]
    select(kubeconfig(user={"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}))


def test_certificate_and_key_stand_in_one_form_only(tmp_path: Path) -> None:
    for name in ("c", "k"):
        (tmp_path / name).touch()
    user = {
        "client-certificate": str(tmp_path / "c"),
        "client-certificate-data": "Q0VSVA==",
        "client-key": str(tmp_path / "k"),
        "client-key-data": "S0VZ",
    }
    assert [message for _, message in problems_of(kubeconfig(user=user))] == [
        "client-certificate and client-certificate-data are both set",
        "client-key and client-key-data are both set",
    ]


def test_certificate_files_must_be_there(tmp_path: Path) -> None:
    user = {"client-certificate": str(tmp_path / "c"), "client-key": str(tmp_path / "k")}
    assert [path for path, _ in problems_of(kubeconfig(user=user))] == [
        "users[0].user.client-certificate",
        "users[0].user.client-key",
    ]


def test_a_token_file_is_kept_as_a_file_and_must_be_there(tmp_path: Path) -> None:
    """TestBasicTokenFile: whoever signs reads it, again and again."""
    user = {"tokenFile": str(tmp_path / "token")}
    ((path, _),) = problems_of(kubeconfig(user=user))
    assert path == "users[0].user.tokenFile"
    (tmp_path / "token").write_text("t")
    selected = select(kubeconfig(user=user)).user
    assert (selected.token, selected.token_file) == (None, str(tmp_path / "token"))


def test_a_token_beside_a_token_file_serves_even_if_the_file_is_missing(tmp_path: Path) -> None:
    """TestPrecedenceTokenFile."""
    selected = select(kubeconfig(user={"token": "t", "tokenFile": str(tmp_path / "none")})).user
    assert (selected.token, selected.token_file) == (Secret("t"), str(tmp_path / "none"))


@pytest.mark.parametrize("basic", [{"username": "u"}, {"password": "p"}, {"username": "u", "password": "p"}])
def test_a_token_and_a_password_exclude_each_other(basic: dict[str, str]) -> None:
    message = "there is a token and also a username or password"
    assert problems_of(kubeconfig(user={"token": "t", **basic})) == [("users[0].user", message)]
    # A password without a username is never sent, so it contradicts no file.
    beside_file = kubeconfig(user={"tokenFile": os.devnull, **basic})
    if "username" in basic:
        assert problems_of(beside_file) == [("users[0].user", message)]
    else:
        assert select(beside_file).user.token_file == os.devnull


def test_static_credentials_may_stand_beside_an_exec_plugin() -> None:
    certificate = {"client-certificate-data": "Q0VSVA==", "client-key-data": "S0VZ"}
    for static in ({"token": "t"}, certificate):
        assert not select(kubeconfig(user={**static, **exec_user()})).user.uses_exec


@pytest.mark.parametrize("fields", [{"as-uid": "1"}, {"as-groups": ["g"]}, {"as-user-extra": {"k": ["v"]}}])
def test_only_a_user_can_be_impersonated_in_detail(fields: dict[str, Any]) -> None:
    ((path, message),) = problems_of(kubeconfig(user=fields))
    assert path == "users[0].user"
    assert "no user" in message
    select(kubeconfig(user={**fields, "as": "someone"}))


# --- the exec plugin ---


def test_a_complete_exec_plugin_is_accepted() -> None:
    """TestValidateAuthInfoExec."""
    select(kubeconfig(user=exec_user(env=[{"name": "A", "value": "x"}])))


def test_an_exec_plugin_needs_a_version() -> None:
    """TestValidateAuthInfoExecNoVersion. Which versions there are is the plugin's affair, not ours. E14."""
    assert problems_of(kubeconfig(user=exec_user(apiVersion=""))) == [
        ("users[0].user.exec.apiVersion", "the exec plugin has no apiVersion")
    ]
    select(kubeconfig(user=exec_user(apiVersion="acme.io/v9")))


def test_an_exec_plugin_needs_a_command() -> None:
    """TestValidateAuthInfoExecNoCommand. E15."""
    assert problems_of(kubeconfig(user=exec_user(command=""))) == [
        ("users[0].user.exec.command", "the exec plugin has no command")
    ]


def test_an_exec_plugin_excludes_an_auth_provider() -> None:
    """TestValidateAuthInfoExecWithAuthProvider."""
    assert problems_of(kubeconfig(user={**exec_user(), "auth-provider": {"name": "oidc"}})) == [
        ("users[0].user", "there is an exec plugin and also an auth-provider")
    ]
    select(kubeconfig(user={"auth-provider": {"name": "oidc"}}))


def test_a_variable_needs_a_name_and_no_value() -> None:
    """TestValidateAuthInfoExecNoEnv."""
    env = [{"name": "A", "value": ""}, {"name": "", "value": "hunter2"}]
    error = error_of(kubeconfig(user=exec_user(env=env)))
    assert [problem.place.path for problem in error.problems] == ["users[0].user.exec.env[1].name"]
    assert "hunter2" not in str(error)
    select(kubeconfig(user=exec_user(env=env[:1])))


def test_v1_requires_an_interactive_mode() -> None:
    """TestValidateAuthInfoExecInteractiveModeMissing."""
    assert problems_of(kubeconfig(user=exec_user(interactiveMode=""))) == [
        ("users[0].user.exec.interactiveMode", "the exec plugin has no interactiveMode")
    ]
    select(kubeconfig(user=exec_user(interactiveMode="", apiVersion=V1BETA1)))


@pytest.mark.parametrize("mode", ["invalid", "never", "ALWAYS"])
def test_an_interactive_mode_must_be_one_of_three(mode: str) -> None:
    """TestValidateAuthInfoExecInteractiveModeInvalid."""
    assert problems_of(kubeconfig(user=exec_user(interactiveMode=mode))) == [
        ("users[0].user.exec.interactiveMode", f"{mode!r} is not an interactiveMode")
    ]


def test_an_empty_exec_is_told_everything_it_lacks_and_where() -> None:
    config = loads(
        "current-context: c\ncontexts:\n- {name: c, context: {cluster: k, user: u}}\n"
        "clusters:\n- {name: k, cluster: {server: https://k}}\nusers:\n- name: u\n  user:\n    exec:\n      args: []\n",
        name="config",
    )
    assert [str(problem.place) for problem in error_of(config).problems] == [
        "config:10, users[0].user.exec.command",
        "config:10, users[0].user.exec.apiVersion",
        "config:10, users[0].user.exec.interactiveMode",
    ]


def test_a_wrong_policy_of_the_program_counts_with_an_exec_plugin_only() -> None:
    wrong = [Problem("the allowlist is empty")]
    select(kubeconfig(user={"token": "t"}), policy_problems=wrong)
    error = error_of(kubeconfig(user=exec_user(command="")), policy_problems=wrong)
    assert [problem.message for problem in error.problems] == [
        "the exec plugin has no command",
        "the allowlist is empty",
    ]


def test_the_mistakes_of_user_and_cluster_are_told_at_once() -> None:
    config = kubeconfig(user=exec_user(command="", interactiveMode="x"), cluster={"server": "", "proxy-url": "x"})
    error = error_of(config)
    assert error.code == "config-invalid"
    assert len(error.problems) == 4
    assert str(error).count("config:") == 4


# --- overrides ---


def test_insecure_replaces_the_authority() -> None:
    """TestInsecureOverridesCA."""
    config = kubeconfig(cluster={"certificate-authority-data": "Q0E="})
    cluster = select(config, overrides=Overrides(insecure_skip_tls_verify=True)).cluster
    assert cluster.insecure_skip_tls_verify
    assert (cluster.certificate_authority, cluster.certificate_authority_data) == (None, None)


def test_an_authority_replaces_the_other_form_and_insecure() -> None:
    config = kubeconfig(cluster={"certificate-authority-data": "Q0E=", "insecure-skip-tls-verify": True})
    cluster = select(config, overrides=Overrides(certificate_authority=os.devnull)).cluster
    assert not cluster.insecure_skip_tls_verify
    assert (cluster.certificate_authority, cluster.certificate_authority_data) == (os.devnull, None)
    cluster = select(config, overrides=Overrides(certificate_authority_data=b"other")).cluster
    assert (cluster.certificate_authority, cluster.certificate_authority_data) == (None, b"other")


def test_security_can_be_asked_for_without_touching_the_authority() -> None:
    config = kubeconfig(cluster={"certificate-authority-data": "Q0E=", "insecure-skip-tls-verify": True})
    cluster = select(config, overrides=Overrides(insecure_skip_tls_verify=False)).cluster
    assert (cluster.insecure_skip_tls_verify, cluster.certificate_authority_data) == (False, b"CA")


def test_another_server_does_not_keep_the_name_of_the_old_one() -> None:
    """TestTLSServerNameClearsWhenServerNameSet."""
    config = kubeconfig(cluster={"tls-server-name": "old"})
    assert select(config, overrides=Overrides(server="https://new")).cluster.tls_server_name == ""
    both = Overrides(server="https://new", tls_server_name="new")
    assert select(config, overrides=both).cluster.tls_server_name == "new"
    name = select(config, overrides=Overrides(tls_server_name="new")).cluster
    assert (name.server, name.tls_server_name) == ("https://main", "new")


def test_certificate_and_key_replace_both_forms() -> None:
    config = kubeconfig(user={"client-certificate": "/none", "client-key": "/none"})
    overrides = Overrides(client_certificate_data=b"CERT", client_key_data=Secret("KEY"))
    user = select(config, overrides=overrides).user
    assert (user.client_certificate, user.client_certificate_data) == (None, b"CERT")
    assert (user.client_key, user.client_key_data) == (None, Secret("KEY"))


def test_a_token_replaces_both_forms() -> None:
    """Else the file, read later, would win over what the caller asked for."""
    user = select(kubeconfig(user={"tokenFile": os.devnull}), overrides=Overrides(token=Secret("t"))).user
    assert (user.token, user.token_file) == (Secret("t"), None)
    user = select(kubeconfig(user={"token": "t"}), overrides=Overrides(token_file=os.devnull)).user
    assert (user.token, user.token_file) == (None, os.devnull)


def test_a_static_credential_beats_the_plugin_wherever_it_comes_from() -> None:
    config = kubeconfig(user=exec_user())
    assert select(config).user.uses_exec
    assert not select(config, overrides=Overrides(token=Secret("t"))).user.uses_exec
    assert not select(config, overrides=Overrides(username="u", password=Secret("p"))).user.uses_exec


def test_other_values_are_replaced_one_by_one() -> None:
    config = kubeconfig(user={"as": "a", "as-groups": ["g"], "username": "u", "password": "p"})
    overrides = Overrides(
        proxy_url="http://p",
        disable_compression=True,
        namespace="web",
        password=Secret("q"),
        impersonate=Impersonation(uid="7", groups=("h",)),
    )
    selection = select(config, overrides=overrides)
    assert (selection.cluster.proxy_url, selection.cluster.disable_compression) == ("http://p", True)
    assert (selection.user.username, selection.user.password) == ("u", Secret("q"))
    assert selection.user.impersonate == Impersonation("a", "7", ("h",))
    assert selection.namespace == "web"


def test_overrides_are_checked_as_well() -> None:
    assert problems_of(kubeconfig(), overrides=Overrides(proxy_url="ftp://x"))
    assert problems_of(kubeconfig(user={"username": "u"}), overrides=Overrides(token=Secret("t")))


def test_overrides_show_no_secret() -> None:
    overrides = Overrides(token=Secret("hunter2"), password=Secret("hunter2"), proxy_url="http://u:hunter2@p")
    assert "hunter2" not in repr(overrides)
