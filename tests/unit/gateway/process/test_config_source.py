"""Where the configuration comes from: all workers load the same text, whatever happens to the file meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary.gateway.process.config_source import ConfigSource


def test_without_a_file_it_is_the_built_in_configuration() -> None:
    source = ConfigSource().at_this_moment()
    assert source.text is None
    assert source.load().listen.workers == 1


def test_the_text_of_one_moment_is_loaded_and_not_what_the_file_says_later(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("apiVersion: ostiary.dev/v1\nkind: Nonsense\n")
    source = ConfigSource(path).at_this_moment()
    path.unlink()
    with pytest.raises(ConfigurationError, match="it must be Gateway"):
        source.load()


def test_a_file_that_cannot_be_read_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        ConfigSource(tmp_path / "gone.yaml").at_this_moment()
