"""A key in a TPM 2.0: a persistent handle, or a file that only this TPM can load.

    tpm2:handle:0x81000001        tpm2:file:/etc/ostiary/client.tss2.pem        ...?pin-source=file:/etc/pin

The provider of tpm2-openssl does the talking, in a library context of its own: among the providers of the process it
would be asked for everybody's keys. Which TPM is asked the environment says (``TPM2OPENSSL_TCTI``), never an address:
some of these choices run a command.

The TPM is let go after each signature. Without a resource manager it has one user at a time, so a process that kept it
would lock out all others.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.serialization import load_der_public_key

from ostiary.core.keys.openssl.library import OpenSsl, load
from ostiary.core.keys.schemes import PublicKey, scheme_for, usable_public_key
from ostiary.model import Secret, SignatureScheme
from ostiary.plugins.tpm2.failures import SchemeRefused, failures_told
from ostiary.plugins.tpm2.provider import loaded_key, public_half, sign_digest

_HANDLE = re.compile(r"0x81[0-9A-Fa-f]{6}")


class Tpm2Key:
    """The scheme ``tpm2``."""

    program: tuple[str, ...] = ()

    def __init__(self, store: str, *, pin_source: str) -> None:
        # What OSSL_STORE opens.
        self._store = store
        self._pin_source = pin_source

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        place, _, query = address.partition("?")
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        if [name for name, _ in options] not in ([], ["pin-source"]):
            raise ValueError("after the question mark only pin-source=file:/path can stand")
        kind, _, name = place.partition(":")
        if kind == "handle" and _HANDLE.fullmatch(name):
            store = f"handle:{name.lower()}"
        elif kind == "file" and name:
            store = str((directory / Path(name).expanduser()).absolute())
        else:
            raise ValueError("it is neither handle:0x81000001 (a persistent handle) nor file:/path")
        return cls(store, pin_source=dict(options).get("pin-source", ""))

    @property
    def pin_source(self) -> str:
        return self._pin_source

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> OpenTpm2Key:
        library = load()
        with failures_told(), loaded_key(library, self._store, pin) as key:
            public = usable_public_key(load_der_public_key(public_half(library, key)))
        opened = OpenTpm2Key(library, self._store, pin, public)
        # Only a signature shows whether the password is right; at the first handshake nobody could be asked any more.
        with suppress(SchemeRefused):
            opened.sign(bytes(32), scheme_for(public, "sha256"))
        return opened


class OpenTpm2Key:
    def __init__(self, library: OpenSsl, store: str, pin: Secret | None, public_key: PublicKey) -> None:
        self._library, self._store, self._pin = library, store, pin
        self.public_key = public_key

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        with failures_told(), loaded_key(self._library, self._store, self._pin) as key:
            return sign_digest(self._library, key, digest, scheme)

    def close(self) -> None:
        self._pin = None
