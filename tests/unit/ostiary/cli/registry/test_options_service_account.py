"""``--service-account``: the lookup of a pod, with the token that the API server gives for its account."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.cli import main
from tests.support.cluster import Cluster
from tests.support.providers import GROUP, ProviderScript

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "a.registry.io/team/app"
ACCOUNT = ["--service-account", "shop/builder"]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(trustme.CA()) as cluster:
        cluster.add_namespace("shop")
        annotations = {"example.com/tenant": "blue", "example.com/private": "x"}
        cluster.add("serviceaccounts", "shop", {"metadata": {"name": "builder", "annotations": annotations}})
        pod = {"metadata": {"name": "web"}, "spec": {"serviceAccountName": "builder", "containers": []}}
        cluster.add("pods", "shop", pod)
        yield cluster


@pytest.fixture(autouse=True)
def kubeconfig(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    path = cluster.kubeconfig(tmp_path / "kubeconfig", {"token": cluster.add_token("node")})
    monkeypatch.setenv("KUBECONFIG", str(path))
    cluster.requests.clear()
    yield path
    cluster.refuse = None


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    (tmp_path / "bin").mkdir(mode=0o755)
    return ProviderScript(tmp_path / "bin").answer({"*.registry.io": ("robot", CANARY)})


def options(tmp_path: Path, script: ProviderScript, **attributes: Any) -> list[str]:
    provider: dict[str, Any] = {
        "name": script.name,
        "matchImages": ["*.registry.io"],
        "defaultCacheDuration": "10m",
        "apiVersion": f"{GROUP}/v1",
        "tokenAttributes": {
            "serviceAccountTokenAudience": "registry.example",
            "cacheType": "Token",
            "requireServiceAccount": True,
            "requiredServiceAccountAnnotationKeys": ["example.com/tenant"],
            **attributes,
        },
    }
    if attributes.get("none"):
        del provider["tokenAttributes"]
    kind = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**kind, "providers": [provider]}))
    return ["--config", str(tmp_path / "config.yaml"), "--bin-dir", str(script.bin_dir), "--no-docker-config"]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["registry", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_get_hands_the_provider_a_token_of_the_account_and_the_annotations_it_asks_for(
    script: ProviderScript, tmp_path: Path, cluster: Cluster, capsys: Captured
) -> None:
    code, out, err = run(capsys, "get", *options(tmp_path, script), *ACCOUNT, "--pod", "web", IMAGE)
    assert (code, err) == (0, "")
    assert CANARY in out
    (request,) = script.requests
    assert request["serviceAccountAnnotations"] == {"example.com/tenant": "blue"}
    token = request["serviceAccountToken"]
    assert token
    (asked,) = cluster.to("/api/v1/namespaces/shop/serviceaccounts/builder/token")
    assert json.loads(asked.body)["spec"]["boundObjectRef"]["name"] == "web"
    assert token not in out + err


def test_explain_tells_of_the_run_and_never_of_the_token(
    script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    code, out, _ = run(capsys, "explain", *options(tmp_path, script), *ACCOUNT, IMAGE)
    assert code == 0
    assert "provider provider: ran" in out
    assert script.requests[0]["serviceAccountToken"] not in out
    assert CANARY not in out


def test_explain_that_runs_nothing_asks_the_api_server_nothing(
    script: ProviderScript, tmp_path: Path, cluster: Cluster, capsys: Captured
) -> None:
    code, out, _ = run(capsys, "explain", "--no-run", *options(tmp_path, script), *ACCOUNT, IMAGE)
    assert (code, "would-run" in out) == (0, True)
    assert (script.runs, cluster.requests) == (0, [])


def test_probe_takes_the_credential_that_the_accounts_token_brought(
    script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    script.answer({"127.0.0.1:1": ("robot", CANARY)})
    given = options(tmp_path, script)
    (tmp_path / "config.yaml").write_text(
        (tmp_path / "config.yaml").read_text().replace("*.registry.io", "127.0.0.1:1")
    )
    code, out, _ = run(capsys, "probe", *given, *ACCOUNT, "127.0.0.1:1/app")
    assert code == 1
    assert "the registry is unavailable" in out
    assert script.runs == 1


def test_an_account_without_a_required_annotation_is_skipped_and_told(
    script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    given = options(tmp_path, script, requiredServiceAccountAnnotationKeys=["example.com/missing"])
    code, _, err = run(capsys, "get", *given, *ACCOUNT, IMAGE)
    assert (code, script.runs) == (1, 0)
    assert "required annotation example.com/missing not found" in err
    code, out, _ = run(capsys, "explain", *given, *ACCOUNT, IMAGE)
    assert (code, "skipped" in out) == (1, True)


def test_an_account_that_does_not_exist_is_told_with_a_hint(
    script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    code, _, err = run(capsys, "get", *options(tmp_path, script), "--service-account", "shop/nobody", IMAGE)
    assert (code, script.runs) == (1, 0)
    assert 'serviceaccounts "nobody" not found' in err
    assert "kubectl get serviceaccounts" in err
    code, out, _ = run(capsys, "explain", *options(tmp_path, script), "--service-account", "shop/nobody", IMAGE)
    assert code == 1
    assert "service-account-token-unavailable" in out


def test_who_may_not_request_tokens_is_told_the_permission(
    script: ProviderScript, tmp_path: Path, cluster: Cluster, capsys: Captured
) -> None:
    cluster.refuse = lambda user, asked: "no rule" if asked.subresource == "token" else None
    code, _, err = run(capsys, "get", *options(tmp_path, script), *ACCOUNT, IMAGE)
    assert code == 1
    assert "permission denied" in err
    assert '"create" on serviceaccounts/token in namespace shop' in err


def test_an_api_server_that_is_away_is_an_outage_of_the_provider_alone(
    script: ProviderScript, tmp_path: Path, kubeconfig: Path, cluster: Cluster, capsys: Captured
) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace(str(cluster.port), "1"))
    code, _, err = run(capsys, "get", *options(tmp_path, script), *ACCOUNT, IMAGE)
    assert code == 1
    assert "the API server is unreachable" in err


def test_an_account_that_no_provider_looks_at_is_told_so(
    script: ProviderScript, tmp_path: Path, capsys: Captured
) -> None:
    code, _, err = run(capsys, "get", *options(tmp_path, script, none=True), *ACCOUNT, IMAGE)
    assert (code, script.runs) == (0, 1)
    assert "--service-account has no effect" in err


@pytest.mark.parametrize("account", ["builder", "shop/", "/builder", "a/b/c", ""])
def test_what_is_not_namespace_and_name_is_a_usage_error(
    script: ProviderScript, tmp_path: Path, capsys: Captured, account: str
) -> None:
    code, _, err = run(capsys, "get", *options(tmp_path, script), "--service-account", account, IMAGE)
    assert code == 2
    assert "NAMESPACE/NAME" in err


@pytest.mark.parametrize("option", [("--pod", "web"), ("--kubeconfig", "x"), ("--context", "x")])
def test_what_belongs_to_an_account_is_refused_without_one(
    script: ProviderScript, tmp_path: Path, capsys: Captured, option: tuple[str, str]
) -> None:
    code, _, err = run(capsys, "explain", *options(tmp_path, script), *option, IMAGE)
    assert code == 2
    assert f"{option[0]} needs --service-account" in err


def test_another_kubeconfig_and_context_can_be_named(
    script: ProviderScript, tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    given = [*options(tmp_path, script), *ACCOUNT, "--kubeconfig", str(kubeconfig)]
    assert run(capsys, "get", *given, IMAGE)[0] == 0
    code, _, err = run(capsys, "get", *given, "--context", "none", IMAGE)
    assert (code, "none" in err) == (1, True)
