"""The tables of functions that a provider gives to OpenSSL, made of Python functions; and how parameters are read.

An exception cannot pass through OpenSSL: it is kept for the thread it happened in, and `take_failure` gives it to
whoever sees the handshake fail.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_void_p
from typing import TypeAlias

from ostiary.core.keys.openssl.library import UNSIGNED_INTEGER, UTF8_STRING, OsslParam

_INTEGER, _OCTET_STRING = 1, 5
_TYPES = {b"pub": _OCTET_STRING, **dict.fromkeys((b"group", b"pad-mode", b"digest", b"mgf1-digest"), UTF8_STRING)}

# What a function gives, what it takes, and the function.
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
    """What went wrong in a callback of this thread since the last time; and forget it."""
    error, _failures.error = _failures.error, None
    return error


class CallbackTables:
    """Makes the tables, and keeps them: whatever OpenSSL points to must stay where it is."""

    def __init__(self, properties: bytes) -> None:
        self._properties = properties
        self._kept: list[object] = []

    def keep(self, *objects: object) -> None:
        self._kept += objects

    def dispatch(self, functions: Mapping[int, Callback]) -> Table:
        """An array of ``OSSL_DISPATCH``, by the numbers of ``core_dispatch.h``."""
        table = (_Dispatch * (len(functions) + 1))()
        for row, (function_id, (result, arguments, function)) in zip(table, functions.items(), strict=False):
            callback = CFUNCTYPE(result, *arguments)(_guarded(function))
            self.keep(callback)
            row.function_id, row.function = function_id, ctypes.cast(callback, c_void_p).value
        self.keep(table)
        return table

    def algorithms(self, *rows: tuple[bytes, Table]) -> ctypes.Array[_AlgorithmRow]:
        """An array of ``OSSL_ALGORITHM``: names, and the functions of each."""
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
    """An array of ``OSSL_PARAM`` that says which parameters there are."""
    table = (OsslParam * (len(names) + 1))()
    for row, name in zip(table, names, strict=False):
        row.key, row.data_type = name, _TYPES.get(name, UNSIGNED_INTEGER)
    return table


def number(param: OsslParam) -> int:
    return int.from_bytes(ctypes.string_at(param.data, param.data_size), sys.byteorder)


def text_or_number(param: OsslParam) -> str | int:
    """Paddings and salts come as either."""
    data = ctypes.string_at(param.data, param.data_size)
    if param.data_type in (_INTEGER, UNSIGNED_INTEGER):
        return int.from_bytes(data, sys.byteorder, signed=param.data_type == _INTEGER)
    return data.split(b"\0")[0].decode(errors="replace")
