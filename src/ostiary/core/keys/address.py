"""What a key that is kept elsewhere is called: ``pkcs11:token=...``, ``tpm2:handle:0x81000001``. Pure.

The scheme says which plugin reads the rest. Wherever the path of a key file can stand, such an address can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ostiary.errors import ConfigurationError

# At least two letters: one may be the drive of a path.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(.*)", re.DOTALL)
LONGEST = 4096


@dataclass(frozen=True, slots=True)
class KeyAddress:
    """An address and where its relative paths are meant from. It holds no secret: a PIN in it is refused."""

    text: str
    directory: Path = Path()

    @property
    def scheme(self) -> str:
        return self.text.partition(":")[0]

    @property
    def rest(self) -> str:
        return self.text.partition(":")[2]

    def __str__(self) -> str:
        return self.text


def key_file(place: Path | KeyAddress | None) -> Path | None:
    """The file of a key; None if it is kept elsewhere, and there is no file to look at."""
    return place if isinstance(place, Path) else None


def is_address(text: str) -> bool:
    """Whether *text* is an address, and not the path of a file. A file of such a name is written ``./a:b``."""
    return _ADDRESS.fullmatch(text) is not None


def parse_address(text: str, directory: Path = Path()) -> KeyAddress:
    """Raises `ValueError` with a sentence."""
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} characters")
    if not is_address(text):
        raise ValueError("it does not begin with a scheme, as in pkcs11:... or tpm2:handle:0x81000001")
    if not text.isprintable():
        raise ValueError("it contains a line break or another control character")
    return KeyAddress(text, directory)


def read_address(text: str, directory: Path = Path()) -> KeyAddress:
    """As `parse_address`; raises `ConfigurationError`."""
    try:
        return parse_address(text, directory)
    except ValueError as error:
        summary = "the address of a key cannot be read"
        raise ConfigurationError(summary, cause=str(error), code="key-address-invalid") from None
