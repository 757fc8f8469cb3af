"""An OpenSSL provider in Python, so that `ssl` can sign with keys outside of this process.

    SSL_do_handshake -> EVP_DigestSign -> `_digest_sign` -> `DeviceKey.sign(digest, scheme)`

The callbacks run in the thread of the handshake. An exception cannot propagate through OpenSSL: it is stored per
thread, and `take_failure` returns it to the code that sees the handshake fail.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_void_p
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.errors import OstiaryError
from ostiary.keys.address import CURVES, PublicKey, scheme_for, signature_bytes, usable_public_key
from ostiary.keys.openssl import UNSIGNED_INTEGER, UTF8_STRING, OpenSsl, OsslParam, context_pointer, load, unsupported
from ostiary.model import DeviceKey

_INTEGER, _OCTET_STRING = 1, 5
_TYPES = {b"pub": _OCTET_STRING, **dict.fromkeys((b"group", b"pad-mode", b"digest", b"mgf1-digest"), UTF8_STRING)}

# Result type, argument types, and the function.
Callback: TypeAlias = (
    "tuple[type[ctypes._CDataType] | None, tuple[type[ctypes._CDataType], ...], Callable[..., object]]"
)
Pointer: TypeAlias = "ctypes._Pointer"
Table: TypeAlias = "ctypes.Array[_Dispatch]"
Params: TypeAlias = "ctypes.Array[OsslParam]"


class _Dispatch(ctypes.Structure):
    _fields_ = (("function_id", c_int), ("function", c_void_p))


class _AlgorithmRow(ctypes.Structure):
    _fields_ = (("names", c_char_p), ("properties", c_char_p), ("table", POINTER(_Dispatch)), ("description", c_char_p))


class _Failures(threading.local):
    error: BaseException | None = None


_failures = _Failures()


def take_failure() -> BaseException | None:
    """Return and clear the exception of the last failed callback in this thread."""
    error, _failures.error = _failures.error, None
    return error


class CallbackTables:
    """Creates the tables of functions for OpenSSL, and keeps references to them, because OpenSSL stores pointers."""

    def __init__(self, properties: bytes) -> None:
        self._properties = properties
        self._kept: list[object] = []

    def keep(self, *objects: object) -> None:
        self._kept += objects

    def dispatch(self, functions: Mapping[int, Callback]) -> Table:
        """Return an array of ``OSSL_DISPATCH``, by the numbers of ``core_dispatch.h``."""
        table = (_Dispatch * (len(functions) + 1))()
        for row, (function_id, (result, arguments, function)) in zip(table, functions.items(), strict=False):
            callback = CFUNCTYPE(result, *arguments)(_guarded(function))
            self.keep(callback)
            row.function_id, row.function = function_id, ctypes.cast(callback, c_void_p).value
        self.keep(table)
        return table

    def algorithms(self, *rows: tuple[bytes, Table]) -> ctypes.Array[_AlgorithmRow]:
        """Return an array of ``OSSL_ALGORITHM``: names, and the functions of each."""
        table = (_AlgorithmRow * (len(rows) + 1))()
        for row, (names, functions) in zip(table, rows, strict=False):
            row.names, row.properties, row.table = names, self._properties, functions
        self.keep(table)
        return table


def _guarded(function: Callable[..., object]) -> Callable[..., object]:
    def callback(*arguments: object) -> object:
        try:
            return function(*arguments)
        except BaseException as error:
            _failures.error = error
            return 0

    return callback


# --- parameters ---


def descriptions(*names: bytes) -> Params:
    """Return an array of ``OSSL_PARAM`` that describes the supported parameters."""
    table = (OsslParam * (len(names) + 1))()
    for row, name in zip(table, names, strict=False):
        row.key, row.data_type = name, _TYPES.get(name, UNSIGNED_INTEGER)
    return table


def number(param: OsslParam) -> int:
    return int.from_bytes(ctypes.string_at(param.data, param.data_size), sys.byteorder)


def text_or_number(param: OsslParam) -> str | int:
    """Read a parameter that may be either, as paddings and salt lengths are."""
    data = ctypes.string_at(param.data, param.data_size)
    if param.data_type in (_INTEGER, UNSIGNED_INTEGER):
        return int.from_bytes(data, sys.byteorder, signed=param.data_type == _INTEGER)
    return data.split(b"\0")[0].decode(errors="replace")


NAME = b"ostiary"
PROPERTIES = b"provider=ostiary"
# The parameter with which `make_key` passes the key to `_import`.
KEY_PARAMETER = b"ostiary-key"

# core_dispatch.h
_QUERY_OPERATION = 1027
_OPERATION_KEYMGMT, _OPERATION_SIGNATURE = 10, 12
_KEYPAIR = 0x87
_PSS, _PKCS1 = ("pss", 6), ("pkcs1", 1)


@dataclass(slots=True)
class _KeyData:
    """One key in OpenSSL: ours, or the public key of a certificate that ours is compared with."""

    key: DeviceKey | None = None
    public: PublicKey | None = None
    identity: bytes | int | None = None


@dataclass(slots=True)
class _PendingSignature:
    """A signature operation in progress."""

    data: _KeyData | None = None
    hash_name: str = "sha256"
    is_pss: bool = False


class SigningProvider:
    """The tables that OpenSSL calls into. There is one per process, and it is never unloaded.

    The provider has its own library context, so it sees only keys made by `make_key`, and the default provider still
    verifies the servers' certificates. A handshake finds it by OpenSSL's rule for keys that cannot be exported:
    EVP_DigestSignInit tries the default provider first, and then the provider that has the key.
    """

    def __init__(self, library: OpenSsl) -> None:
        self._library = library
        self._ids = count(1)
        self._keys: dict[int, _KeyData] = {}
        self._signings: dict[int, _PendingSignature] = {}
        self._tables = CallbackTables(PROPERTIES)
        self._operations = {
            _OPERATION_KEYMGMT: self._tables.algorithms(
                (b"EC:id-ecPublicKey:1.2.840.10045.2.1", self._key_management(b"ECDSA", self._import_ec, EC_TYPES)),
                (b"RSA:rsaEncryption:1.2.840.113549.1.1.1", self._key_management(b"RSA", self._import_rsa, RSA_TYPES)),
            ),
            _OPERATION_SIGNATURE: self._tables.algorithms(
                (b"ECDSA", self._signature()), (b"RSA:rsaEncryption:1.2.840.113549.1.1.1", self._signature())
            ),
        }
        self._provider_table = self._tables.dispatch(
            {_QUERY_OPERATION: (c_void_p, (c_void_p, c_int, POINTER(c_int)), self._query)}
        )
        self._context = library.OSSL_LIB_CTX_new()
        init = CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_void_p))(self._init)
        self._tables.keep(init)
        added = library.OSSL_PROVIDER_add_builtin(self._context, NAME, ctypes.cast(init, c_void_p))
        if not added or not library.OSSL_PROVIDER_load(self._context, NAME):
            raise RuntimeError(library.errors() or "OpenSSL does not take a provider")

    def make_key(self, key: DeviceKey) -> int:
        """Return an ``EVP_PKEY`` that signs with *key*.

        The caller frees it; *key* stays referenced while OpenSSL uses it.
        """
        handle = next(self._ids)
        public = usable_public_key(key.public_key)
        self._keys[handle] = _KeyData(key, public, _identity(public))
        value = ctypes.c_uint64(handle)
        wanted = OsslParam(KEY_PARAMETER, UNSIGNED_INTEGER, ctypes.addressof(value), ctypes.sizeof(value), 0)
        params = (OsslParam * 2)(wanted)
        name = b"EC" if isinstance(public, EllipticCurvePublicKey) else b"RSA"
        library, result = self._library, c_void_p()
        maker = library.EVP_PKEY_CTX_new_from_name(self._context, name, PROPERTIES)
        try:
            if library.EVP_PKEY_fromdata_init(maker) <= 0:
                raise RuntimeError(library.errors())
            if library.EVP_PKEY_fromdata(maker, ctypes.byref(result), _KEYPAIR, params) <= 0:
                raise RuntimeError(library.errors())
        finally:
            library.EVP_PKEY_CTX_free(maker)
            # `_import` has stored it with the data of the new key.
            self._keys.pop(handle, None)
        assert result.value is not None
        return result.value

    # --- the provider: OSSL_FUNC_PROVIDER_* ---

    def _init(self, handle: int, offered: int, out: Pointer[c_void_p], context: Pointer[c_void_p]) -> int:
        out[0] = ctypes.cast(self._provider_table, c_void_p)
        context[0] = c_void_p(handle)
        return 1

    def _query(self, context: int, operation: int, no_cache: Pointer[c_int]) -> int | None:
        no_cache[0] = 0
        table = self._operations.get(operation)
        return ctypes.addressof(table) if table is not None else None

    # --- key management: OSSL_FUNC_KEYMGMT_* ---

    def _key_management(self, signature: bytes, import_public: Callable[[_KeyData, int], bool], types: Params) -> Table:
        def import_key(handle: int, selection: int, params: int) -> int:
            data = self._keys[handle]
            wanted = self._library.OSSL_PARAM_locate(params, KEY_PARAMETER)
            if wanted:
                ours = self._keys[number(wanted[0])]
                data.key, data.public, data.identity = ours.key, ours.public, ours.identity
                return 1
            return int(import_public(data, params))

        name = ctypes.create_string_buffer(signature)
        self._tables.keep(name)
        readable = descriptions(b"bits", b"security-bits", b"max-size", b"group")
        self._tables.keep(readable, types)
        return self._tables.dispatch(
            {
                1: (c_void_p, (c_void_p,), lambda context: self._new_key()),
                10: (None, (c_void_p,), lambda handle: self._keys.pop(handle, None)),
                11: (c_int, (c_void_p, c_void_p), self._key_params),
                12: (c_void_p, (c_void_p,), lambda context: ctypes.addressof(readable)),
                20: (c_void_p, (c_int,), lambda operation: ctypes.addressof(name)),
                21: (c_int, (c_void_p, c_int), self._has),
                23: (c_int, (c_void_p, c_void_p, c_int), self._match),
                40: (c_int, (c_void_p, c_int, c_void_p), import_key),
                41: (c_void_p, (c_int,), lambda selection: ctypes.addressof(types)),
            }
        )

    def _new_key(self) -> int:
        handle = next(self._ids)
        self._keys[handle] = _KeyData()
        return handle

    def _has(self, handle: int | None, selection: int) -> int:
        data = self._keys.get(handle or 0)
        wants_private = bool(selection & 1)
        return int(data is not None and data.identity is not None and (data.key is not None or not wants_private))

    def _match(self, one: int, other: int, selection: int) -> int:
        identity = self._keys[one].identity
        return int(identity is not None and identity == self._keys[other].identity)

    def _import_ec(self, data: _KeyData, params: int) -> bool:
        point = self._library.OSSL_PARAM_locate(params, b"pub")
        data.identity = ctypes.string_at(point[0].data, point[0].data_size) if point else None
        return data.identity is not None

    def _import_rsa(self, data: _KeyData, params: int) -> bool:
        modulus = self._library.OSSL_PARAM_locate(params, b"n")
        data.identity = number(modulus[0]) if modulus else None
        return data.identity is not None

    def _key_params(self, handle: int, params: int) -> int:
        public = self._keys[handle].public
        if public is None:
            return 0
        library = self._library
        numbers = {b"bits": public.key_size, b"security-bits": _strength(public), b"max-size": signature_bytes(public)}
        for name, value in numbers.items():
            place = library.OSSL_PARAM_locate(params, name)
            if place and not library.OSSL_PARAM_set_int(place, value):
                return 0
        group = library.OSSL_PARAM_locate(params, b"group")
        if group and isinstance(public, EllipticCurvePublicKey):
            return int(library.OSSL_PARAM_set_utf8_string(group, CURVES[public.curve.name].openssl_name.encode()))
        return 1

    # --- signatures: OSSL_FUNC_SIGNATURE_* ---

    def _signature(self) -> Table:
        settable = descriptions(b"pad-mode", b"saltlen", b"digest", b"mgf1-digest")
        self._tables.keep(settable)
        return self._tables.dispatch(
            {
                1: (c_void_p, (c_void_p, c_char_p), lambda context, properties: self._new_signing()),
                8: (c_int, (c_void_p, c_char_p, c_void_p, c_void_p), self._digest_sign_init),
                11: (
                    c_int,
                    (c_void_p, POINTER(c_ubyte), POINTER(c_size_t), c_size_t, POINTER(c_ubyte), c_size_t),
                    self._digest_sign,
                ),
                16: (None, (c_void_p,), lambda signing: self._signings.pop(signing, None)),
                20: (c_int, (c_void_p, c_void_p), self._set_signing_params),
                21: (c_void_p, (c_void_p, c_void_p), lambda signing, context: ctypes.addressof(settable)),
            }
        )

    def _new_signing(self) -> int:
        handle = next(self._ids)
        self._signings[handle] = _PendingSignature()
        return handle

    def _digest_sign_init(self, handle: int, hash_name: bytes | None, key: int | None, params: int | None) -> int:
        signing = self._signings[handle]
        if key:
            signing.data = self._keys[key]
        if hash_name:
            # SHA2-256 and SHA256 are names of one hash.
            signing.hash_name = hash_name.decode().lower().replace("sha2-", "sha").replace("-", "")
        return self._set_signing_params(handle, params) if params else 1

    def _set_signing_params(self, handle: int, params: int) -> int:
        signing, library = self._signings[handle], self._library
        padding = library.OSSL_PARAM_locate(params, b"pad-mode")
        if padding:
            value = text_or_number(padding[0])
            if value not in (*_PSS, *_PKCS1):
                return 0
            signing.is_pss = value in _PSS
        salt = library.OSSL_PARAM_locate(params, b"saltlen")
        # TLS uses salts of the digest's length (RFC 8446, 4.2.3), and so do our devices.
        return int(not salt or text_or_number(salt[0]) in ("digest", -1, hashlib.new(signing.hash_name).digest_size))

    def _digest_sign(
        self,
        handle: int,
        out: Pointer[c_ubyte],
        size: Pointer[c_size_t],
        room: int,
        message: Pointer[c_ubyte],
        length: int,
    ) -> int:
        signing = self._signings[handle]
        if signing.data is None or signing.data.key is None or signing.data.public is None:
            return 0
        if not out:
            size[0] = signature_bytes(signing.data.public)
            return 1
        scheme = scheme_for(signing.data.public, signing.hash_name, is_pss=signing.is_pss)
        digest = hashlib.new(signing.hash_name, ctypes.string_at(message, length)).digest()
        signature = signing.data.key.sign(digest, scheme)
        if len(signature) > room:
            raise ValueError("the signature is longer than any of this key")
        ctypes.memmove(out, signature, len(signature))
        size[0] = len(signature)
        return 1


def _identity(public: PublicKey) -> bytes | int:
    if isinstance(public, RSAPublicKey):
        return public.public_numbers().n
    return public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _strength(public: PublicKey) -> int:
    """Return the bits of security according to SP 800-57; OpenSSL rejects keys that are too weak."""
    if isinstance(public, EllipticCurvePublicKey):
        return public.key_size // 2
    return next(
        strength for bits, strength in ((7680, 192), (3072, 128), (2048, 112), (0, 80)) if public.key_size >= bits
    )


EC_TYPES = descriptions(b"group", b"pub", KEY_PARAMETER)
RSA_TYPES = descriptions(b"n", b"e", KEY_PARAMETER)

_lock = threading.Lock()
_provider: SigningProvider | None = None


def provider() -> SigningProvider:
    """Return the provider of this process, created on first use; raises `KeyUnusable` if that is impossible."""
    global _provider
    with _lock:
        if _provider is None:
            _provider = SigningProvider(load())
            # At exit, the interpreter frees contexts late, when this module may be gone already.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_provider))
        return _provider


# Using a key in an `ssl.SSLContext`, and reporting why a handshake failed because of it.

log = logging.getLogger("ostiary.keys")
SECONDS_BETWEEN_LOGS = 10.0


def use_key(context: ssl.SSLContext, chain_path: str, key: DeviceKey) -> None:
    """Present the certificates in the file at *chain_path* in *context*, and sign with *key*.

    Raises `ValueError` if the two do not match, and `KeyUnusable` if this interpreter does not support it. *context*
    must not be in use yet. It keeps a reference to *key*.
    """
    library = load()
    try:
        keys = provider()
    except RuntimeError as error:
        raise unsupported(f"OpenSSL does not take a provider of ours: {error}") from None
    pointer = context_pointer(library, context)
    library.ERR_clear_error()
    if library.SSL_CTX_use_certificate_chain_file(pointer, chain_path.encode()) != 1:
        library.ERR_clear_error()
        raise ValueError("the certificate cannot be loaded as PEM")
    made = keys.make_key(key)
    try:
        used = library.SSL_CTX_use_PrivateKey(pointer, made)
        # A key of another type than the certificate's is accepted silently: only the check detects it.
        if used != 1 or library.SSL_CTX_check_private_key(pointer) != 1:
            library.ERR_clear_error()
            raise ValueError("the key does not belong to the certificate")
    finally:
        library.EVP_PKEY_free(made)
    _tell_failures(context)


class _TellsFailure:
    """Mixin for `SSLSocket` and `SSLObject`: reports why a handshake failed because of the key.

    On a client, the key's error replaces OpenSSL's bare "internal error". On a server no caller handles the exception,
    so it is logged.
    """

    server_side: bool

    def do_handshake(self, *arguments: bool) -> None:
        take_failure()
        try:
            super().do_handshake(*arguments)  # type: ignore[misc]  # of the class behind this one
        except ssl.SSLError:
            failure = take_failure()
            if failure is None:
                raise
            if not self.server_side:
                raise failure from None
            _log_failure(failure)
            raise


def _tell_failures(context: ssl.SSLContext) -> None:
    for name in ("sslsocket_class", "sslobject_class"):
        behind: type = getattr(context, name)
        if not issubclass(behind, _TellsFailure):
            setattr(context, name, type(f"Telling{behind.__name__}", (_TellsFailure, behind), {}))


def _log_failure(failure: BaseException) -> None:
    global _logged_at
    now = SYSTEM_CLOCK.monotonic()
    # Every retry of a client causes one.
    if now - _logged_at >= SECONDS_BETWEEN_LOGS:
        _logged_at = now
        cause = failure.lines() if isinstance(failure, OstiaryError) else [("cause", str(failure))]
        log.error("a TLS handshake failed: %s", failure.args[0] if failure.args else "", extra=dict(cause))


_logged_at = float("-inf")
