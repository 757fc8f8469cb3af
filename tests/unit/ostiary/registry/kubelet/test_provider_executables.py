"""The executable of a provider: in the bin dir, and on PATH only where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.provider import find_provider
from ostiary.registry.user_config import SEARCH_PATH_VARIABLE, search_path
from tests.support.providers import ProviderScript, providers_config


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProviderScript:
    script = ProviderScript(tmp_path / "on-path").answer({"a.registry.io": ("robot", "secret")})
    monkeypatch.setenv("PATH", f"{script.bin_dir}:/usr/bin:/bin")
    return script


def test_path_is_searched_for_what_the_bin_dir_lacks(on_path: ProviderScript, tmp_path: Path) -> None:
    bin_dir = str(tmp_path / "bin")
    assert find_provider("provider", bin_dir) == str(on_path.path)
    assert find_provider("missing", bin_dir) == f"{bin_dir}/missing"


def test_the_bin_dir_comes_first_even_with_a_file_that_cannot_be_run(on_path: ProviderScript, tmp_path: Path) -> None:
    (tmp_path / "provider").symlink_to("nowhere")
    assert find_provider("provider", str(tmp_path)) == str(tmp_path / "provider")


@pytest.mark.parametrize("path", ["", ".", ":", "./bin", "on-path"])
def test_the_current_directory_is_never_searched(
    on_path: ProviderScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(on_path.bin_dir if path != "on-path" else tmp_path)
    monkeypatch.setenv("PATH", path)
    assert find_provider("provider", "/nowhere") == "/nowhere/provider"


def test_a_name_that_is_a_path_stays_in_the_bin_dir(on_path: ProviderScript) -> None:
    assert find_provider("../provider", "/nowhere") == "/nowhere/../provider"


def test_a_keyring_finds_a_provider_on_path(on_path: ProviderScript, tmp_path: Path) -> None:
    """I9."""
    config = providers_config(on_path.config("a.registry.io"))
    assert len(Keyring(config, bin_dir=tmp_path, search_path=True).lookup("a.registry.io/app")) == 1
    (failure,) = Keyring(config, bin_dir=tmp_path).lookup("a.registry.io/app").failures
    assert failure.error.code == "credential-provider-not-found"


def test_the_variable_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv(SEARCH_PATH_VARIABLE, text)
        assert search_path() is expected
    monkeypatch.setenv(SEARCH_PATH_VARIABLE, "yes")
    with pytest.raises(ConfigurationError, match="neither 0 nor 1"):
        search_path()
