"""The file with the secrets that seal signing keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.issuer.sealing_secrets import read_sealing_secrets

LONG = "0123456789abcdef0123456789abcdef"


def test_every_line_is_a_secret_and_the_first_one_seals(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"  {LONG}-new\n\n{LONG}-old\n")
    assert [secret.reveal() for secret in read_sealing_secrets(str(path))] == [f"{LONG}-new", f"{LONG}-old"]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"canary-short", "shorter than 32"),
        (LONG.encode() + b"\ncanary-short", "shorter than 32"),
        (b"canary\xff" * 8, "not ASCII"),
    ],
)
def test_a_weak_or_unreadable_file_is_refused_without_quoting_it(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_sealing_secrets(str(path))
    assert cause in str(caught.value.cause)
    assert "canary" not in f"{caught.value}{caught.value.__context__!r}"


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used"):
        read_sealing_secrets(str(tmp_path / "none"))
