"""Keys in files of the operator."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.issuer.key_files import KeyFiles
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.testing import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "first.pem", tmp_path / "second.pem"]
    for path in paths:
        path.write_bytes(SigningKey.generate().pem())
    return paths


async def test_the_first_key_signs_and_all_are_published(files: list[Path]) -> None:
    keys = KeyFiles(files, FakeClock())
    await keys.refresh()
    first, second = (SigningKey.from_pem(path.read_bytes()).id for path in files)
    signing = keys.ring.signing(NOW)
    assert signing is not None
    assert signing.id == first
    assert [key.id for key in keys.ring.published_keys(NOW)] == [first, second]
    assert await keys.rotate() is False


async def test_a_key_that_was_replaced_in_its_file_is_taken_up(files: list[Path]) -> None:
    keys = KeyFiles(files[:1], FakeClock())
    await keys.refresh()
    new = SigningKey.generate()
    replacement = files[0].with_suffix(".new")
    replacement.write_bytes(new.pem())
    os.replace(replacement, files[0])
    await keys.refresh()
    assert [key.id for key in keys.ring.keys] == [new.id]


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("canary")], ids=["gone", "no key"])
async def test_an_unusable_file_is_told_and_the_keys_in_memory_stay(files: list[Path], spoil: object) -> None:
    keys = KeyFiles(files, FakeClock())
    await keys.refresh()
    before = keys.ring
    assert callable(spoil)
    spoil(files[1])
    with pytest.raises(ConfigurationError) as caught:
        await keys.refresh()
    assert caught.value.code == "issuer-key-unusable"
    assert str(files[1]) in str(caught.value.where)
    assert "canary" not in str(caught.value)
    assert keys.ring is before
