"""ostiary-provider-sdk as authors get it: its wheel in an environment that has nothing else, and no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ostiary.conformance.credential_provider import check
from tests.support.wheel import OSTIARY, ROOT, SDK, build, install, project_table

IMAGE = "registry.example.com/team/app"
REQUEST = {
    "kind": "CredentialProviderRequest",
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "image": IMAGE,
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk")
    return install(folder / "venv", build(folder, project=SDK)) / "python"


def source_of_the_readme() -> str:
    (source,) = re.findall(r"```python\n#![^\n]*\n(.*?)```", (SDK / "README.md").read_text(), re.DOTALL)
    return str(source)


def source_of_the_how_to_page() -> str:
    """The first example of the page, changed as the page says."""
    page = (ROOT / "docs/how-to/write-a-credential-provider.md").read_text()
    source = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    return str(source).replace("from ostiary.sdk import", "from ostiary_provider_sdk import") + "\n\nmain()\n"


@pytest.fixture(params=[source_of_the_readme, source_of_the_how_to_page], ids=["readme", "how-to"])
def provider(request: pytest.FixtureRequest, python: Path, tmp_path: Path) -> Path:
    """The providers that the documentation shows."""
    source = request.param()
    path = tmp_path / "my-provider"
    path.write_text(f"#!{python}\n{source}")
    path.chmod(0o755)
    return path


def run(*command: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    # Nothing of the environment that runs the tests.
    environ = {"PATH": os.defpath, **variables}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, env=environ)


def test_the_environment_has_nothing_but_the_sdk(python: Path) -> None:
    """I32."""
    code = "from importlib.metadata import distributions as d; print(sorted(x.name for x in d()))"
    assert run(python, "-c", code).stdout.strip() == "['ostiary-provider-sdk']"
    assert run(python, "-c", "import ostiary").returncode != 0
    assert run(python, "-c", "import yaml").returncode != 0
    assert run(python, "-c", "import cryptography").returncode != 0


def test_the_providers_of_the_documentation_answer_the_kubelet(provider: Path) -> None:
    done = run(provider, stdin=json.dumps(REQUEST))
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["auth"] == {"registry.example.com": {"username": "robot", "password": f"fetched-for-{IMAGE}"}}
    assert (answer["cacheKeyType"], answer["cacheDuration"]) == ("Registry", "10m0s")
    assert "An image credential provider" in run(provider, "--help").stdout


@pytest.mark.parametrize("provider", [source_of_the_readme], ids=["readme"], indirect=True)
def test_the_switch_for_all_providers_is_honoured(provider: Path) -> None:
    done = run(provider, stdin=json.dumps(REQUEST), OSTIARY_REGISTRY_PROVIDERS="off")
    assert done.returncode == 0
    assert "fetched-for" not in done.stdout
    assert "all providers are disabled by $OSTIARY_REGISTRY_PROVIDERS" in done.stderr


@pytest.mark.parametrize("provider", [source_of_the_readme], ids=["readme"], indirect=True)
def test_it_keeps_every_rule_of_the_protocol(provider: Path) -> None:
    report = check([str(provider)], image=IMAGE)
    assert report.ok, report


def test_what_goes_wrong_is_one_message_without_the_secret(python: Path, tmp_path: Path) -> None:
    path = tmp_path / "failing"
    path.write_text(
        f"#!{python}\nfrom ostiary_provider_sdk import image_provider\n"
        "@image_provider\ndef main(request):\n    print('noise')\n"
        "    raise RuntimeError('token=abcdefghijklmnop0123456789')\n"
        "main()\n"
    )
    path.chmod(0o755)
    done = run(path, stdin=json.dumps(REQUEST))
    assert (done.returncode, done.stdout) == (1, "")
    assert "RuntimeError" in done.stderr
    assert "abcdefghijklmnop0123456789" not in done.stderr


def test_it_is_the_same_code_as_in_ostiary(python: Path) -> None:
    code = "import ostiary_provider_sdk as s; print(s.__all__); print(s.image_provider.__module__)"
    names, module = run(python, "-c", code).stdout.splitlines()
    assert module == "ostiary_provider_sdk._core.sdk.image_provider"
    assert "ImageCredentials" in names
    copied = python.parent.parent.glob("lib/*/site-packages/ostiary_provider_sdk/_core/**/*.py")
    for file in copied:
        path = str(file).partition("/_core/")[2]
        original = OSTIARY / "src/ostiary" / path
        if file.name != "__init__.py":
            assert file.read_text().replace("ostiary_provider_sdk._core.", "ostiary.") == original.read_text(), path


def test_a_wheel_can_be_made_from_the_source_distribution(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=SDK, check=True, capture_output=True, timeout=60)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    wheel = build(tmp_path / "wheels", project=folder)
    programs = install(tmp_path / "venv", wheel)
    assert run(programs / "python", "-c", "import ostiary_provider_sdk").returncode == 0


def test_it_has_no_dependencies_and_the_version_of_ostiary() -> None:
    sdk, ostiary = project_table(SDK), project_table(OSTIARY)
    assert (sdk["version"], sdk["requires-python"]) == (ostiary["version"], ostiary["requires-python"])
    assert sdk["dependencies"] == []
    assert "optional-dependencies" not in sdk
