"""From the flags of a kubelet of that time to the configuration of today; each result is one that loads."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.cli import main
from ostiary.errors import ConfigurationError
from ostiary.registry.image_matching import matches
from ostiary.registry.kubelet.config import loads
from ostiary.registry.kubelet.migrate import in_tree_providers, parse_flags, read_azure_identity

SECRET = "c4n4ry-c4n4ry-c4n4ry"
IMAGES = {
    "aws": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/app",
    "gce": "eu.gcr.io/project/app",
    "azure": "acme.azurecr.io/app",
}
GATE = "DisableKubeletCloudCredentialProviders"
Captured = pytest.CaptureFixture[str]


def migrated(capsys: Captured, *words: str) -> tuple[int, str, str]:
    code = main(["registry", "migrate", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("cloud", IMAGES)
@pytest.mark.parametrize(
    "form", ["--cloud-provider={}", "--cloud-provider {} --v=2", "/usr/bin/kubelet -cloud-provider={}"]
)
def test_each_cloud_that_had_a_provider_gets_one(capsys: Captured, cloud: str, form: str) -> None:
    """I4."""
    code, out, err = migrated(capsys, f"--kubelet-flags={form.format(cloud)}")
    assert code == 0, err
    (provider,) = loads(out).providers
    assert any(matches(pattern, IMAGES[cloud]) for pattern in provider.match_images)
    assert f"put {provider.name} into the directory" in err
    assert "remove --cloud-provider from the kubelet" in err


def test_a_file_of_kubeadm_and_the_cloud_configuration_of_azure(capsys: Captured, tmp_path: Path) -> None:
    cloud = {"cloud": "AzureUSGovernmentCloud", "tenantId": "t-1", "aadClientId": "c-1", "aadClientSecret": SECRET}
    (tmp_path / "azure.json").write_text(json.dumps(cloud))
    flags = tmp_path / "kubeadm-flags.env"
    flags.write_text(
        f'# kubeadm\nKUBELET_KUBEADM_ARGS="--azure-container-registry-config={tmp_path}/azure.json --v=2"\nOTHER=x\n'
    )
    code, out, err = migrated(capsys, "--kubelet-flags-file", str(flags))
    assert code == 0, err
    (provider,) = loads(out).providers
    assert dict(provider.env) == {
        "AZURE_TENANT_ID": "t-1",
        "AZURE_CLIENT_ID": "c-1",
        "AZURE_AUTHORITY_HOST": "https://login.microsoftonline.us",
    }
    assert "aadClientSecret is not printed" in err
    assert SECRET not in out + err


def test_the_machines_own_identity(tmp_path: Path) -> None:
    path = tmp_path / "azure.yaml"
    path.write_text(
        "useManagedIdentityExtension: true\nuserAssignedIdentityID: u-1\naadClientId: msi\naadClientSecret: msi\n"
    )
    identity = read_azure_identity(str(path))
    assert (identity.env, identity.notes) == ((("AZURE_CLIENT_ID", "u-1"),), ())
    path.write_text("cloud: AzureStackCloud\n")
    assert "AzureStackCloud" in read_azure_identity(str(path)).notes[0]
    path.write_text("- x\n")
    with pytest.raises(ConfigurationError):
        read_azure_identity(str(path))


def test_what_cannot_be_migrated_is_said(subtests: pytest.Subtests) -> None:
    cases = [
        ("--cloud-provider=openstack", "had no credential provider"),
        ("--cloud-provider=external", "had no credential provider"),
        ("--cloud-provider=unknown", "had no credential provider"),
        ("--v=2", "these flags had no"),
        (
            "--cloud-provider=aws --image-credential-provider-config=/x",
            "has --image-credential-provider-config",
        ),
        (
            "--cloud-provider=aws --feature-gates=A=true,DisableKubeletCloudCredentialProviders=true",
            "has no providers inside",
        ),
        ("--cloud-provider='aws", "a quote is not closed"),
    ]
    for flags, cause in cases:
        with subtests.test(flags=flags, cause=cause), pytest.raises(ConfigurationError, match=cause):
            in_tree_providers(parse_flags(flags))


def test_options_that_do_not_go_together(capsys: Captured, tmp_path: Path) -> None:
    assert migrated(capsys, "--kubelet-flags=--v=1", "--config", "x")[0] == 2
    assert migrated(capsys, "--cloud-config", "x", "--config", "y")[0] == 2
    assert migrated(capsys, "--kubelet-flags-file", str(tmp_path / "absent"))[0] == 1
    code, _, err = migrated(capsys, "--kubelet-flags=--cloud-provider=aws --cloud-config=/etc/cloud.conf")
    assert (code, "the cloud configuration is not read" in err) == (0, True)


@given(st.text(max_size=80))
def test_any_text_is_flags_or_one_clear_error(text: str) -> None:
    with suppress(ConfigurationError):
        in_tree_providers(parse_flags(text))
