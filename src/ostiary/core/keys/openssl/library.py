"""The OpenSSL that this interpreter's `ssl` module uses, for what that module has no function for.

Called by `provider`, `contexts` and `session_tickets`, and by the plugin for TPMs. The functions are looked up through
the file of `_ssl` itself, which gives those of the very library it is linked to: a context of one OpenSSL handed to
another one would crash the process. Where that is not possible, `load` says why, and nothing is tried.
"""

from __future__ import annotations

import ctypes
import ssl
import sys
import threading
from ctypes import POINTER, c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_ulong, c_void_p

from ostiary.core.text import printable
from ostiary.errors import KeyUnusable

# Providers came with 3.0; before that a key needed interfaces that later versions removed.
OLDEST = (3, 0)


class OsslParam(ctypes.Structure):
    """``OSSL_PARAM``: one named value on its way into or out of a provider."""

    _fields_ = (
        ("key", c_char_p),
        ("data_type", c_uint),
        ("data", c_void_p),
        ("data_size", c_size_t),
        ("return_size", c_size_t),
    )


UNSIGNED_INTEGER, UTF8_STRING = 2, 4
# ERR_TXT_STRING
_DATA_IS_TEXT = 2
MODULES_DIRECTORY = 1003

_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "SSL_CTX_get_options": (c_uint64, (c_void_p,)),
    "SSL_CTX_ctrl": (c_long, (c_void_p, c_int, c_long, c_void_p)),
    "SSL_CTX_use_certificate_chain_file": (c_int, (c_void_p, c_char_p)),
    "SSL_CTX_use_PrivateKey": (c_int, (c_void_p, c_void_p)),
    "SSL_CTX_check_private_key": (c_int, (c_void_p,)),
    "OSSL_LIB_CTX_new": (c_void_p, ()),
    "OSSL_LIB_CTX_free": (None, (c_void_p,)),
    "OSSL_PROVIDER_add_builtin": (c_int, (c_void_p, c_char_p, c_void_p)),
    "OSSL_PROVIDER_load": (c_void_p, (c_void_p, c_char_p)),
    "OSSL_PROVIDER_unload": (c_int, (c_void_p,)),
    "OSSL_PARAM_locate": (POINTER(OsslParam), (c_void_p, c_char_p)),
    "OSSL_PARAM_set_int": (c_int, (c_void_p, c_int)),
    "OSSL_PARAM_set_utf8_string": (c_int, (c_void_p, c_char_p)),
    "EVP_PKEY_CTX_new_from_name": (c_void_p, (c_void_p, c_char_p, c_char_p)),
    "EVP_PKEY_CTX_new_from_pkey": (c_void_p, (c_void_p, c_void_p, c_char_p)),
    "EVP_PKEY_CTX_set_params": (c_int, (c_void_p, POINTER(OsslParam))),
    "EVP_PKEY_CTX_free": (None, (c_void_p,)),
    "EVP_PKEY_fromdata_init": (c_int, (c_void_p,)),
    "EVP_PKEY_fromdata": (c_int, (c_void_p, POINTER(c_void_p), c_int, POINTER(OsslParam))),
    "EVP_PKEY_sign_init": (c_int, (c_void_p,)),
    "EVP_PKEY_sign": (c_int, (c_void_p, c_char_p, POINTER(c_size_t), c_char_p, c_size_t)),
    "EVP_PKEY_free": (None, (c_void_p,)),
    "i2d_PUBKEY": (c_int, (c_void_p, POINTER(c_void_p))),
    "CRYPTO_free": (None, (c_void_p, c_char_p, c_int)),
    "OSSL_STORE_open_ex": (
        c_void_p,
        (c_char_p, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "OSSL_STORE_eof": (c_int, (c_void_p,)),
    "OSSL_STORE_load": (c_void_p, (c_void_p,)),
    "OSSL_STORE_close": (c_int, (c_void_p,)),
    "OSSL_STORE_INFO_get1_PKEY": (c_void_p, (c_void_p,)),
    "OSSL_STORE_INFO_free": (None, (c_void_p,)),
    "UI_UTIL_wrap_read_pem_callback": (c_void_p, (c_void_p, c_int)),
    "UI_destroy_method": (None, (c_void_p,)),
    "ERR_get_error_all": (
        c_ulong,
        (c_void_p, c_void_p, c_void_p, POINTER(c_char_p), POINTER(c_int)),
    ),
    "ERR_reason_error_string": (c_char_p, (c_ulong,)),
    "OPENSSL_info": (c_char_p, (c_int,)),
    "ERR_clear_error": (None, ()),
    "OpenSSL_version_num": (c_ulong, ()),
}


class OpenSsl:
    """The functions, typed. One object serves all threads."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.functions = library

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self.functions, name)
        return function

    def errors(self) -> str:
        """What OpenSSL has noted in this thread, the first cause first; and forget it."""
        texts = []
        data, flags = c_char_p(), c_int()
        while number := self.ERR_get_error_all(None, None, None, ctypes.byref(data), ctypes.byref(flags)):
            reason = self.ERR_reason_error_string(c_ulong(number)) or b""
            words = b": ".join(filter(None, (reason, data.value if flags.value & _DATA_IS_TEXT else b"")))
            texts.append(printable(words.decode(errors="replace")))
        return "; ".join(dict.fromkeys(filter(None, texts)))


_lock = threading.Lock()
_loaded: OpenSsl | None = None


def load() -> OpenSsl:
    """The library of `ssl`; raises `KeyUnusable` where it cannot be reached."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load(ssl, implementation=sys.implementation.name)
        return _loaded


def _load(module: object, *, implementation: str) -> OpenSsl:
    if implementation != "cpython":
        raise unsupported(f"this interpreter is {implementation}, and only CPython's ssl module can be reached")
    file = getattr(getattr(module, "_ssl", None), "__file__", None)
    if not file:
        raise unsupported("the ssl module of this interpreter is built in, with an OpenSSL that cannot be reached")
    version: tuple[int, ...] = getattr(module, "OPENSSL_VERSION_INFO", (0,))
    if version[:2] < OLDEST:
        raise unsupported(f"the ssl module uses {getattr(module, 'OPENSSL_VERSION', 'another library')}")
    try:
        library = OpenSsl(ctypes.CDLL(file))
    except (OSError, AttributeError):
        raise unsupported(
            "the ssl module is linked statically, and keeps the functions of its OpenSSL to itself"
        ) from None
    if library.OpenSSL_version_num() != getattr(module, "OPENSSL_VERSION_NUMBER", 0):
        raise unsupported("another OpenSSL was found than the one that the ssl module uses")
    return library


def context_pointer(library: OpenSsl, context: ssl.SSLContext) -> int:
    """The ``SSL_CTX`` inside *context*, which CPython keeps right after the head of the object."""
    address = c_void_p.from_address(id(context) + object.__basicsize__).value
    # Both read one number: if they differ, this is no place to write to.
    if not address or library.SSL_CTX_get_options(address) & 0xFFFFFFFF != int(context.options) & 0xFFFFFFFF:
        raise unsupported("the ssl module of this interpreter keeps its contexts in another way")
    return address


def unsupported(cause: str) -> KeyUnusable:
    return KeyUnusable(
        "this Python cannot use keys that are kept elsewhere",
        cause=cause,
        hint=f"use a CPython whose ssl module is linked to a shared OpenSSL {OLDEST[0]}, such as Debian's",
        code="key-unsupported",
    )
