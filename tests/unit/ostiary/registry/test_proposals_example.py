"""The example of the document that proposed credential providers, from its file to the credential."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.model import Secret
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import load
from tests.support.providers import ProviderScript

# As in the document, but for the quotes: without them it is no YAML.
EXAMPLE = """\
kind: credentialprovider
apiVersion: v1alpha1
providers:
-
  name: ecr-creds
  imageMatchers:
  - "*.dkr.ecr.*.amazonaws.com"
  - "*.dkr.ecr.*.amazonaws.com.cn"
  extraArgs:
    region: us-west-2
"""


@pytest.mark.parametrize(
    "image",
    [
        "012345678910.dkr.ecr.us-east-1.amazonaws.com/my-image",
        "012345678910.dkr.ecr.cn-north-1.amazonaws.com.cn/my-image",
    ],
)
def test_the_example_runs_its_command_with_its_variable(tmp_path: Path, image: str) -> None:
    """I10, I18, I19, I20, I21, I26."""
    script = ProviderScript(tmp_path / "bin", "ecr-creds")
    script.before('echo "REGION=$REGION ecr-creds $*" > command\n')
    script.print_exactly(b'{"username": "AWS", "password": "from-ecr"}')
    (tmp_path / "providers.yaml").write_text(EXAMPLE)
    keyring = Keyring(load(tmp_path / "providers.yaml"), bin_dir=tmp_path / "bin")
    (login,) = keyring.lookup(image)
    assert (login.username, login.password) == ("AWS", Secret("from-ecr"))
    assert (script.folder / "command").read_text() == "REGION=us-west-2 ecr-creds get-credentials\n"
    assert script.requests == [{"image": image}]


def test_another_image_does_not_run_the_example(tmp_path: Path) -> None:
    """I10, I15, I26."""
    script = ProviderScript(tmp_path / "bin", "ecr-creds")
    (tmp_path / "providers.yaml").write_text(EXAMPLE)
    keyring = Keyring(load(tmp_path / "providers.yaml"), bin_dir=tmp_path / "bin")
    assert keyring.lookup("dkr.ecr.us-east-1.amazonaws.com/my-image").found == ()
    assert script.runs == 0
