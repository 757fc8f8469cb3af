"""Settings that name a private key: a file, or the address of one that is kept elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.keys.address import KeyAddress, key_file
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import KeyPlace, PrivateKey, PrivateKeys


@dataclass(frozen=True)
class Declared:
    key: Annotated[KeyPlace | None, PrivateKey("a key", unset="none")] = None
    keys: Annotated[tuple[KeyPlace, ...], PrivateKeys("keys")] = ()


def read(text: str, directory: Path) -> tuple[Declared, list[str]]:
    reading = ConfigReader(parse(text))
    value = read_settings(Declared, reading.root, directory)
    return value, [problem.message for problem in reading.problems]


def test_a_file_is_a_path_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text("x")
    value, problems = read("{key: server.key, keys: [a.pem, ./tpm2:x]}", tmp_path)
    assert (value.key, value.keys) == (tmp_path / "server.key", (tmp_path / "a.pem", tmp_path / "tpm2:x"))
    assert (problems, key_file(value.key)) == ([], tmp_path / "server.key")


def test_an_address_is_none_and_is_looked_for_on_no_disk(tmp_path: Path) -> None:
    value, problems = read("{key: 'pkcs11:object=a', keys: ['tpm2:handle:0x81000001']}", tmp_path)
    assert value.key == KeyAddress("pkcs11:object=a", tmp_path)
    assert value.keys == (KeyAddress("tpm2:handle:0x81000001", tmp_path),)
    assert (problems, key_file(value.key)) == ([], None)


@pytest.mark.parametrize("text", ['{key: "exec:a\\nb"}', '{keys: ["exec:a\\nb"]}', "{key: absent.key}"])
def test_what_cannot_be_used_is_noted(tmp_path: Path, text: str) -> None:
    assert read(text, tmp_path)[1]
