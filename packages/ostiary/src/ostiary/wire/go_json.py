"""JSON as Go's encoder writes it and its decoder reads it.

For bytes that must equal those of kubectl and the kubelet, and for parsing what client-go parses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

from ostiary.core.go_text import decode_like_go, without_surrogates

# Go escapes these in every string, so that JSON is safe in HTML and JavaScript.
_ESCAPES = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
TEXT_AFTER = "text after the value"
# Go writes floats between these without an exponent.
_SMALLEST_PLAIN, _LARGEST_PLAIN = 1e-6, 1e21


def go_json(value: Any) -> str:
    """Return compact JSON with Go's escaping and number format; the keys keep their order."""
    return _write(value).translate(_ESCAPES)


def indented_go_json(value: Any) -> str:
    """Like `go_json`, but indented by two spaces per level."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_ESCAPES)


def _write(value: Any) -> str:
    if isinstance(value, float):
        return _go_float(value)
    if isinstance(value, dict) and _holds_float(value):
        return "{" + ",".join(f"{_write(str(key))}:{_write(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)) and _holds_float(value):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _holds_float(value: Any) -> bool:
    """Return whether *value* contains a float: Python's fast encoder has no option for the number format."""
    if isinstance(value, dict):
        return any(map(_holds_float, value.values()))
    return any(map(_holds_float, value)) if isinstance(value, (list, tuple)) else isinstance(value, float)


def _go_float(number: float) -> str:
    if not math.isfinite(number):
        raise ValueError("JSON has neither infinity nor NaN")
    size = abs(number)
    if size != 0 and not _SMALLEST_PLAIN <= size < _LARGEST_PLAIN:
        mantissa, _, exponent = repr(number).partition("e")
        # 1e-07 is 1e-7 in Go, and 1e+21 keeps its sign.
        return f"{mantissa.removesuffix('.0')}e{exponent[0]}{exponent[1:].lstrip('0')}"
    text = repr(number)
    if "e" in text:
        text = _without_exponent(text)
    return text.removesuffix(".0")


def _without_exponent(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits, point = whole + fraction, len(whole) + int(exponent)
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}".rstrip("0")
    return f"{sign}{digits.ljust(point, '0')[:point]}.{digits[point:].rstrip('0') or '0'}"


def read_go_json(data: bytes, *, pointers: frozenset[str] = frozenset()) -> Any:
    """Decode *data* like Go decodes into a struct; raises ValueError, which does not quote it.

    A byte that is not UTF-8 becomes a replacement character. Repeated objects are merged. A repeated null leaves a
    field unchanged, unless it is a pointer in Go (*pointers*, by name). NaN and infinity are invalid.
    """
    decoder = json.JSONDecoder(object_pairs_hook=partial(_unite, pointers), parse_constant=_refuse)
    try:
        return decoder.decode(decode_like_go(data))
    except json.JSONDecodeError as error:
        message = TEXT_AFTER if error.msg == "Extra data" else f"line {error.lineno}, column {error.colno}"
    except RecursionError:
        message = "nested too deeply"
    # Raised outside of the handler: the decoder's exception holds the whole text.
    raise ValueError(message)


def _unite(pointers: frozenset[str], pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        earlier = fields.get(key)
        if isinstance(earlier, dict) and isinstance(value, dict):
            fields[key] = _unite(pointers, (*earlier.items(), *value.items()))
        elif value is not None or key in pointers or earlier is None or isinstance(earlier, (dict, list)):
            fields[key] = _readable(value)
    return fields


def _readable(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _refuse(_: str) -> NoReturn:
    raise json.JSONDecodeError("not a number", "", 0)
