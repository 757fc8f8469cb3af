"""Keys in a TPM 2.0: a persistent handle, or a file that only this TPM can load.

    tpm2:handle:0x81000001        tpm2:file:/etc/ostiary/client.tss2.pem        ...?pin-source=file:/etc/pin

Uses tpm2-openssl in its own library context: among the providers of the process it would be called for all keys. The
environment (``TPM2OPENSSL_TCTI``) selects the TPM, never an address, because some of its values run a command.

The TPM is released after each signature. Without a resource manager it has one user at a time, so a process that kept
it open would block all others.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import CFUNCTYPE, POINTER, c_char, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.serialization import load_der_public_key

from ostiary.errors import KeyUnusable, PinNeeded, PinWrong
from ostiary.keys.address import PublicKey, scheme_for, usable_public_key
from ostiary.keys.openssl import MODULES_DIRECTORY, UTF8_STRING, OpenSsl, OsslParam, load
from ostiary.model import Secret, SignatureScheme

# TPM errors. Response codes: Part 2 of the TPM 2.0 specification, 6.6. The TPM's messages begin with the code.

_AUTHORIZATION_FAILED = (0x98E, 0x9A2)
_LOCKOUT = 0x921
_NO_SUCH_HANDLE = 0x18B
_WRONG_SCHEME = 0x92
_NUMBER = re.compile(r"(?:^|: |; )(\d{2,10}) (?:tpm|esapi|tcti|sys|mu|rmt|fapi|policy)")


class ProviderMissing(Exception):
    """tpm2-openssl is not installed, or there is no TPM."""


class PasswordAsked(Exception):
    """The key has a password, and none was given."""


class OperationFailed(Exception):
    """The error message of OpenSSL or of the TPM."""


class NotLoaded(OperationFailed):
    """There is nothing to load, or the TPM does not load it."""


class SchemeRefused(KeyUnusable):
    """The key was created for another signature scheme."""


@contextmanager
def failures_told() -> Iterator[None]:
    try:
        yield
    except PasswordAsked:
        raise PinNeeded("the key in the TPM has a password", label="TPM key") from None
    except ProviderMissing as error:
        raise _no_tpm(str(error)) from None
    except OperationFailed as error:
        raise _refusal(str(error), loading=isinstance(error, NotLoaded)) from None


def _no_tpm(words: str) -> KeyUnusable:
    if "shared library" in words:
        return KeyUnusable(
            "the TPM cannot be used",
            cause="OpenSSL has no provider for it",
            hint="apt-get install tpm2-openssl, or set OPENSSL_MODULES to the directory that has tpm2.so",
        )
    place = os.environ.get("TPM2OPENSSL_TCTI", "")
    return KeyUnusable(
        "the TPM cannot be used",
        cause=f"no TPM answers{f' at {place}' if place else ''}, or another process has it",
        hint="use /dev/tpmrm0, which several processes can use: TPM2OPENSSL_TCTI=device:/dev/tpmrm0",
    )


def _refusal(words: str, *, loading: bool) -> KeyUnusable:
    match = _NUMBER.search(words)
    number = int(match[1]) if match else 0
    if number in _AUTHORIZATION_FAILED:
        cause = "the TPM refused it, and counts how often that happens"
        return PinWrong(
            "the password of the key in the TPM is wrong", cause=cause, hint="correct the file of pin-source"
        )
    if number == _LOCKOUT:
        return KeyUnusable(
            "the TPM is locked",
            cause="too many wrong passwords were tried (dictionary attack lockout)",
            hint="wait until it allows tries again, or: tpm2_dictionarylockout --clear-lockout",
            code="key-pin-locked",
        )
    if number == _NO_SUCH_HANDLE or (loading and not number):
        cause = "there is no key at this handle or in this file"
        return KeyUnusable("the key was not found in the TPM", cause=cause, code="key-not-found")
    kind = SchemeRefused if number & 0xBF == _WRONG_SCHEME else KeyUnusable
    return kind("the TPM does not sign", cause=f"it reports: {words}")


# TPM keys by OpenSSL's functions: load one, read its public half, sign.

PROPERTIES = b"?provider=tpm2"
_PADDINGS = {"rsa-pss": b"pss", "rsa-pkcs1": b"pkcs1"}
_PasswordCallback = CFUNCTYPE(c_int, POINTER(c_char), c_int, c_int, c_void_p)


class LoadedKey(NamedTuple):
    """An ``EVP_PKEY`` and the library context of its provider."""

    context: int
    key: int


@contextmanager
def loaded_key(library: OpenSsl, store: str, pin: Secret | None) -> Iterator[LoadedKey]:
    """Load the key at *store* (a path, or ``handle:0x...``) until the block ends. The TPM is released then."""
    with ExitStack() as at_end:
        _keep_loaded(library)
        library.ERR_clear_error()
        context = library.OSSL_LIB_CTX_new()
        at_end.callback(library.OSSL_LIB_CTX_free, context)
        for name in (b"tpm2", b"default"):
            provider = library.OSSL_PROVIDER_load(context, name)
            if not provider:
                raise ProviderMissing(library.errors())
            at_end.callback(library.OSSL_PROVIDER_unload, provider)
        key = _load(library, context, store, pin)
        at_end.callback(library.EVP_PKEY_free, key)
        yield LoadedKey(context, key)


@cache
def _keep_loaded(library: OpenSsl) -> object:
    """Keep the provider's libraries in memory: loading them again costs five times what a signature does."""
    # They would log to stderr, although every failure is reported as an error.
    os.environ.setdefault("TSS2_LOG", "all+NONE")
    directory = os.environ.get("OPENSSL_MODULES") or (library.OPENSSL_info(MODULES_DIRECTORY) or b"").decode()
    with suppress(OSError):
        return ctypes.CDLL(os.path.join(directory, "tpm2.so"))
    return None


