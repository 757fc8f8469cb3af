"""Inside a pod, and without a kubeconfig, the pod's own cluster is chosen."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import Overrides, choose, in_cluster, loads
from ostiary.model import Secret

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
KUBECONFIG = """\
current-context: here
contexts: [{name: here, context: {cluster: main}}]
clusters: [{name: main, cluster: {server: https://main}}]
"""


@pytest.fixture
def mounted(tmp_path: Path, ca: trustme.CA) -> Path:
    """What the kubelet mounts into a pod."""
    root = tmp_path / "serviceaccount"
    root.mkdir()
    (root / "token").write_text("the-token")
    (root / "namespace").write_text("web\n")
    ca.cert_pem.write_to_path(root / "ca.crt")
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def write_home(home: Path, text: str) -> None:
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text(text)


def test_a_pod_finds_server_authority_token_and_namespace(mounted: Path) -> None:
    selection = in_cluster(POD, mounted)
    assert selection is not None
    assert selection.cluster.server == "https://10.0.0.1:443"
    assert selection.cluster.certificate_authority == str(mounted / "ca.crt")
    assert (selection.user.token, selection.user.token_file) == (None, str(mounted / "token"))
    assert selection.namespace == "web"


def test_an_ipv6_server_stands_in_brackets(mounted: Path) -> None:
    selection = in_cluster({**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, mounted)
    assert selection is not None
    assert selection.cluster.server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", POD)
def test_without_the_variables_this_is_no_pod(mounted: Path, missing: str) -> None:
    assert in_cluster({**POD, missing: ""}, mounted) is None
    assert in_cluster({name: value for name, value in POD.items() if name != missing}, mounted) is None


def test_without_a_token_this_is_no_pod(mounted: Path) -> None:
    (mounted / "token").unlink()
    assert in_cluster(POD, mounted) is None
    (mounted / "token").mkdir()
    assert in_cluster(POD, mounted) is None


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bad_authority_is_only_worth_a_warning(
    mounted: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (mounted / "ca.crt").unlink()
    if content is not None:
        (mounted / "ca.crt").write_text(content)
    with caplog.at_level(logging.WARNING):
        selection = in_cluster(POD, mounted)
    assert selection is not None
    assert selection.cluster.certificate_authority is None
    assert "ca.crt" in caplog.text


@pytest.mark.parametrize(
    ("environ", "content", "namespace"),
    [
        ({"POD_NAMESPACE": "env"}, "file", "env"),
        ({"POD_NAMESPACE": ""}, "file", "file"),
        ({}, " file\n", "file"),
        ({}, "", "default"),
        ({}, None, "default"),
    ],
)
def test_the_namespace_is_the_variable_then_the_file_then_the_default(
    mounted: Path, environ: dict[str, str], content: str | None, namespace: str
) -> None:
    """TestInClusterConfigNamespace."""
    (mounted / "namespace").unlink()
    if content is not None:
        (mounted / "namespace").write_text(content)
    selection = in_cluster({**POD, **environ}, mounted)
    assert selection is not None
    assert selection.namespace == namespace


# --- kubeconfig or pod ---


def test_without_a_kubeconfig_the_pod_is_chosen(mounted: Path, home: Path) -> None:
    """TestInClusterConfig: an empty configuration falls back."""
    assert choose(environ=POD, home=home, service_account=mounted).context_name == "in-cluster"


@pytest.mark.parametrize("text", ["", "preferences: {}\n", KUBECONFIG.replace("here\n", '""\n', 1)])
def test_a_kubeconfig_that_chooses_nothing_gives_way_to_the_pod(mounted: Path, home: Path, text: str) -> None:
    """TestInClusterConfig: a default configuration falls back."""
    write_home(home, text)
    assert choose(environ=POD, home=home, service_account=mounted).context_name == "in-cluster"


def test_a_kubeconfig_comes_before_the_pod(mounted: Path, home: Path, tmp_path: Path) -> None:
    """TestInClusterConfig: a configuration other than the default does not fall back."""
    write_home(home, KUBECONFIG)
    assert choose(environ=POD, home=home, service_account=mounted).cluster.server == "https://main"
    listed = {**POD, "KUBECONFIG": str(home / ".kube" / "config")}
    assert choose(environ=listed, home=tmp_path, service_account=mounted).cluster.server == "https://main"


@pytest.mark.parametrize(
    "text",
    [
        "bogus value",
        "current-context: gone",
        KUBECONFIG.replace("https://main", '""'),
        KUBECONFIG.replace("name: main", "name: x"),
    ],
)
def test_a_kubeconfig_with_a_mistake_does_not_give_way_to_the_pod(mounted: Path, home: Path, text: str) -> None:
    """TestInClusterConfig: another error than an empty configuration does not fall back."""
    write_home(home, text)
    with pytest.raises(ConfigurationError):
        choose(environ=POD, home=home, service_account=mounted)


def test_a_kubeconfig_that_was_asked_for_never_gives_way(mounted: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError, match="no configuration"):
        choose(tmp_path / "empty", environ=POD, home=home, service_account=mounted)
    with pytest.raises(ConfigurationError, match="no configuration"):
        choose(loads(""), environ=POD, home=home, service_account=mounted)


@pytest.mark.parametrize("kind", ["context", "cluster", "user"])
def test_a_name_that_was_asked_for_never_gives_way(mounted: Path, home: Path, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown {kind} 'x'"):
        choose(**{kind: "x"}, environ=POD, home=home, service_account=mounted)  # type: ignore[arg-type]


def test_without_kubeconfig_and_pod_there_is_nothing_to_choose(mounted: Path, home: Path) -> None:
    """TestInClusterConfig: not possible here, so the error of the empty configuration stands."""
    with pytest.raises(ConfigurationError) as caught:
        choose(environ={}, home=home, service_account=mounted)
    assert caught.value.code == "config-not-found"


def test_overrides_hold_for_the_pod_too(mounted: Path, home: Path) -> None:
    """TestInClusterConfigPrecedence."""
    overrides = Overrides(token=Secret("t"), certificate_authority_data=b"CA", namespace="other")
    selection = choose(environ=POD, home=home, service_account=mounted, overrides=overrides)
    assert selection.cluster.server == "https://10.0.0.1:443"
    assert (selection.cluster.certificate_authority, selection.cluster.certificate_authority_data) == (None, b"CA")
    assert (selection.user.token, selection.user.token_file) == (Secret("t"), None)
    assert selection.namespace == "other"


def test_the_token_of_the_pod_does_not_go_to_another_server(mounted: Path, home: Path) -> None:
    """TestInClusterConfigPrecedence: a server of its own is a choice of its own."""
    selection = choose(environ=POD, home=home, service_account=mounted, overrides=Overrides(server="https://x"))
    assert selection.cluster.server == "https://x"
    assert selection.user.token_file is None


def test_a_kubeconfig_that_is_loaded_already_can_be_chosen_from() -> None:
    assert choose(loads(KUBECONFIG), environ={}).cluster.server == "https://main"
