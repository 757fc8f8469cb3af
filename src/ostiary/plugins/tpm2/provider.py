"""Keys of a TPM by OpenSSL's functions: load one, read its public half, have it sign.

Called by `key`. Everything is freed at the end of `loaded_key`, and with the last reference the TPM is let go.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import CFUNCTYPE, POINTER, c_char, c_int, c_size_t, c_void_p
from functools import cache
from typing import NamedTuple

from ostiary.core.keys.openssl.library import MODULES_DIRECTORY, UTF8_STRING, OpenSsl, OsslParam
from ostiary.model import Secret, SignatureScheme
from ostiary.plugins.tpm2.failures import NotLoaded, OperationFailed, PasswordAsked, ProviderMissing

PROPERTIES = b"?provider=tpm2"
_PADDINGS = {"rsa-pss": b"pss", "rsa-pkcs1": b"pkcs1"}
_PasswordCallback = CFUNCTYPE(c_int, POINTER(c_char), c_int, c_int, c_void_p)


class LoadedKey(NamedTuple):
    """An ``EVP_PKEY`` and the library context where its provider is."""

    context: int
    key: int


@contextmanager
def loaded_key(library: OpenSsl, store: str, pin: Secret | None) -> Iterator[LoadedKey]:
    """The key at *store* (a path, or ``handle:0x...``), as long as the block lasts."""
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
    # They would write to the stderr of whoever uses us, although every failure is told as an error of ours.
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
    # A handle does not tell whether it has a password.
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
    """SubjectPublicKeyInfo in DER."""
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
    """In memory that stays where it is: a parameter is only a pointer. There are few of them."""
    return ctypes.create_string_buffer(value)