def _load(library: OpenSsl, context: int, store: str, pin: Secret | None) -> int:
    was_asked = False

    def give_password(buffer: ctypes._Pointer[c_char], size: int, is_new: int, data: int) -> int:
        nonlocal was_asked
        was_asked = True
        password = b"" if pin is None else pin.reveal().encode()
        if not password or len(password) > size:
            return -1
        ctypes.memmove(buffer, password, len(password))
        return len(password)

    callback = _PasswordCallback(give_password)
    method = library.UI_UTIL_wrap_read_pem_callback(ctypes.cast(callback, c_void_p), 0)
    # A handle does not reveal whether it has a password.
    text = f"{store}?pass" if store.startswith("handle:") and pin is not None else store
    opened = None
    try:
        opened = library.OSSL_STORE_open_ex(text.encode(), context, PROPERTIES, method, None, None, None, None)
        while opened and not library.OSSL_STORE_eof(opened):
            info = library.OSSL_STORE_load(opened)
            if not info:
                continue
            key: int | None = library.OSSL_STORE_INFO_get1_PKEY(info)
            library.OSSL_STORE_INFO_free(info)
            if key:
                return key
    finally:
        if opened:
            library.OSSL_STORE_close(opened)
        library.UI_destroy_method(method)
    words = library.errors()
    if was_asked and pin is None:
        raise PasswordAsked
    raise NotLoaded(words)


def public_half(library: OpenSsl, loaded: LoadedKey) -> bytes:
    """Return the SubjectPublicKeyInfo in DER."""
    out = c_void_p()
    length = library.i2d_PUBKEY(loaded.key, ctypes.byref(out))
    if length <= 0:
        raise OperationFailed(library.errors())
    try:
        return ctypes.string_at(out, length)
    finally:
        library.CRYPTO_free(out, b"", 0)


def sign_digest(library: OpenSsl, loaded: LoadedKey, digest: bytes, scheme: SignatureScheme) -> bytes:
    maker = library.EVP_PKEY_CTX_new_from_pkey(loaded.context, loaded.key, b"provider=tpm2")
    try:
        if library.EVP_PKEY_sign_init(maker) <= 0:
            raise OperationFailed(library.errors())
        params = _params(scheme)
        if library.EVP_PKEY_CTX_set_params(maker, params) <= 0:
            raise OperationFailed(library.errors())
        room = c_size_t(1024)
        buffer = ctypes.create_string_buffer(room.value)
        if library.EVP_PKEY_sign(maker, buffer, ctypes.byref(room), digest, len(digest)) <= 0:
            raise OperationFailed(library.errors())
        return buffer.raw[: room.value]
    finally:
        library.EVP_PKEY_CTX_free(maker)


def _params(scheme: SignatureScheme) -> ctypes.Array[OsslParam]:
    values = {b"digest": scheme.hash_name.upper().encode()}
    if padding := _PADDINGS.get(scheme.value.rpartition("-")[0]):
        values[b"pad-mode"] = padding
    rows = (OsslParam * (len(values) + 1))()
    for row, (name, value) in zip(rows, values.items(), strict=False):
        row.key, row.data_type, row.data_size = name, UTF8_STRING, len(value)
        row.data = ctypes.addressof(_text(value))
    return rows


@cache
def _text(value: bytes) -> ctypes.Array[c_char]:
    """Return a buffer that stays alive, because a parameter is only a pointer. Cached: there are few of them."""
    return ctypes.create_string_buffer(value)


_HANDLE = re.compile(r"0x81[0-9A-Fa-f]{6}")


class Tpm2Key:
    """The key provider for the scheme ``tpm2``."""

    program: tuple[str, ...] = ()

    def __init__(self, store: str, *, pin_source: str) -> None:
        # The argument of OSSL_STORE_open_ex.
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
        # Only a signature verifies the password, and during the first handshake it is too late for a prompt.
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
