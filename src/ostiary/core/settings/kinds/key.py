"""Settings that name a private key: its file, or the address of one that is kept elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ostiary.core.config import Fields, Json
from ostiary.core.keys.address import KeyAddress, is_address, parse_address
from ostiary.core.settings.kinds.file import FilePath, Holds
from ostiary.core.settings.kinds.kind import SettingKind
from ostiary.core.settings.kinds.listed import Names
from ostiary.core.settings.kinds.text import Text

KeyPlace: TypeAlias = Path | KeyAddress


@dataclass(frozen=True)
class PrivateKey(SettingKind[KeyPlace]):
    """A file with a key, or the address of one that is kept elsewhere: ``pkcs11:...``, ``tpm2:...``."""

    @property
    def label(self) -> str:
        return "file, or address of a key"

    def read(self, fields: Fields, key: str, directory: Path) -> KeyPlace | None:
        text = Text(self.doc).read(fields, key, directory)
        if text is None or not is_address(text):
            return FilePath(self.doc, holds=Holds.SECRET).read(fields, key, directory)
        try:
            return parse_address(text, directory)
        except ValueError as error:
            fields.problem(f"the address of the key cannot be used: {error}", key)
            return None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "minLength": 1}

    def blank(self) -> KeyPlace:
        return Path()

    def write(self, value: KeyPlace) -> Json:
        return str(value)


@dataclass(frozen=True)
class PrivateKeys(SettingKind[tuple[KeyPlace, ...]]):
    """A list of them."""

    @property
    def label(self) -> str:
        return "list of files, or of addresses of keys"

    def read(self, fields: Fields, key: str, directory: Path) -> tuple[KeyPlace, ...] | None:
        places: list[KeyPlace] = []
        for text in fields.strings(key):
            try:
                file = directory / Path(text).expanduser()
                places.append(parse_address(text, directory) if is_address(text) else file)
            except ValueError as error:
                fields.problem(f"the address of a key cannot be used: {error}", key)
        return tuple(places) or None

    def schema(self) -> dict[str, Json]:
        return Names(self.doc, least=1).schema()

    def blank(self) -> tuple[KeyPlace, ...]:
        return ()

    def write(self, value: tuple[KeyPlace, ...]) -> Json:
        return [str(place) for place in value]
