"""The parts of OpenSSL that `ssl` does not expose, and TLS session tickets.

The functions are looked up through the file of `_ssl` itself, which gives those of the library that it is linked to:
passing a context of one OpenSSL to another one would crash the process. If that is impossible, `load` reports why.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import ssl
import sys
import threading
from ctypes import POINTER, c_char_p, c_int, c_long, c_size_t, c_uint, c_uint64, c_ulong, c_void_p

from ostiary.core.text import printable
from ostiary.errors import KeyUnusable

# Providers were introduced in 3.0; before that a key needed interfaces that later versions removed.
OLDEST = (3, 0)


class OsslParam(ctypes.Structure):
    """``OSSL_PARAM``: one named input or output of a provider."""

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
    """The functions with their types. Thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.functions = library

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
        function: ctypes._NamedFuncPointer = getattr(self.functions, name)
        return function

    def errors(self) -> str:
        """Return and clear the OpenSSL errors of this thread, the first cause first."""
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
    """Return the library of `ssl`; raises `KeyUnusable` if it is not accessible."""
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
    """Return the ``SSL_CTX`` inside *context*, which CPython stores right after the object header."""
    address = c_void_p.from_address(id(context) + object.__basicsize__).value
    # Both read the same number: if they differ, the address is wrong and must not be written to.
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


# TLS session resumption on servers. By default `ssl` lets any client resume, and each context encrypts tickets with its
# own keys, so that a client which reaches another worker needs a full handshake.

# ssl.h and tls1.h
_SET_CACHE_MODE, _CACHE_OFF = 44, 0
_SET_TICKET_KEYS = 59
_LABEL = b"ostiary session tickets"
# A client that connects sequentially uses only one of the default two tickets, and each costs a tenth of a handshake.
TICKETS = 1


def turn_off_resumption(context: ssl.SSLContext) -> None:
    """Disable session resumption in *context*.

    A resumed session has the certificate that the client once presented, without another check whether it has expired
    since, or whether its CA is still trusted. If OpenSSL is not accessible, TLS 1.2 clients can still resume by session
    id: code that relies on certificates must reject resumed sessions.
    """
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _turn_off_cache(context)


def seal_tickets(context: ssl.SSLContext, secret: bytes, *, purpose: bytes) -> bool:
    """Encrypt the tickets of *context* with keys derived from *secret*; False if this interpreter does not support it.

    Every context with the same *secret* and *purpose* accepts them, in any process. Must not be called during a
    handshake with *context* in another thread.
    """
    context.num_tickets = TICKETS
    _turn_off_cache(context)
    try:
        library = load()
        pointer = context_pointer(library, context)
    except KeyUnusable:
        return False
    size = library.SSL_CTX_ctrl(pointer, _SET_TICKET_KEYS, 0, None)
    keys = _expand(secret, purpose, size)
    return bool(library.SSL_CTX_ctrl(pointer, _SET_TICKET_KEYS, len(keys), keys))


def _turn_off_cache(context: ssl.SSLContext) -> None:
    """Disable the session cache: tickets do not need it, and TLS 1.2 clients without tickets could fill it."""
    try:
        library = load()
        library.SSL_CTX_ctrl(context_pointer(library, context), _SET_CACHE_MODE, _CACHE_OFF, None)
    except KeyUnusable:
        # OpenSSL's own limit applies then.
        pass


def _expand(secret: bytes, purpose: bytes, size: int) -> bytes:
    """HKDF-Expand (RFC 5869, 2.3)."""
    keys, block = b"", b""
    for number in range(1, -(-size // hashlib.sha512().digest_size) + 1):
        block = hmac.digest(secret, block + _LABEL + purpose + bytes([number]), "sha512")
        keys += block
    return keys[:size]
